"""Where a series of durations is steady: the last segment between change-points, if it is long, level and quiet.

Binary segmentation with the L2 cost on at most 500 block medians (medians, so that single outliers make no segment).
A split is taken where it lowers the cost by more than 3 ln(n) sigma^2, sigma from the median absolute difference of
neighbours (Killick et al. 2012 for cost and penalty; Barrett et al. 2017, "Virtual machine warmup blows hot and cold",
for judging warm-up by change-points).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import fmean, median, pstdev

import msgspec

MAX_BLOCKS = 500
LEAST_DURATIONS = 8
LEAST_SHARE = 0.5
MAX_COV = 0.02
MAX_DRIFT = 0.01
"""How much the fitted line may rise or fall over the segment, relative to its mean."""

SAME_LEVEL = 0.02
"""Segments whose means differ by less than this are one: a change too small to call a state of its own."""

LEAST_SIGMA = 0.0005
"""Relative to the median: what a coarse or constant clock would make zero."""

_MAD_TO_SIGMA = 1.4826


class Steady(msgspec.Struct, frozen=True):
    """`begin` is the first steady duration; `why` is "" or "no steady state: …", and then `begin` is 0."""

    begin: int
    why: str


def steady_segment(durations_s: Sequence[float]) -> Steady:
    """The steady end of `durations_s` (seconds, in order), or all of it with the reason why none is steady."""
    n = len(durations_s)
    if n < LEAST_DURATIONS:
        return _unsteady(f"{n} durations are too few to tell (needs {LEAST_DURATIONS})")
    size = _block_size(n)
    blocks = [median(durations_s[i : i + size]) for i in range(0, n - size + 1, size)]
    begin = _last_level(blocks, change_points(blocks))
    why = _judge(blocks[begin:], len(blocks))
    return _unsteady(why) if why else Steady(begin * size, "")


def change_points(values: Sequence[float]) -> list[int]:
    """The indices at which a new segment begins, ascending, 0 first."""
    penalty = 3 * math.log(len(values)) * _sigma(values) ** 2
    centre = fmean(values)
    sums = list(accumulate((value - centre for value in values), initial=0.0))
    starts, waiting = [0], [(0, len(values))]
    while waiting:
        begin, end = waiting.pop()
        at, gain = _best_split(sums, begin, end)
        if gain > penalty:
            starts.append(at)
            waiting += [(begin, at), (at, end)]
    return sorted(starts)


def _unsteady(why: str) -> Steady:
    return Steady(0, f"no steady state: {why}")


def _block_size(n: int) -> int:
    """Three at least where there are enough, since the median of three already ignores a single outlier."""
    return max(math.ceil(n / MAX_BLOCKS), 3 if n >= 60 else 1)


def _sigma(values: Sequence[float]) -> float:
    """The noise of `values` whatever their level does; sqrt(2) since a difference of two has twice the variance."""
    steps = [abs(after - before) for before, after in pairwise(values)]
    return max(_MAD_TO_SIGMA * median(steps) / math.sqrt(2), LEAST_SIGMA * abs(median(values)))


def _best_split(sums: Sequence[float], begin: int, end: int) -> tuple[int, float]:
    """Where two means fit best instead of one, and by how much the sum of squared errors falls; each part has two."""
    best, gain = begin, 0.0
    whole = (sums[end] - sums[begin]) ** 2 / (end - begin)
    for at in range(begin + 2, end - 1):
        left, right = sums[at] - sums[begin], sums[end] - sums[at]
        found = left * left / (at - begin) + right * right / (end - at) - whole
        if found > gain:
            best, gain = at, found
    return best, gain


def _last_level(values: Sequence[float], starts: Sequence[int]) -> int:
    """The begin of the last segment, joined with those before it that are on the same level."""
    begin = starts[-1]
    level = fmean(values[begin:])
    for start in reversed(starts[:-1]):
        if abs(fmean(values[start:begin]) - level) > SAME_LEVEL * level:
            break
        begin = start
    return begin


def _judge(segment: Sequence[float], total: int) -> str:
    """Why the last segment is not steady, or ""."""
    if len(segment) < LEAST_SHARE * total:
        return f"only the last {len(segment) / total:.0%} are on one level (needs {LEAST_SHARE:.0%})"
    mean = fmean(segment)
    if mean <= 0:
        return "the durations are zero"
    cov = pstdev(segment, mean) / mean
    if cov >= MAX_COV:
        return f"the spread is {cov:.1%} (needs under {MAX_COV:.0%})"
    drift = abs(_slope(segment)) * len(segment) / mean
    if drift >= MAX_DRIFT:
        return f"the level drifts by {drift:.1%} (needs under {MAX_DRIFT:.0%})"
    return ""


def _slope(values: Sequence[float]) -> float:
    """Least squares, per step."""
    centre = (len(values) - 1) / 2
    return sum((i - centre) * value for i, value in enumerate(values)) / sum(
        (i - centre) ** 2 for i in range(len(values))
    )
