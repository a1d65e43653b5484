"""A metric's figures from its durations. Percentiles are of durations: a rate's p95 is work / p95 duration.

Iterations too short for the timer are read in groups, and then a reading is their mean. The fastest of such means is
no iteration's but never better than the best one; a percentile of means would hide the slow iterations, so it is
missing; the spread is that of the readings, which is less than that of iterations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from engine.analysis.durations import Durations
from engine.analysis.steady import steady_segment
from engine.events import MetricResult
from engine.values import Missing, Reading

P99_NEEDS = 459
"""Iterations below which no order statistic bounds the 99th percentile from above with 99 % confidence
(0.99^n <= 0.01 first holds at n = 459)."""


LONGEST_S = 1e9


class Summary(msgspec.Struct, frozen=True):
    """Figures in the metric's unit of the steady segment. `n` and `warmup_n` count iterations.

    A reading is the mean of `group` iterations (the last ones may be of fewer); `median`, `best` and `cv` are of
    readings, `p95` and `p99` of iterations, and so missing where `group` is above 1.
    """

    n: int
    group: int
    median: float
    best: float
    p95: Reading
    p99: Reading
    cv: Reading
    warmup_n: int
    steady: str


class NoFigure(ValueError):
    """Durations and work that make no figure; the text says why."""


def summarise(metric: MetricResult, durations: Durations) -> Summary:
    """The figures of `metric`; without a steady segment they are of all durations, and `steady` says why.

    Raises NoFigure where nothing can be computed: no durations, or zeros where a rate divides by them.
    """
    check(metric, durations)
    value = _value_of(metric)
    steady = steady_segment(durations.seconds)
    begin = steady.begin
    ordered = sorted(zip(durations.seconds[begin:], durations.weights[begin:], strict=True))
    n = sum(weight for _, weight in ordered)
    group = max(weight for _, weight in ordered)
    return Summary(
        n=n,
        group=group,
        median=value(_median(ordered, n)),
        best=value(ordered[0][0]),
        p95=_tail(ordered, n, 0.95, 1, value),
        p99=_tail(ordered, n, 0.99, P99_NEEDS, value),
        cv=_cv(ordered, n, group),
        warmup_n=sum(durations.weights[:begin]),
        steady=_lost(metric, durations) or steady.why or "yes",
    )


def check(metric: MetricResult, durations: Durations) -> None:
    """Whether there will be figures: the one rule for the runner, which ends a trial, and for whoever folds a journal.

    Raises NoFigure as `summarise` does.
    """
    if not durations.seconds:
        raise NoFigure(f"the journal has no durations of {metric.metric}")
    _check_range(metric, min(durations.seconds), max(durations.seconds))


def percentile(ordered: Sequence[tuple[float, int]], n: int, share: float) -> float:
    """The nearest rank: the least duration that `share` of all `n` iterations do not exceed.

    `ordered` holds (duration, weight) by duration; `n` is the sum of weights.
    """
    # ceil on a product such as 0.95 * 100 = 95.00000000000001 would be one rank too far
    rank = math.ceil(round(share * n, 6))
    for duration, weight in ordered:
        rank -= weight
        if rank <= 0:
            return duration
    return ordered[-1][0]


def _median(ordered: Sequence[tuple[float, int]], n: int) -> float:
    """The middle iteration's duration, or the mean of the two in the middle."""
    lower, upper = percentile(ordered, n, 0.5), percentile(ordered, n, (n // 2 + 1) / n)
    return lower + (upper - lower) / 2


def _check_range(metric: MetricResult, shortest_s: float, longest_s: float) -> None:
    """What a damaged or dishonest journal may hold must not become a figure, nor an overflow."""
    if shortest_s < 0 or longest_s > LONGEST_S:
        raise NoFigure(f"{metric.metric} has durations from {shortest_s:g} to {longest_s:g} s, which cannot be")
    if metric.scale == 0:
        return
    if not (metric.work > 0 and metric.scale > 0):
        raise NoFigure(f"{metric.metric} counts no work, so it has no rate")
    if shortest_s == 0 or not math.isfinite(metric.work / shortest_s / metric.scale):
        raise NoFigure(f"{metric.metric} has a duration of {shortest_s:g} s, too short for a rate")


def _value_of(metric: MetricResult) -> Callable[[float], float]:
    """From a duration to the metric's unit."""
    if metric.scale == 0:
        return float
    return lambda duration_s: metric.work / duration_s / metric.scale


def _tail(
    ordered: Sequence[tuple[float, int]], n: int, share: float, needs: int, value: Callable[[float], float]
) -> Reading:
    group = max(weight for _, weight in ordered)
    if group > 1:
        return Missing(f"durations are means of up to {group} iterations, which hide the slow ones")
    return value(percentile(ordered, n, share)) if n >= needs else Missing(f"needs {needs} iterations, has {n}")


def _cv(ordered: Sequence[tuple[float, int]], n: int, group: int) -> Reading:
    """Sample standard deviation of the readings over their mean; one that is no full group counts by its part of one.

    The variance of a mean of w independent iterations goes with 1 / w, so the weights w / group keep the sum of squares
    over (readings - 1) an unbiased estimate of a full group's variance.
    """
    if len(ordered) < 2:
        return Missing("needs 2 durations")
    mean = math.fsum(duration * weight for duration, weight in ordered) / n
    if mean <= 0:
        return Missing("the mean duration is zero")
    squares = math.fsum(weight / group * (duration - mean) ** 2 for duration, weight in ordered)
    return math.sqrt(squares / (len(ordered) - 1)) / mean


def _lost(metric: MetricResult, durations: Durations) -> str:
    """A torn journal line can cost durations. Less than a group may be missing, since a worker keeps whole groups."""
    missing = metric.count - durations.n
    if missing < max(durations.weights):
        return ""
    return f"no steady state: {missing} of {metric.count} iterations are missing in the journal"
