"""The paired degradation and its interval, against hand-computed values, scipy-free recomputation and a recording."""

from __future__ import annotations

import functools
import math
import random
from pathlib import Path

import msgspec
import pytest

from engine import runfolder
from engine.analysis.paired import LEAST_PAIRS, Comparison, compare_arms, order_statistics
from engine.journal import read_events
from engine.session import Measurement, fold
from engine.values import Missing

RECORDED = Path(__file__).parent.parent / "fixtures" / "sessions" / "h200-bare-podman" / runfolder.JOURNAL


@pytest.mark.parametrize(
    ("n", "k", "coverage"),
    [(6, 1, 0.96875), (10, 2, 0.978515625), (12, 3, 0.96142578125), (20, 6, 0.9586105), (30, 10, 0.9572261)],
)
def test_the_ranks_of_the_interval(n: int, k: int, coverage: float) -> None:
    """Binomial tables: n=6 takes the extremes, n=10 the second, n=20 the sixth."""
    found = order_statistics(n)
    assert found is not None
    assert found[0] == k
    assert found[1] == pytest.approx(coverage, abs=1e-6)


@pytest.mark.parametrize("n", range(LEAST_PAIRS))
def test_fewer_than_six_pairs_have_no_interval(n: int) -> None:
    assert order_statistics(n) is None


@functools.cache
def recorded() -> tuple[Measurement, ...]:
    """What the two arms measured on an H200."""
    return fold(read_events(RECORDED)).measurements


def measured(pair: int, arm: str, value: float, *, better: str = "higher", slot: int = 1) -> Measurement:
    """A measurement of one pair."""
    return msgspec.structs.replace(recorded()[0], pair=pair, environment=arm, median=value, better=better, slot=slot)


def compared(*pairs: tuple[float, float], better: str = "higher") -> Comparison:
    halves = [
        measured(number, arm, value, better=better, slot=1 + (arm == "podman"))
        for number, values in enumerate(pairs, 1)
        for arm, value in zip(("bare", "podman"), values, strict=True)
    ]
    (found,) = compare_arms(halves, "bare", "podman")
    return found


def test_plus_is_worse_for_rates_and_for_durations() -> None:
    slower = compared(*[(100.0, 80.0)] * 6)
    assert slower.degradation == pytest.approx(0.25)
    assert [slower.low, slower.high] == pytest.approx([0.25, 0.25])
    assert compared(*[(1.0, 1.25)] * 6, better="lower").degradation == pytest.approx(0.25)
    assert compared(*[(80.0, 100.0)] * 6).degradation == pytest.approx(-0.2)


def test_ten_pairs_by_hand() -> None:
    """Others of 100/1.01 … 100/1.10: the median ratio is sqrt(1.05*1.06), the interval [1.02, 1.09]."""
    found = compared(*[(100.0, 100.0 / (1 + step / 100)) for step in range(1, 11)])
    assert found.degradation == pytest.approx(math.sqrt(1.05 * 1.06) - 1)
    assert [found.low, found.high] == pytest.approx([0.02, 0.09])
    assert found.coverage == pytest.approx(0.978515625)


def test_few_pairs_give_a_figure_and_no_interval() -> None:
    found = compared((100.0, 90.0), (100.0, 91.0))
    assert found.n == 2
    assert isinstance(found.low, Missing)
    assert "2 pairs are too few" in found.low.missing


def test_a_pair_without_its_other_half_is_left_out() -> None:
    halves = [measured(1, "bare", 1.0), measured(1, "podman", 1.0), measured(2, "bare", 5.0), measured(3, "other", 2.0)]
    (found,) = compare_arms(halves, "bare", "podman")
    assert [pair.pair for pair in found.pairs] == [1]
    assert compare_arms(halves, "bare", "nothing") == []


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    """Skewed differences with median 0, where a t interval would miss; 2000 seeded runs of ten pairs."""
    chance = random.Random(7)
    held = 0
    for _ in range(2000):
        draws = sorted(chance.expovariate(1.0) - math.log(2) for _ in range(10))
        held += draws[1] <= 0 <= draws[8]
    assert 0.968 <= held / 2000 <= 0.988


def test_the_recording_of_an_h200_shows_no_cost_that_ten_pairs_can_see() -> None:
    found = {each.metric: each for each in compare_arms(recorded(), "bare", "podman")}
    assert set(found) == {"rate", *(f"{kernel}_bandwidth" for kernel in ("copy", "scale", "add", "triad", "dot"))}
    assert found["rate"].n == 10
    for each in found.values():
        assert isinstance(each.low, float)
        assert isinstance(each.high, float)
        assert each.low < 0 < each.high
    assert isinstance(found["triad_bandwidth"].high, float)
    assert found["triad_bandwidth"].high < 0.0005
