"""How long to measure and what is timed: warm-up, calibration from a time budget, then a fixed count of rounds.

The warm-up follows the same rule in every trial, calibrated or not, so that all arms of a comparison are equally warm.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.worker.work import Kernel, ProtocolError

Call = Callable[[], object]

MIN_ROUNDS = 5
WARMUP_SHARE = 0.5
WARMUP_LIMIT_S = 10.0
DEVICE_SETTLE_S = 3.5
"""For a device under a power limit: an H200's regulator overshoots, and the clock under matrix products dips by 20, 7
and 6 % at 0.9, 1.9 and 2.9 s after the load began; from 3.3 s on it stays within 2 % (tests/fixtures/nvml, the csv; in
tests/fixtures/sessions are sessions that were warmed up for 0.5 and 1.5 s).
"""

CALIBRATION_SHARE = 0.1
MIN_READING_S = 100e-6
"""A reading of the host's clock costs some 50 ns: one over 100 us is wrong by less than a tenth of a percent."""


class Runs(Protocol):
    """What the timing needs of an adapter."""

    min_reading_s: float
    settle_s: float

    def run(self, calls: Sequence[Call], rounds: int) -> None:
        """Run whole rounds without timing them and wait until the device has finished."""

    def time(self, calls: Sequence[Call], readings: int, group: int) -> list[list[float]]:
        """Per call, `readings` durations in seconds, each the mean of `group` calls in a row."""


@dataclass(frozen=True)
class Measured:
    """Rounds done, how many calls each duration is the mean of, and the durations per kernel, in order, in seconds."""

    count: int
    group: int
    durations_s: list[list[float]]


def time_on_host(
    calls: Sequence[Call],
    readings: int,
    group: int,
    wait: Callable[[object], object] = id,
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> list[list[float]]:
    """Time calls with the host's clock: per call, `readings` means of `group` calls in a row, in seconds.

    The calls take turns at every reading. The loop that makes the calls is part of what is timed, and so is `wait`,
    which gets what the last call of a group returned; for calls that block it need not do anything.
    """
    took_ns: list[list[int]] = [[] for _ in calls]
    pairs = [(call, took.append) for call, took in zip(calls, took_ns, strict=True)]
    for _ in range(readings):
        for call, add in pairs:
            begin = clock_ns()
            for _ in itertools.repeat(None, group):
                result = call()
            wait(result)
            add(clock_ns() - begin)
    return [[one / group * 1e-9 for one in took] for took in took_ns]


def group_size(call_s: float, min_reading_s: float) -> int:
    """Calls per timer reading: the least power of two that makes a reading last `min_reading_s`."""
    if call_s >= min_reading_s:
        return 1
    return int(2 ** math.ceil(math.log2(min_reading_s / max(call_s, 1e-10))))


def group_for(count: int, kernels: int, budget_s: float, min_reading_s: float) -> int:
    """The group size that follows from a count and its budget alone, so that every arm of a comparison has the same."""
    return min(group_size(budget_s / (count * kernels), min_reading_s), count)


def calibrated_count(round_s: float, kernels: int, budget_s: float, min_reading_s: float) -> int:
    """How many rounds of `round_s` seconds fill the budget: at least MIN_ROUNDS, and whole groups."""
    count = max(MIN_ROUNDS, math.ceil(budget_s / round_s))
    while rest := count % group_for(count, kernels, budget_s, min_reading_s):
        count += group_for(count, kernels, budget_s, min_reading_s) - rest
    return count


def given_count(kernels: Sequence[Kernel], counts: Mapping[str, int]) -> int:
    """The rounds that a calibration trial fixed: one number for exactly these metrics. Raises ProtocolError."""
    if set(counts) != {kernel.metric for kernel in kernels} or len(set(counts.values())) != 1:
        raise ProtocolError(f"counts must name every metric of the scenario with one number: {dict(counts)!r}")
    return next(iter(counts.values()))


def warmup_s(budget_s: float, settle_s: float) -> float:
    """How long to warm up: half the budget (10 s at most), and what the device needs to settle at the least."""
    return max(min(budget_s * WARMUP_SHARE, WARMUP_LIMIT_S), settle_s)


def warm_up(run: Callable[[int], None], seconds: float, clock: Callable[[], float]) -> tuple[float, float]:
    """Run for `seconds`, until compilers, caches and clocks have settled; the first round may compile and is extra.

    Returns the seconds of one round and of all rounds of the last stretch, as first estimate.
    """
    run(1)
    end = clock() + seconds
    rounds = 1
    while True:
        begin = clock()
        run(rounds)
        took = max(clock() - begin, 1e-9)
        left = end - clock()
        if left <= 0:
            return took / rounds, took
        rounds = max(1, min(2 * rounds, math.ceil(left / took * rounds)))


def calibrate(
    run: Callable[[int], None], estimate: tuple[float, float], budget_s: float, clock: Callable[[], float]
) -> float:
    """Seconds of one warm round, over at least a tenth of the budget (a longer warm-up stretch is used as it is)."""
    round_s, took = estimate
    wanted = budget_s * CALIBRATION_SHARE
    if took >= wanted:
        return round_s
    rounds = math.ceil(wanted / round_s)
    begin = clock()
    run(rounds)
    return max(clock() - begin, 1e-9) / rounds


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep Python's cycle collector from running in the middle of a measurement."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def measure(
    kernels: Sequence[Kernel],
    adapter: Runs,
    budget_s: float,
    counts: Mapping[str, int],
    enter: Callable[[str], None],
    clock: Callable[[], float] = time.perf_counter,
) -> Measured:
    """Warm up, calibrate unless `counts` says how many rounds, and time a fixed count of rounds.

    `enter` is told each phase before it begins, and "check" as soon as the last round has finished.
    """
    calls = [kernel.call for kernel in kernels]

    def run(rounds: int) -> None:
        adapter.run(calls, rounds)

    # Collecting takes tens of milliseconds, in which a device would cool down and clock up: before the warm-up then.
    with no_garbage_collection():
        enter("warmup")
        estimate = warm_up(run, warmup_s(budget_s, adapter.settle_s), clock)
        if counts:
            count = given_count(kernels, counts)
        else:
            enter("calibrate")
            round_s = calibrate(run, estimate, budget_s, clock)
            count = calibrated_count(round_s, len(calls), budget_s, adapter.min_reading_s)
        group = group_for(count, len(calls), budget_s, adapter.min_reading_s)
        enter("measure")
        durations_s = adapter.time(calls, count // group, group)
        if rest := count % group:
            for done, more in zip(durations_s, adapter.time(calls, 1, rest), strict=True):
                done.extend(more)
        enter("check")
    return Measured(count, group, durations_s)
