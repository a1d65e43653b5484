"""Dense matrix products, C = A B, in every number format that matrix units take."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from engine.worker.adapters.base import Adapter
from engine.worker.adapters.jax import JaxAdapter
from engine.worker.adapters.torch import TorchAdapter
from engine.worker.card import BadParameter, Card, Metric, Parameter, Scalar, Value, Variant, chosen
from engine.worker.work import IncorrectResult, Kernel, Work

CHECKED_ROWS = 64
CHECKED_COLUMNS = 1024
INT8_DEVIATION = 32.0
_WORKSPACE_BYTES = 64 << 20
_EXACT_PRODUCTS = 1 << 18


@dataclass(frozen=True)
class Format:
    """A number format: bytes of an input and of a result, how B lies in memory, and the error that is still right.

    Errors are ||C - R|| / ||R|| over the checked rows, R in fp64 from the same rounded inputs; for fp64 itself also
    over a few elements with R exact. The bound is several times the rounding of the result (and of its partial sums)
    and far below what the next coarser format would give; `least_error` tells tf32 from fp32, slower and more exact.
    """

    input_bytes: int
    output_bytes: int
    layout: Literal["NN", "TN"]
    most_error: float
    least_error: float = 0.0


FORMATS: dict[str, Format] = {
    "fp64": Format(8, 8, "NN", 1e-12),
    "fp32": Format(4, 4, "NN", 2e-5),
    "tf32": Format(4, 4, "NN", 3e-3, 3e-5),
    "bf16": Format(2, 2, "NN", 1e-2),
    "fp16": Format(2, 2, "NN", 4e-3),
    "fp8": Format(1, 2, "TN", 2e-2),
    "int8": Format(1, 4, "TN", 0.0),
}
"""fp8 is e4m3 with bf16 results, int8 has int32 results. TN: B is kept as N x K and used transposed, as fp8 needs."""

CARD = Card(
    id="compute/gemm",
    title="Matrix product",
    measures="the rate of dense matrix products of normal random data, with inputs and output in device memory",
    metrics=(
        Metric(
            name="rate",
            unit="TFLOP/s",
            better="higher",
            work_unit="FLOP",
            scale=1e12,
            counting="2*M*N*K operations a product (a multiplication and an addition each); for int8, integer ones",
        ),
    ),
    parameters=(
        Parameter(
            name="dtypes",
            meaning="number formats of A and B; fp8 is e4m3",
            defaults={"cuda": list(FORMATS), "": ["fp64", "fp32", "bf16", "int8"]},
            allowed=tuple(FORMATS),
        ),
        Parameter(
            name="shapes",
            meaning="M x N x K of C (M x N) = A (M x K) B (K x N)",
            defaults={"cuda": ["8192x8192x8192"], "": ["1024x1024x1024"]},
            form='"MxNxK", such as "8192x8192x8192", each from 1 to 1048576',
        ),
    ),
    frameworks=("torch", "jax"),
    depends_on="matrix units, clocks under the power limit, and the BLAS library's choice of kernel",
    source="mamf-finder version 2 (stas00/ml-engineering): normal random inputs, one event pair an iteration; "
    "unlike it, caches are not flushed between iterations",
    seconds=8.0,
)


def parse_shape(text: Scalar) -> tuple[int, int, int]:
    """M, N, K of "MxNxK". Raises BadParameter."""
    found = re.fullmatch(r"(\d{1,7})x(\d{1,7})x(\d{1,7})", str(text))
    sizes = tuple(int(size) for size in found.groups()) if found else ()
    if not sizes or not all(1 <= size <= 1 << 20 for size in sizes):
        raise BadParameter(f"{CARD.id}: shapes has {text!r}; allowed: {CARD.parameters[1].form}")
    return cast("tuple[int, int, int]", sizes)


def variants(parameters: Mapping[str, Value], device_kind: str) -> list[Variant]:
    """Each number format with each shape. Raises BadParameter."""
    values = chosen(CARD, parameters, device_kind)
    shapes = ["x".join(str(size) for size in parse_shape(shape)) for shape in values["shapes"]]
    return [
        Variant(f"{dtype} {shape}", {"dtype": dtype, "shape": shape}) for dtype in values["dtypes"] for shape in shapes
    ]


def flop(shape: tuple[int, int, int]) -> float:
    """Operations of one product: 2*M*N*K."""
    m, n, k = shape
    return 2.0 * m * n * k


def needed_bytes(dtype: str, shape: tuple[int, int, int]) -> int:
    """The most memory that a trial holds at once: A, B, C, and the making of inputs or the check beside them."""
    m, n, k = shape
    form = FORMATS[dtype]
    resident = (m * k + k * n) * form.input_bytes + m * n * form.output_bytes
    making = 2 * 4 * max(m * k, k * n) if form.input_bytes == 1 else 0
    checking = 8 * (CHECKED_ROWS * (k + 3 * n) + min(n, CHECKED_COLUMNS) * k) + m * n
    return resident + max(making, checking) + _WORKSPACE_BYTES


def judge(dtype: str, error: float, unwritten: int) -> dict[str, Scalar]:
    """The check's facts. Raises IncorrectResult for unwritten elements and an error outside the format's bounds."""
    form = FORMATS[dtype]
    if unwritten:
        raise IncorrectResult(f"{unwritten} elements of the {dtype} product are NaN or were never written")
    # Written so that NaN fails.
    if not error <= form.most_error:
        raise IncorrectResult(f"the {dtype} product is off by {error:.2e} (relative); allowed: {form.most_error:.0e}")
    if error < form.least_error:
        raise IncorrectResult(f"the {dtype} product is off by only {error:.2e}: it was computed in a finer format")
    return {"check_error": error, "check_bound": form.most_error, "check_rows": CHECKED_ROWS}


def exact_dot(row: Sequence[float], column: Sequence[float]) -> float:
    """The dot product of two fp64 vectors, rounded once.

    Each product is split into its rounded value and its exact error (Dekker 1971, with Veltkamp's splitting), and
    math.fsum adds all of them exactly.
    """
    terms: list[float] = []
    for x, y in zip(row, column, strict=True):
        product = x * y
        x_high, x_low = _halves(x)
        y_high, y_low = _halves(y)
        terms += (product, x_low * y_low - (((product - x_high * y_high) - x_low * y_high) - x_high * y_low))
    return math.fsum(terms)


def _halves(x: float) -> tuple[float, float]:
    scaled = 134217729.0 * x
    high = scaled - (scaled - x)
    return high, x - high


def exact_places(shape: tuple[int, int, int], seed: int) -> list[tuple[int, int]]:
    """Random elements of C for `exact_dot`: up to 32, fewer where K is so large that they would take long."""
    m, n, k = shape
    chance = random.Random(seed)  # noqa: S311 - a sample, not a secret
    return [(chance.randrange(m), chance.randrange(n)) for _ in range(max(1, min(32, _EXACT_PRODUCTS // k)))]


def exact_error(a: Any, b: Any, c: Any, seed: int) -> float:
    """The relative error of a few elements of an fp64 product (torch or JAX), against exact dot products."""
    places = exact_places((*c.shape, a.shape[1]), seed)
    right = [exact_dot(a[row].tolist(), b[:, column].tolist()) for row, column in places]
    off = math.fsum((float(c[place]) - value) ** 2 for place, value in zip(places, right, strict=True))
    return _ratio(off, math.fsum(value**2 for value in right))


def _ratio(off: float, size: float) -> float:
    return math.sqrt(off / size) if size else math.sqrt(off)


def _facts(dtype: str, seed: int, algorithm: str) -> dict[str, Scalar]:
    return {
        "layout": FORMATS[dtype].layout,
        "input": f"normal random, seed {seed}",
        "output": "one buffer, written anew by each iteration",
        "algorithm": algorithm,
    }


def prepare(parameters: Mapping[str, Value], adapter: Adapter, seed: int) -> Work:
    """One product. Raises Unsupported, OutOfMemory, and BadParameter."""
    dtype = str(parameters.get("dtype"))
    if dtype not in FORMATS:
        raise BadParameter(f"{CARD.id}: dtype has {dtype!r}; allowed: {', '.join(FORMATS)}")
    shape = parse_shape(cast(Scalar, parameters.get("shape")))
    adapter.require(dtype)
    adapter.reserve(needed_bytes(dtype, shape), f"a {dtype} product of {parameters['shape']}")
    body = {"torch": _torch_product, "jax": _jax_product}[adapter.framework]
    call, check, algorithm = body(dtype, shape, adapter, seed)

    def checked(rounds: int) -> dict[str, Scalar]:
        return judge(dtype, *check())

    return Work((Kernel("rate", call, flop(shape)),), checked, _facts(dtype, seed, algorithm))


Body = tuple[Callable[[], object], Callable[[], tuple[float, int]], str]
"""The call, the check (relative error of the sampled rows, elements not written), and the operator's name."""


# --- torch ---------------------------------------------------------------------------------------------------------


def _torch_product(dtype: str, shape: tuple[int, int, int], adapter: Adapter, seed: int) -> Body:
    torch: Any = cast(TorchAdapter, adapter).torch
    device = cast(TorchAdapter, adapter).device
    m, n, k = shape
    # Some builds (NVIDIA's containers) turn tf32 on for fp32 products; here each is what its name says.
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    generator = torch.Generator(device).manual_seed(seed)
    a = _torch_input(torch, dtype, (m, k), generator)
    b = _torch_input(torch, dtype, (n, k), generator).t() if dtype in ("fp8", "int8") else None
    b = _torch_input(torch, dtype, (k, n), generator) if b is None else b
    c = _torch_poisoned(torch, dtype, (m, n), device)
    call, algorithm = _torch_call(torch, dtype, a, b, c)

    def check() -> tuple[float, int]:
        error, unwritten = _torch_error(torch, a, b, c, seed)
        return max(error, exact_error(a, b, c, seed)) if dtype == "fp64" else error, unwritten

    return call, check, algorithm


def _torch_input(torch: Any, dtype: str, shape: tuple[int, int], generator: Any) -> Any:
    made_as = {"fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype, torch.float32)
    values = torch.randn(shape, dtype=made_as, device=generator.device, generator=generator)
    if dtype == "int8":
        return values.mul_(INT8_DEVIATION).round_().clamp_(-127, 127).to(torch.int8)
    return values.to(torch.float8_e4m3fn) if dtype == "fp8" else values


def _torch_poisoned(torch: Any, dtype: str, shape: tuple[int, int], device: Any) -> Any:
    if dtype == "int8":
        return torch.full(shape, torch.iinfo(torch.int32).min, dtype=torch.int32, device=device)
    made_as = {"fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}
    return torch.full(shape, float("nan"), dtype=made_as.get(dtype, torch.float32), device=device)


def _torch_call(torch: Any, dtype: str, a: Any, b: Any, c: Any) -> tuple[Callable[[], object], str]:
    if dtype == "int8":
        return lambda: torch._int_mm(a, b, out=c), "torch._int_mm"
    if dtype == "fp8":
        one = torch.ones((), device=a.device)
        # Fast accumulation is off, which is the operator's default: sums are kept in fp32.
        return lambda: torch._scaled_mm(a, b, one, one, out_dtype=c.dtype, out=c), "torch._scaled_mm, exact sums"
    return lambda: torch.mm(a, b, out=c), "torch.mm"


def _torch_error(torch: Any, a: Any, b: Any, c: Any, seed: int) -> tuple[float, int]:
    """The relative error of a sample of rows against fp64, and how many elements of C are NaN or still poison."""
    poison = c == torch.iinfo(c.dtype).min if c.dtype == torch.int32 else torch.isnan(c)
    unwritten = int(poison.sum())
    rows = torch.randperm(a.shape[0], generator=torch.Generator().manual_seed(seed))[:CHECKED_ROWS].to(a.device)
    # Types of one byte cannot be indexed on every device, so whole rows are picked as bytes.
    picked = a.view(torch.uint8)[rows].view(a.dtype).double() if a.element_size() == 1 else a[rows].double()
    off = size = 0.0
    for first in range(0, c.shape[1], CHECKED_COLUMNS):
        columns = slice(first, first + CHECKED_COLUMNS)
        reference = picked @ b[:, columns].double()
        off += float((c[rows, columns].double() - reference).square().sum())
        size += float(reference.square().sum())
    return _ratio(off, size), unwritten


# --- jax -----------------------------------------------------------------------------------------------------------


def _jax_product(dtype: str, shape: tuple[int, int, int], adapter: Adapter, seed: int) -> Body:
    adapter = cast(JaxAdapter, adapter)
    jax, jnp = adapter.jax, adapter.jnp
    m, n, k = shape
    keys = jax.random.split(jax.random.key(seed), 2)
    transposed = FORMATS[dtype].layout == "TN"
    a = _jax_input(jax, jnp, dtype, (m, k), keys[0])
    b = _jax_input(jax, jnp, dtype, (n, k) if transposed else (k, n), keys[1])
    c = _jax_poisoned(jnp, dtype, (m, n))
    product = adapter.compile(_jax_dot(jax, dtype, transposed, c.dtype), a, b, c, donate=2)
    adapter.refuse_emulation(product, dtype)
    state = [c]

    def call() -> object:
        state[0] = product(a, b, state[0])
        return state[0]

    def check() -> tuple[float, int]:
        error, unwritten = _jax_error(jax, jnp, a, b.T if transposed else b, state[0], seed)
        return max(error, exact_error(a, b, state[0], seed)) if dtype == "fp64" else error, unwritten

    return call, check, "lax.dot_general, result in the previous one's (donated) buffer"


def _jax_dot(jax: Any, dtype: str, transposed: bool, result: Any) -> Callable[[Any, Any, Any], Any]:
    lax = jax.lax
    # fp32 is exact only at the highest precision; tf32 is asked for by name, so that nothing else passes for it.
    exact = lax.Precision.HIGHEST if dtype in ("fp64", "fp32") else None
    precision = lax.DotAlgorithmPreset.TF32_TF32_F32 if dtype == "tf32" else exact
    contract = ((1,), (1 if transposed else 0,))

    def product(a: Any, b: Any, previous: Any) -> Any:
        return lax.dot_general(a, b, (contract, ((), ())), precision=precision, preferred_element_type=result)

    return product


def _jax_input(jax: Any, jnp: Any, dtype: str, shape: tuple[int, int], key: Any) -> Any:
    made_as = {"fp64": jnp.float64, "bf16": jnp.bfloat16, "fp16": jnp.float16}.get(dtype, jnp.float32)
    values = jax.random.normal(key, shape, made_as)
    if dtype == "int8":
        return jnp.clip(jnp.round(values * INT8_DEVIATION), -127, 127).astype(jnp.int8)
    return values.astype(jnp.float8_e4m3fn) if dtype == "fp8" else values


def _jax_poisoned(jnp: Any, dtype: str, shape: tuple[int, int]) -> Any:
    if dtype == "int8":
        return jnp.full(shape, jnp.iinfo(jnp.int32).min, jnp.int32)
    made_as = {"fp64": jnp.float64, "bf16": jnp.bfloat16, "fp16": jnp.float16, "fp8": jnp.bfloat16}
    return jnp.full(shape, jnp.nan, made_as.get(dtype, jnp.float32))


def _jax_error(jax: Any, jnp: Any, a: Any, b: Any, c: Any, seed: int) -> tuple[float, int]:
    """As `_torch_error`."""
    poison = c == jnp.iinfo(jnp.int32).min if c.dtype == jnp.int32 else jnp.isnan(c)
    unwritten = int(poison.sum())
    rows = jax.random.permutation(jax.random.key(seed), a.shape[0])[:CHECKED_ROWS]
    picked = a[rows].astype(jnp.float64)
    off = size = 0.0
    for first in range(0, c.shape[1], CHECKED_COLUMNS):
        columns = slice(first, first + CHECKED_COLUMNS)
        reference = jnp.matmul(picked, b[:, columns].astype(jnp.float64), precision=jax.lax.Precision.HIGHEST)
        off += float(jnp.square(c[rows, columns].astype(jnp.float64) - reference).sum())
        size += float(jnp.square(reference).sum())
    return _ratio(off, size), unwritten
