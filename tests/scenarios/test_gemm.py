"""The matrix product: its numbers by hand, its check against kernels that are wrong, and real trials."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from engine.worker.adapters import host
from engine.worker.adapters.base import Adapter
from engine.worker.adapters.jax import JaxAdapter
from engine.worker.adapters.torch import TorchCpu
from engine.worker.card import BadParameter, Variant
from engine.worker.work import IncorrectResult, OutOfMemory, Unsupported, Work
from scenarios.compute import gemm
from tests.worker.driving import a_spec, drive

SHAPE = "96x40x64"


def test_a_product_has_two_operations_for_each_multiplication() -> None:
    assert gemm.flop((2, 3, 4)) == 48.0
    assert gemm.flop((8192, 8192, 8192)) == 1_099_511_627_776.0


def test_variants_are_each_format_with_each_shape() -> None:
    parameters: dict[str, Any] = {"dtypes": ["bf16", "int8"], "shapes": ["8x4x2", "1x1x1"]}
    names = [variant.name for variant in gemm.variants(parameters, "cuda")]
    assert names == ["bf16 8x4x2", "bf16 1x1x1", "int8 8x4x2", "int8 1x1x1"]
    assert gemm.variants({"dtypes": "fp64", "shapes": "8x4x2"}, "cpu") == [
        Variant("fp64 8x4x2", {"dtype": "fp64", "shape": "8x4x2"})
    ]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("cpu", [f"{dtype} 1024x1024x1024" for dtype in ("fp64", "fp32", "bf16", "int8")]),
        ("cuda", [f"{one} 8192x8192x8192" for one in ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")]),
    ],
)
def test_defaults_fit_the_device(kind: str, names: list[str]) -> None:
    assert [variant.name for variant in gemm.variants({}, kind)] == names


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"dtypes": ["fp7"]}, "dtypes has 'fp7'; allowed: fp64, fp32, tf32, bf16, fp16, fp8, int8"),
        ({"shapes": ["0x1x1"]}, "shapes has '0x1x1'; allowed: "),
        ({"shapes": ["1x1"]}, "shapes has '1x1'"),
        ({"shapes": ["2000000x1x1"]}, "shapes has '2000000x1x1'"),
        ({"shapes": []}, "shapes is empty"),
        ({"size": 3}, "no parameter 'size'; it has: dtypes, shapes"),
    ],
)
def test_a_bad_parameter_is_refused_with_what_is_allowed(parameters: dict[str, Any], text: str) -> None:
    with pytest.raises(BadParameter) as caught:
        gemm.variants(parameters, "cuda")
    assert text in str(caught.value)


def test_needed_bytes_are_inputs_output_and_the_larger_of_making_and_checking() -> None:
    checking = 8 * (64 * (8 + 3 * 4) + 4 * 8) + 2 * 4
    assert gemm.needed_bytes("fp64", (2, 4, 8)) == 8 * (16 + 32 + 8) + checking + (64 << 20)
    size = 8192 * 8192
    assert gemm.needed_bytes("fp8", (8192,) * 3) == size * (1 + 1 + 2) + 2 * 4 * size + (64 << 20)


@pytest.mark.parametrize(
    ("dtype", "error", "unwritten", "text"),
    [
        ("bf16", 0.02, 0, "off by 2.00e-02"),
        ("fp64", float("nan"), 0, "off by nan"),
        ("int8", 1e-9, 0, "off by"),
        ("fp32", 1e-7, 3, "3 elements of the fp32 product are NaN or were never written"),
        ("tf32", 1e-6, 0, "computed in a finer format"),
        ("fp32", 3e-4, 0, "off by 3.00e-04"),
    ],
)
def test_an_error_outside_a_formats_bounds_is_incorrect(dtype: str, error: float, unwritten: int, text: str) -> None:
    with pytest.raises(IncorrectResult, match=text):
        gemm.judge(dtype, error, unwritten)


def test_an_exact_dot_product_keeps_what_fp64_loses() -> None:
    assert gemm.exact_dot([1e16, 1.0, -1e16], [1.0, 1.0, 1.0]) == 1.0
    third, tenth = 1 / 3, 0.1
    exact = 2 * Fraction(third) * Fraction(tenth) + Fraction(7, 8)
    assert gemm.exact_dot([third, third, 7.0], [tenth, tenth, 0.125]) == float(exact)
    assert gemm.exact_dot([third, third], [third, -third]) == 0.0


def test_exact_elements_are_fewer_for_longer_sums() -> None:
    assert len(gemm.exact_places((100, 50, 8192), 1)) == 32
    assert len(gemm.exact_places((100, 50, 1 << 20), 1)) == 1
    assert all(row < 3 and column < 2 for row, column in gemm.exact_places((3, 2, 1), 1))


class Sabotaged:
    """The torch module with one function replaced."""

    def __init__(self, torch: Any, **replaced: Any) -> None:
        self._torch = torch
        self._replaced = replaced

    def __getattr__(self, name: str) -> Any:
        return self._replaced.get(name) or getattr(self._torch, name)


def prepared(adapter: Adapter, dtype: str = "fp32", rounds: int = 1) -> Work:
    """A small product, run a few times."""
    work = gemm.prepare({"dtype": dtype, "shape": SHAPE}, adapter, 3)
    adapter.run([kernel.call for kernel in work.kernels], rounds)
    return work


def _not_at_all(a: Any, b: Any, out: Any) -> None:
    """Writes nothing."""


def _one_element_missing(a: Any, b: Any, out: Any) -> None:
    out.copy_(a @ b)[5, 7] = float("nan")


def _slightly_off(a: Any, b: Any, out: Any) -> None:
    out.copy_(a @ b).mul_(1.0001)


def _in_bf16(a: Any, b: Any, out: Any) -> None:
    out.copy_((a.bfloat16() @ b.bfloat16()).float())


def _transposed(a: Any, b: Any, out: Any) -> None:
    out.copy_((b.T @ a.T).T.flip(0))


@pytest.mark.parametrize("wrong", [_not_at_all, _one_element_missing, _slightly_off, _in_bf16, _transposed])
def test_a_wrong_torch_product_is_found(wrong: Callable[..., None]) -> None:
    adapter = TorchCpu()
    adapter.torch = Sabotaged(adapter.torch, mm=wrong)
    with pytest.raises(IncorrectResult):
        prepared(adapter).check(1)


def test_int8_elements_that_are_not_written_are_found() -> None:
    adapter = TorchCpu()
    if adapter.supports("int8"):
        pytest.skip(f"cannot here: {adapter.supports('int8')}")
    adapter.torch = Sabotaged(adapter.torch, _int_mm=_not_at_all)
    with pytest.raises(IncorrectResult, match="3840 elements of the int8 product"):
        prepared(adapter, "int8").check(1)


@pytest.mark.parametrize("factor", [1.0001, float("nan")])
def test_a_wrong_jax_product_is_found(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = JaxAdapter("cpu", 0)
    compile_right = adapter.compile

    def compile_wrong(function: Any, *examples: Any, donate: int | None = None) -> Any:
        return compile_right(lambda a, b, c: function(a, b, c) * factor, *examples, donate=donate)

    monkeypatch.setattr(adapter, "compile", compile_wrong)
    with pytest.raises(IncorrectResult):
        prepared(adapter).check(1)


def test_jax_refuses_to_pass_bf16_off_as_something_else() -> None:
    adapter = JaxAdapter("cpu", 0)
    with pytest.raises(Unsupported, match=r"not supported by (device|framework)"):
        prepared(adapter, "bf16")


def test_what_is_predicted_not_to_fit_is_not_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = TorchCpu()
    monkeypatch.setattr(adapter, "free_bytes", lambda: gemm.needed_bytes("fp32", (96, 40, 64)) - 1)
    adapter.torch = None  # any use of it would fail
    with pytest.raises(OutOfMemory, match=f"a fp32 product of {SHAPE} needs"):
        prepared(adapter)


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16", "int8"])
def test_torch_products_are_right_or_unsupported(dtype: str) -> None:
    adapter = TorchCpu()
    if reason := adapter.supports(dtype):
        pytest.skip(f"cannot here: {reason}")
    work = prepared(adapter, dtype, rounds=2)
    facts = work.check(adapter.rounds)
    assert work.kernels[0].work == 2 * 96 * 40 * 64
    assert work.facts["layout"] == ("TN" if dtype == "int8" else "NN")
    assert facts["check_rows"] == 64
    assert 0 <= float(facts["check_error"]) <= float(facts["check_bound"])


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "int8"])
def test_jax_products_are_right(dtype: str) -> None:
    adapter = JaxAdapter("cpu", 0)
    if reason := adapter.supports(dtype):
        pytest.skip(f"cannot here: {reason}")
    assert prepared(adapter, dtype, rounds=3).check(3)["check_rows"] == 64


def test_equal_seeds_give_equal_inputs() -> None:
    def product(seed: int) -> Any:
        work = gemm.prepare({"dtype": "fp64", "shape": SHAPE}, TorchCpu(), seed)
        return work.kernels[0].call()

    assert (product(1) == product(1)).all()
    assert (product(1) != product(2)).any()


@pytest.mark.parametrize(
    ("framework", "timer"), [("torch", "monotonic clock"), ("jax", "monotonic clock, fetch blocked")]
)
def test_a_trial_reports_its_rate(framework: str, timer: str) -> None:
    spec = a_spec(scenario="compute/gemm", framework=framework, parameters={"dtype": "fp32", "shape": "256x256x256"})
    ended = drive(spec)
    (metric,) = ended.result["metrics"]
    assert metric["work"] == 2 * 256**3
    assert (metric["unit"], metric["scale"], metric["timer"]) == ("TFLOP/s", 1e12, timer)
    durations_s = ended.durations_s("rate")
    group = ended.of("iterations")[0]["group"]
    assert len(durations_s) == -(-metric["count"] // group)
    assert min(durations_s) > 0
    facts = ended.result["facts"]
    assert facts["framework"] == framework
    assert facts["device_name"] == host.processor_name()
    assert 0 < facts["check_error"] <= facts["check_bound"]
