"""Sustained memory bandwidth: McCalpin's STREAM kernels, with BabelStream's dot, on the device's own memory."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from engine.worker.adapters import host
from engine.worker.adapters.base import Adapter
from engine.worker.adapters.jax import JaxAdapter
from engine.worker.adapters.torch import TorchAdapter
from engine.worker.card import BadParameter, Card, Metric, Parameter, Scalar, Value, Variant, chosen
from engine.worker.work import IncorrectResult, Kernel, Work

MIB = 1 << 20
BLOCK_BYTES = MIB
"""Arrays are this block of random values over and over, so that every element can be checked against it."""

GROWTH = 1e-5
SCALAR = math.sqrt(2 + GROWTH) - 1
"""A round takes a to (s*s + 2*s) * a, which is (1 + GROWTH) * a: millions of rounds stay far from the largest fp32,
and yet a round in which triad did nothing is off by ten times what the check allows a round."""

PASSES: dict[str, int] = {"copy": 2, "scale": 2, "add": 3, "triad": 3, "dot": 2}
"""How many arrays each kernel reads or writes, which is what STREAM counts."""

_COUNTING: dict[str, str] = {
    "copy": "2 x array bytes: c = a reads one array and writes one",
    "scale": "2 x array bytes: b = s*c reads one array and writes one",
    "add": "3 x array bytes: c = a + b reads two arrays and writes one",
    "triad": "3 x array bytes: a = b + s*c in one pass reads two arrays and writes one",
    "dot": "2 x array bytes: sum of a*b reads two arrays",
}
_ITEM_BYTES = {"fp32": 4, "fp64": 8}
_EPSILON = {"fp32": 2.0**-23, "fp64": 2.0**-52}
_WORKSPACE_BYTES = 64 * MIB

CARD = Card(
    id="memory/stream",
    title="Memory bandwidth (STREAM)",
    measures="the bandwidth of five kernels over arrays beyond any cache: copy, scale, add, triad, dot, taking turns",
    metrics=tuple(
        Metric(
            name=f"{kernel}_bandwidth",
            unit="GB/s",
            better="higher",
            work_unit="B",
            scale=1e9,
            counting=f"{text}; what a cache reads to allocate a line before a write is not counted",
        )
        for kernel, text in _COUNTING.items()
    ),
    parameters=(
        Parameter(
            name="dtypes",
            meaning="number format of the arrays",
            defaults={"cuda": ["fp32"], "": ["fp64"]},
            allowed=tuple(_ITEM_BYTES),
        ),
        Parameter(
            name="sizes",
            meaning="size of one of the three arrays, at least four times the last-level cache; auto, for processors: "
            "the larger of 256 MiB and four times the last-level cache, but at most an eighth of the host's memory",
            defaults={"cuda": ["1 GiB"], "": ["auto"]},
            form='"auto", or a whole number of MiB or GiB such as "256 MiB"',
        ),
    ),
    frameworks=("torch", "jax"),
    depends_on="memory and its controllers, their clocks, and on a processor threads and NUMA placement",
    source="STREAM 5.10 (counting, order, check of all elements); dot and the array size as BabelStream has them",
    seconds=8.0,
)


def auto_bytes(root: Path = host.ROOT) -> int:
    """The size of one array that goes with this host's processor and memory (see the parameter's text)."""
    wanted = max(256 * MIB, 4 * host.last_level_cache_bytes(root))
    most = host.memory_bytes(root) // 8
    return max(MIB, (min(wanted, most) if most else wanted) // MIB * MIB)


def parse_size(text: Scalar) -> int:
    """Bytes of "auto", "256 MiB" or "1 GiB". Raises BadParameter."""
    if text == "auto":
        return auto_bytes()
    found = re.fullmatch(r"([1-9]\d{0,6}) ?(MiB|GiB)", str(text))
    if found is None:
        raise BadParameter(f"{CARD.id}: sizes has {text!r}; allowed: {CARD.parameters[1].form}")
    return int(found.group(1)) * MIB * (1024 if found.group(2) == "GiB" else 1)


def size_text(size_bytes: int) -> str:
    """The size as part of a variant's name: in GiB where it is a whole number of them, else in MiB."""
    mib = size_bytes // MIB
    return f"{mib} MiB" if mib % 1024 else f"{mib // 1024} GiB"


def variants(parameters: Mapping[str, Value], device_kind: str) -> list[Variant]:
    """Each number format with each size. Raises BadParameter."""
    values = chosen(CARD, parameters, device_kind)
    sizes = [size_text(parse_size(size)) for size in values["sizes"]]
    return [Variant(f"{dtype} {size}", {"dtype": dtype, "size": size}) for dtype in values["dtypes"] for size in sizes]


def judge(dtype: str, rounds: int, count: int, worst: float, dot: float, reference: float) -> dict[str, Scalar]:
    """The check's facts.

    `worst` is the largest relative error of any element of the three arrays after `rounds` rounds; each round rounds
    to nearest four times. `dot` sums `count` products of one sign; a naive sum's error grows with its length, and
    libraries differ in how many partial sums they keep, so its bound is wide. Raises IncorrectResult.
    """
    bound = 8 * _EPSILON[dtype] * (rounds + 2)
    dot_bound = min(0.25, 1e-6 + count * _EPSILON[dtype] / 32)
    # Both written so that NaN fails.
    if not worst <= bound:
        raise IncorrectResult(
            f"an element is off by {worst:.2e} of its value after {rounds} rounds; allowed: {bound:.0e}"
        )
    off = abs(dot - reference) / abs(reference)
    if not off <= dot_bound:
        raise IncorrectResult(f"dot gave {dot:.6g} instead of {reference:.6g}; allowed: {dot_bound:.0e} (relative)")
    return {"check_error": worst, "check_bound": bound, "check_dot_error": off, "check_rounds": rounds}


def expected_factors(dtype_scalar: float, rounds: int) -> tuple[float, float, float]:
    """What a, b and c are times the first a after so many rounds, when the scalar is this one (as rounded)."""
    before = (dtype_scalar**2 + 2 * dtype_scalar) ** (rounds - 1)
    return before * (dtype_scalar**2 + 2 * dtype_scalar), before * dtype_scalar, before * (1 + dtype_scalar)


def prepare(parameters: Mapping[str, Value], adapter: Adapter, seed: int) -> Work:
    """Three arrays and five kernels. Raises OutOfMemory and BadParameter."""
    dtype = str(parameters.get("dtype"))
    if dtype not in _ITEM_BYTES:
        raise BadParameter(f"{CARD.id}: dtype has {dtype!r}; allowed: {', '.join(_ITEM_BYTES)}")
    size = parse_size(cast(Scalar, parameters.get("size")))
    adapter.require(dtype)
    adapter.reserve(3 * size + _WORKSPACE_BYTES, f"STREAM with three arrays of {size_text(size)}")
    body = {"torch": _torch_stream, "jax": _jax_stream}[adapter.framework]
    calls, check, how = body(dtype, size // _ITEM_BYTES[dtype], adapter, seed)
    kernels = tuple(Kernel(f"{name}_bandwidth", calls[name], float(PASSES[name] * size)) for name in PASSES)
    facts: dict[str, Scalar] = {
        "array_bytes": size,
        "input": f"normal random block of 1 MiB, seed {seed}",
        "kernels": how,
    }
    return Work(kernels, lambda rounds: judge(dtype, rounds, size // _ITEM_BYTES[dtype], *check(rounds)), facts)


Body = tuple[dict[str, Callable[[], object]], Callable[[int], tuple[float, float, float]], str]
"""The calls, the check (largest relative error, dot, dot's reference) after so many rounds, and how it is done."""


# --- torch ---------------------------------------------------------------------------------------------------------


def _torch_stream(dtype: str, count: int, adapter: Adapter, seed: int) -> Body:
    torch: Any = cast(TorchAdapter, adapter).torch
    device = cast(TorchAdapter, adapter).device
    kind = torch.float64 if dtype == "fp64" else torch.float32
    width = BLOCK_BYTES // _ITEM_BYTES[dtype]
    generator = torch.Generator(device).manual_seed(seed)
    block = torch.randn(width, dtype=kind, device=device, generator=generator)
    a, b, c = (torch.full((count,), math.nan, dtype=kind, device=device) for _ in range(3))
    a.view(-1, width).copy_(block)
    total = torch.full((), math.nan, dtype=kind, device=device)
    calls: dict[str, Callable[[], object]] = {
        "copy": lambda: c.copy_(a),
        "scale": lambda: torch.mul(c, SCALAR, out=b),
        "add": lambda: torch.add(a, b, out=c),
        "triad": lambda: torch.add(b, c, alpha=SCALAR, out=a),
        "dot": lambda: torch.dot(a, b, out=total),
    }

    def check(rounds: int) -> tuple[float, float, float]:
        factors = expected_factors(float(torch.tensor(SCALAR, dtype=kind)), rounds)
        arrays = [array.view(-1, width) for array in (a, b, c)]
        worst = max(_torch_worst(array, block.double() * factor) for array, factor in zip(arrays, factors, strict=True))
        reference = sum(float((x.double() * y.double()).sum()) for x, y in zip(*arrays[:2], strict=True))
        return worst, float(total), reference

    return calls, check, "torch copy_, mul, add, add with alpha (one pass), dot; all into existing arrays"


def _torch_worst(rows: Any, expected: Any) -> float:
    """The largest relative error of any row against the expected block; NaN where an element is NaN."""
    worst = (rows[0].double() - expected).abs()
    for row in rows[1:]:
        worst = worst.maximum((row.double() - expected).abs())
    return float((worst / expected.abs()).max())


# --- jax -----------------------------------------------------------------------------------------------------------


def _jax_stream(dtype: str, count: int, adapter: Adapter, seed: int) -> Body:
    adapter = cast(JaxAdapter, adapter)
    jax, jnp = adapter.jax, adapter.jnp
    kind = jnp.float64 if dtype == "fp64" else jnp.float32
    width = BLOCK_BYTES // _ITEM_BYTES[dtype]
    block = jax.random.normal(jax.random.key(seed), (width,), kind)
    state = {
        "a": jnp.tile(block, count // width),
        "b": jnp.full((count,), jnp.nan, kind),
        "c": jnp.full((count,), jnp.nan, kind),
        "total": jnp.full((), jnp.nan, kind),
    }
    scalar = kind(SCALAR)
    bodies: dict[str, tuple[str, tuple[str, ...], Callable[..., Any]]] = {
        "copy": ("c", ("a",), jnp.copy),
        "scale": ("b", ("c",), lambda c: scalar * c),
        "add": ("c", ("a", "b"), lambda a, b: a + b),
        "triad": ("a", ("b", "c"), lambda b, c: b + scalar * c),
        "dot": ("total", ("a", "b"), lambda a, b: jnp.dot(a, b, precision=jax.lax.Precision.HIGHEST)),
    }
    calls = {name: _jax_call(adapter, state, *body) for name, body in bodies.items()}

    def check(rounds: int) -> tuple[float, float, float]:
        factors = expected_factors(float(scalar), rounds)
        arrays = [state[name].reshape(-1, width) for name in "abc"]
        worst = max(
            _jax_worst(jnp, array, block.astype(jnp.float64) * factor)
            for array, factor in zip(arrays, factors, strict=True)
        )
        reference = sum(
            float((x.astype(jnp.float64) * y.astype(jnp.float64)).sum()) for x, y in zip(*arrays[:2], strict=True)
        )
        return worst, float(state["total"]), reference

    return calls, check, "jax.jit, one program a kernel; the result takes the old array's (donated) buffer"


def _jax_call(
    adapter: JaxAdapter, state: dict[str, Any], target: str, sources: tuple[str, ...], body: Callable[..., Any]
) -> Callable[[], object]:
    def kernel(old: Any, *arguments: Any) -> Any:
        return body(*arguments)

    compiled = adapter.compile(kernel, state[target], *(state[name] for name in sources), donate=0)

    def call() -> object:
        state[target] = compiled(state[target], *(state[name] for name in sources))
        return state[target]

    return call


def _jax_worst(jnp: Any, rows: Any, expected: Any) -> float:
    """As `_torch_worst`."""
    worst = jnp.abs(rows[0].astype(jnp.float64) - expected)
    for row in rows[1:]:
        worst = jnp.maximum(worst, jnp.abs(row.astype(jnp.float64) - expected))
    return float((worst / jnp.abs(expected)).max())
