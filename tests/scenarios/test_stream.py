"""STREAM: its numbers by hand, its check against kernels that are wrong, and real trials."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from engine.worker.adapters.base import Adapter
from engine.worker.adapters.jax import JaxAdapter
from engine.worker.adapters.torch import TorchCpu
from engine.worker.card import BadParameter
from engine.worker.work import IncorrectResult, OutOfMemory, Work
from scenarios.memory import stream
from tests.scenarios.test_gemm import Sabotaged
from tests.worker.driving import a_spec, drive

MIB = 1 << 20


def open_adapter(framework: str) -> Adapter:
    """The framework on this machine's processor."""
    return TorchCpu() if framework == "torch" else JaxAdapter("cpu", 0)


def prepared(adapter: Adapter, dtype: str = "fp64", size: str = "1 MiB") -> Work:
    """Small arrays."""
    return stream.prepare({"dtype": dtype, "size": size}, adapter, 5)


def test_bytes_are_counted_as_stream_does() -> None:
    work = prepared(TorchCpu(), size="2 MiB")
    assert {kernel.metric: kernel.work / MIB for kernel in work.kernels} == {
        "copy_bandwidth": 4,
        "scale_bandwidth": 4,
        "add_bandwidth": 6,
        "triad_bandwidth": 6,
        "dot_bandwidth": 4,
    }
    assert [metric.name for metric in stream.CARD.metrics] == [kernel.metric for kernel in work.kernels]


@pytest.mark.parametrize(
    ("parameters", "kind", "names"),
    [
        ({}, "cuda", ["fp32 1 GiB"]),
        ({"sizes": "1024 MiB", "dtypes": ["fp32", "fp64"]}, "cpu", ["fp32 1 GiB", "fp64 1 GiB"]),
        ({"sizes": ["1536 MiB", "64MiB"]}, "cuda", ["fp32 1536 MiB", "fp32 64 MiB"]),
    ],
)
def test_variants_are_named_by_the_size_of_one_array(parameters: dict[str, Any], kind: str, names: list[str]) -> None:
    assert [variant.name for variant in stream.variants(parameters, kind)] == names


def test_the_default_on_a_processor_is_resolved_when_the_plan_is_made() -> None:
    (variant,) = stream.variants({}, "cpu")
    assert variant.name == f"fp64 {stream.size_text(stream.auto_bytes())}"
    assert stream.parse_size(str(variant.parameters["size"])) == stream.auto_bytes()


@pytest.mark.parametrize(
    ("cache", "memory_kb", "mib"), [("32768K", 64 << 20, 256), ("131072K", 64 << 20, 512), ("491520K", 8 << 20, 1024)]
)
def test_the_default_on_a_processor_is_beyond_its_cache_and_within_its_memory(
    tmp_path: Path, cache: str, memory_kb: int, mib: int
) -> None:
    for name, text in (("sys/devices/system/cpu/cpu0/cache/index3/size", cache), ("proc/meminfo", memory_kb)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"MemTotal: {text} kB\n" if name == "proc/meminfo" else f"{text}\n")
    assert stream.auto_bytes(tmp_path) == mib * MIB


@pytest.mark.parametrize("size", ["1 GB", "0 MiB", "1.5 GiB", "-1 MiB", 3, ""])
def test_a_bad_size_is_refused_with_what_is_allowed(size: Any) -> None:
    with pytest.raises(BadParameter, match='allowed: "auto", or a whole number of MiB or GiB'):
        stream.variants({"sizes": [size]}, "cpu")


def test_a_round_takes_the_arrays_to_known_multiples() -> None:
    # By hand, with s = 2 and a = 1: c = 1, b = 2, c = 1 + 2 = 3, a = 2 + 2*3 = 8; once more: c = 8, b = 16, c = 24.
    assert stream.expected_factors(2.0, 1) == (8.0, 2.0, 3.0)
    assert stream.expected_factors(2.0, 2) == (64.0, 16.0, 24.0)
    assert stream.expected_factors(stream.SCALAR, 1000)[0] == pytest.approx(1.00001**1000, rel=1e-9)


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("rounds", [1, 40])
def test_right_kernels_pass(framework: str, dtype: str, rounds: int) -> None:
    adapter = open_adapter(framework)
    work = prepared(adapter, dtype)
    adapter.run([kernel.call for kernel in work.kernels], rounds)
    facts = work.check(adapter.rounds)
    assert facts["check_rounds"] == rounds
    assert 0 <= float(facts["check_error"]) <= float(facts["check_bound"])


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_calling_a_kernel_again_changes_nothing_so_that_groups_can_be_timed(framework: str) -> None:
    adapter = open_adapter(framework)
    work = prepared(adapter)
    adapter.time([kernel.call for kernel in work.kernels], 3, 4)
    assert work.check(adapter.rounds)["check_rounds"] == 3


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("missing", range(5))
def test_a_kernel_that_does_nothing_is_found(framework: str, missing: int) -> None:
    adapter = open_adapter(framework)
    work = prepared(adapter)
    calls = [kernel.call for number, kernel in enumerate(work.kernels) if number != missing]
    adapter.run(calls, 3)
    with pytest.raises(IncorrectResult):
        work.check(adapter.rounds)


def _half_an_add(a: Any, b: Any, *, out: Any, alpha: float = 1.0) -> None:
    """Leaves the second half of the output as it was."""
    half = out.numel() // 2
    out[:half] = a[:half] + alpha * b[:half]


def _nearly_mul(a: Any, s: float, *, out: Any) -> None:
    """Is off by a hundredth of a percent in one element."""
    out.copy_(a * s)[12345] *= 1.0001


def _wrong_dot(a: Any, b: Any, *, out: Any) -> None:
    """Sums half of the products."""
    out.copy_((a[::2] * b[::2]).sum())


@pytest.mark.parametrize("wrong", [{"add": _half_an_add}, {"mul": _nearly_mul}, {"dot": _wrong_dot}])
def test_a_wrong_kernel_is_found(wrong: dict[str, Any]) -> None:
    adapter = TorchCpu()
    adapter.torch = Sabotaged(adapter.torch, **wrong)
    work = prepared(adapter)
    adapter.run([kernel.call for kernel in work.kernels], 2)
    with pytest.raises(IncorrectResult):
        work.check(adapter.rounds)


def test_nan_is_incorrect() -> None:
    with pytest.raises(IncorrectResult, match="an element is off by nan"):
        stream.judge("fp64", 10, 100, math.nan, 1.0, 1.0)
    with pytest.raises(IncorrectResult, match="dot gave nan"):
        stream.judge("fp64", 10, 100, 0.0, math.nan, 1.0)


def test_arrays_that_do_not_fit_are_refused_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = TorchCpu()
    monkeypatch.setattr(adapter, "free_bytes", lambda: 3 * MIB)
    with pytest.raises(OutOfMemory, match=r"STREAM with three arrays of 1 MiB needs 0\.07 GB of memory, 0\.00 GB"):
        prepared(adapter)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_trial_reports_five_bandwidths(framework: str) -> None:
    spec = a_spec(scenario="memory/stream", framework=framework, parameters={"dtype": "fp64", "size": "4 MiB"})
    ended = drive(spec)
    metrics = ended.result["metrics"]
    assert [metric["metric"] for metric in metrics] == [metric.name for metric in stream.CARD.metrics]
    assert len({metric["count"] for metric in metrics}) == 1
    assert {metric["unit"] for metric in metrics} == {"GB/s"}
    for metric in metrics:
        assert min(ended.durations_s(metric["metric"])) > 0
    assert ended.result["facts"]["array_bytes"] == 4 * MIB
