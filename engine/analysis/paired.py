"""Two arms in pairs: by how much the second is worse, with an exact interval.

The unit is the trial, never an iteration. d = ln(reference / other) for a rate and ln(other / reference) for a
duration, so that plus is worse everywhere; the degradation is exp(median d) - 1. Its interval is that of the median by
order statistics (the sign test turned round; Conover, Practical Nonparametric Statistics, 3.2): exact for any
distribution of independent pairs, which a bootstrap is not at ten of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from engine.session import Measurement
from engine.values import Missing, Reading

LEVEL = 0.95
LEAST_PAIRS = 6
"""Of five pairs not even the smallest and largest difference bound the median with 95 % (they do with 93.75 %)."""


class Pair(msgspec.Struct, frozen=True):
    """The two medians of one pair, in the metric's unit, with the trials that gave them and the arm that went first."""

    pair: int
    reference: float
    other: float
    reference_trial: str
    other_trial: str
    first: str


class Comparison(msgspec.Struct, frozen=True):
    """One metric of one variant on one device, `other` against `reference` (both are arms).

    `degradation`, `low` and `high` are fractions, plus is worse; the interval holds the median of the differences with
    probability `coverage`, which is at least LEVEL. Missing where there are fewer than LEAST_PAIRS pairs.
    """

    scenario: str
    variant: str
    metric: str
    unit: str
    better: str
    device: str
    reference: str
    other: str
    n: int
    reference_median: float
    other_median: float
    degradation: float
    low: Reading
    high: Reading
    coverage: Reading
    pairs: tuple[Pair, ...]


def order_statistics(n: int, level: float = LEVEL) -> tuple[int, float] | None:
    """(k, coverage): the k-th smallest and k-th largest of `n` values hold their median with `coverage` >= `level`.

    coverage = 1 - 2 P(Binomial(n, 1/2) < k), with the largest such k; None where even k = 1 does not reach `level`.
    """
    best: tuple[int, float] | None = None
    tail = 0.0
    for k in range(1, n // 2 + 1):
        tail += math.comb(n, k - 1) / 2**n
        coverage = 1 - 2 * tail
        if coverage < level:
            break
        best = (k, coverage)
    return best


def log_ratio(pair: Pair, better: str) -> float:
    """How much worse the other arm was in this pair, as a logarithm."""
    ratio = math.log(pair.reference / pair.other)
    return ratio if better == "higher" else -ratio


def compare_arms(measurements: Iterable[Measurement], reference: str, other: str) -> list[Comparison]:
    """Every metric that both arms measured in pairs, in the session's order; a pair that lacks a half is left out."""
    subjects: dict[tuple[str, str, str, str], list[Measurement]] = {}
    for each in measurements:
        if each.environment in (reference, other):
            subjects.setdefault((each.scenario, each.variant, each.device, each.metric), []).append(each)
    compared = (_compare(group, reference, other) for group in subjects.values())
    return [each for each in compared if each is not None]


def _compare(group: Sequence[Measurement], reference: str, other: str) -> Comparison | None:
    halves: dict[int, dict[str, Measurement]] = {}
    for each in group:
        halves.setdefault(each.pair, {})[each.environment] = each
    pairs = tuple(
        _pair(number, found[reference], found[other])
        for number, found in sorted(halves.items())
        if found.keys() == {reference, other} and min(found[reference].median, found[other].median) > 0
    )
    if not pairs:
        return None
    first = group[0]
    worse = sorted(log_ratio(pair, first.better) for pair in pairs)
    low, high, coverage = _interval(worse)
    return Comparison(
        scenario=first.scenario,
        variant=first.variant,
        metric=first.metric,
        unit=first.unit,
        better=first.better,
        device=first.device,
        reference=reference,
        other=other,
        n=len(pairs),
        reference_median=median(pair.reference for pair in pairs),
        other_median=median(pair.other for pair in pairs),
        degradation=math.expm1(median(worse)),
        low=low,
        high=high,
        coverage=coverage,
        pairs=pairs,
    )


def _pair(number: int, reference: Measurement, other: Measurement) -> Pair:
    first = reference if reference.slot < other.slot else other
    return Pair(number, reference.median, other.median, reference.trial, other.trial, first.environment)


def _interval(worse: Sequence[float]) -> tuple[Reading, Reading, Reading]:
    found = order_statistics(len(worse))
    if found is None:
        why = Missing(f"{len(worse)} pairs are too few for an interval (needs {LEAST_PAIRS})")
        return why, why, why
    k, coverage = found
    return math.expm1(worse[k - 1]), math.expm1(worse[-k]), coverage
