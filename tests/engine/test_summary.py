from __future__ import annotations

import math
import random
from statistics import stdev

import msgspec
import pytest

from engine.analysis.durations import MAX_KEPT, Durations
from engine.analysis.summary import NoFigure, percentile, summarise
from engine.events import MetricResult
from engine.values import Missing
from tests.engine.journal_cases import METRIC

SECONDS = msgspec.structs.replace(METRIC, unit="s", better="lower", scale=0.0)


def durations(*parts: tuple[list[float], int]) -> Durations:
    result = Durations()
    for values, group in parts:
        result.add(values, group)
    return result


def of(metric: MetricResult, n: int) -> MetricResult:
    return msgspec.structs.replace(metric, count=n)


def test_a_rate_by_hand() -> None:
    # 2 TFLOP in 1, 2, 4 and 8 ms are 2000, 1000, 500 and 250 TFLOP/s; too few to be steady, so all of them count
    summary = summarise(of(METRIC, 4), durations(([0.004, 0.001, 0.008, 0.002], 1)))
    assert summary.median == pytest.approx(2 / 0.003)  # work over the median duration, (2 + 4) / 2 ms
    assert (summary.best, summary.p95) == (2000.0, 250.0)
    assert summary.p99 == Missing("needs 459 iterations, has 4")
    # mean 3.75 ms, squares 7.5625 + 3.0625 + 0.0625 + 18.0625 = 28.75 over 3
    assert summary.cv == pytest.approx(math.sqrt(28.75 / 3) / 3.75)
    assert (summary.n, summary.group, summary.warmup_n) == (4, 1, 0)
    assert summary.steady == "no steady state: 4 durations are too few to tell (needs 8)"


def test_durations_themselves_are_the_metric_where_scale_is_zero() -> None:
    summary = summarise(of(SECONDS, 3), durations(([3.0, 1.0, 2.0], 1)))
    assert (summary.median, summary.best, summary.p95) == (2.0, 1.0, 3.0)


def test_p99_needs_459() -> None:
    few, enough = [0.001 + i * 1e-9 for i in range(458)], [0.001 + i * 1e-9 for i in range(459)]
    assert summarise(of(SECONDS, 458), durations((few, 1))).p99 == Missing("needs 459 iterations, has 458")
    assert summarise(of(SECONDS, 459), durations((enough, 1))).p99 == enough[454]  # rank ceil(0.99 * 459) = 455


def test_the_nearest_rank_by_hand() -> None:
    ordered = [(float(number), 1) for number in range(1, 101)]
    assert [percentile(ordered, 100, share) for share in (0.01, 0.5, 0.95, 0.99, 1.0)] == [1.0, 50.0, 95.0, 99.0, 100.0]


def test_groups_weigh_as_many_iterations_as_they_hold() -> None:
    # nine iterations of 1 s as three groups, then one of 5 s, which is a third of a group
    grouped = durations(([1.0, 1.0, 1.0], 3), ([5.0], 1))
    summary = summarise(of(SECONDS, 10), grouped)
    assert (summary.n, summary.group, summary.median, summary.best) == (10, 3, 1.0, 1.0)
    # mean 1.4, squares 3 * 0.16 + 12.96 / 3 = 4.8 over 4 - 1 readings
    assert summary.cv == pytest.approx(math.sqrt(4.8 / 3) / 1.4)


def test_percentiles_of_group_means_are_none_of_iterations() -> None:
    summary = summarise(of(SECONDS, 8 * 500), durations(([0.001 + i * 1e-9 for i in range(500)], 8)))
    hidden = Missing("durations are means of up to 8 iterations, which hide the slow ones")
    assert (summary.group, summary.p95, summary.p99) == (8, hidden, hidden)


def test_the_spread_of_six_groups_is_that_of_their_means() -> None:
    means = [0.9, 1.0, 1.1, 1.0, 0.95, 1.05]
    summary = summarise(of(SECONDS, 96), durations((means, 16)))
    assert summary.cv == pytest.approx(stdev(means))
    assert summary.cv == pytest.approx(0.0707, abs=5e-5)


def test_the_spread_of_readings_is_not_biased_by_a_last_group_of_fewer() -> None:
    """Readings of 16 independent iterations of variance 1 have variance 1/16, whether or not the last one is whole."""
    source = random.Random(1)

    def reading(size: int) -> float:
        return 100 + source.gauss(0, 1) / math.sqrt(size)

    squares = []
    for _ in range(4000):
        cv = summarise(of(SECONDS, 84), durations(([reading(16) for _ in range(5)], 16), ([reading(4)], 4))).cv
        assert isinstance(cv, float)
        squares.append((100 * cv) ** 2)
    assert sum(squares) / len(squares) == pytest.approx(1 / 16, rel=0.04)  # three standard errors of a seeded mean


def test_warm_up_is_left_out_and_counted() -> None:
    values = [0.004] * 60 + [0.002, 0.002001] * 120
    summary = summarise(of(METRIC, 600), durations((values, 2)))
    assert (summary.steady, summary.warmup_n, summary.n) == ("yes", 120, 480)
    assert summary.median == pytest.approx(2 / 0.0020005)


def test_one_duration_has_no_spread() -> None:
    assert summarise(of(SECONDS, 1), durations(([1.0], 1))).cv == Missing("needs 2 durations")


def test_zeros_have_no_spread() -> None:
    assert summarise(of(SECONDS, 2), durations(([0.0, 0.0], 1))).cv == Missing("the mean duration is zero")


def test_lost_durations_are_told() -> None:
    short = summarise(of(SECONDS, 100), durations(([1.0] * 10, 3)))
    assert short.steady == "no steady state: 70 of 100 iterations are missing in the journal"
    rounded = summarise(of(SECONDS, 32), durations(([1.0] * 10, 3)))  # a last group that was not full is no loss
    assert rounded.steady == "yes"


@pytest.mark.parametrize(
    ("change", "values", "words"),
    [
        ({}, [], "no durations of rate"),
        ({}, [0.001, 0.0], "has a duration of 0 s, too short for a rate"),
        ({"work": 0.0}, [1.0], "counts no work"),
        ({"scale": -1.0}, [1.0], "counts no work"),
        ({"work": 1e300}, [1e-20], "too short for a rate"),
        ({}, [-1.0], "which cannot be"),
        ({"scale": 0.0}, [1e300, 1e300], "which cannot be"),
    ],
)
def test_what_makes_no_figure_says_why(change: dict[str, float], values: list[float], words: str) -> None:
    with pytest.raises(NoFigure, match=words):
        summarise(msgspec.structs.replace(METRIC, **change), durations((values, 1)))


def test_durations_stay_bounded_and_keep_their_sum() -> None:
    kept = Durations()
    for _ in range(5):
        kept.add([1.0, 3.0] * 40_000 + [7.0], 2)
    assert len(kept.seconds) <= MAX_KEPT
    assert kept.n == 5 * 80_001 * 2
    total = math.fsum(value * weight for value, weight in zip(kept.seconds, kept.weights, strict=True))
    assert total == pytest.approx(5 * 2 * (160_000 + 7))
