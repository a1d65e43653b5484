"""The whole product as an arm of the benchmarks: the same count every time, and a median per metric."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from tests.benchmarks import pairs
from tests.benchmarks.product import Product
from tests.program import Program


@pytest.fixture
def spec() -> dict[str, object]:
    pytest.importorskip("torch", reason="cannot here: no torch in the tests' interpreter")
    options = argparse.Namespace(device="cpu", seed=0, seconds=0.1)
    return pairs.spec_for("compute/gemm", {"dtype": "fp32", "shape": "64x64x64"}, options)


def test_every_run_of_the_product_does_the_count_of_the_first(
    program: Program, spec: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in program.environment.items():
        monkeypatch.setenv(name, value)
    arm = Product(program.command(), sys.executable, spec, program.home)
    arm.calibrate()
    assert arm.counts["rate"] > 0
    assert arm.device == "cpu"
    for _ in range(2):  # medians() ends the benchmark where a count differs
        assert arm.medians()["rate"] > 0


def test_a_product_that_fails_ends_the_benchmark_with_its_last_line(tmp_path: Path, spec: dict[str, object]) -> None:
    arm = Product([sys.executable, "-c", "import sys; sys.exit('out of order')"], sys.executable, spec, tmp_path)
    with pytest.raises(SystemExit, match=r"code 1: .*out of order"):
        arm.calibrate()
