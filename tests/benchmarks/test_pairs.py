"""The statistics and the driving of the benchmarks that compare us with plain loops."""

from __future__ import annotations

import argparse

import pytest

from tests.benchmarks import gemm_against_plain_torch, pairs


@pytest.mark.parametrize(
    ("n", "low", "high"), [(6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (12, 3, 10), (20, 6, 15), (30, 10, 21)]
)
def test_the_interval_is_the_exact_one_of_order_statistics(n: int, low: int, high: int) -> None:
    assert pairs.interval([float(number) for number in range(n, 0, -1)]) == (low, high)


def test_fewer_than_six_pairs_have_no_interval() -> None:
    with pytest.raises(ValueError, match="six are needed"):
        pairs.interval([1.0] * 5)


def test_orders_are_balanced_blocks_by_a_seeded_coin() -> None:
    orders = pairs.orders(40, 1)
    assert orders == pairs.orders(40, 1)
    blocks = {tuple(orders[first : first + 2]) for first in range(0, 40, 2)}
    assert blocks == {("AB", "BA"), ("BA", "AB")}
    assert len(pairs.orders(7, 1)) == 7


def test_a_ratio_is_ours_over_plain_pair_by_pair() -> None:
    ours = [{"rate": 2.0 + number} for number in range(6)]
    plain = [{"rate": 1.0 + number} for number in range(6)]
    found = pairs.summary(ours, plain)["rate"]
    assert found["ratio"] == pytest.approx([2, 3 / 2, 4 / 3, 5 / 4, 6 / 5, 7 / 6])
    assert found["interval_95"] == pytest.approx([7 / 6, 2])


def test_both_arms_run_here() -> None:
    options = argparse.Namespace(device="cpu", seed=0, seconds=0.02)
    spec = pairs.spec_for("compute/gemm", {"dtype": "fp32", "shape": "64x64x64"}, options)
    ran = pairs.run_worker({**spec, "counts": {}})
    task = {"device": "cpu", "dtype": "fp32", "shape": "64x64x64", "seed": 0, "count": 10, "warmup_s": 0.01}
    plain = pairs.run_plain(str(gemm_against_plain_torch.__file__), task)
    assert ran.counts["rate"] > 0
    assert ran.medians()["rate"] > 0
    assert plain["rate"] > 0


def test_a_worker_that_fails_ends_the_benchmark_with_its_reason() -> None:
    options = argparse.Namespace(device="cpu", seed=0, seconds=0.02)
    spec = pairs.spec_for("compute/gemm", {"dtype": "fp8", "shape": "64x64x64"}, options)
    with pytest.raises(SystemExit, match=r"the worker failed \(unsupported\): not supported by device"):
        pairs.run_worker({**spec, "counts": {}})
