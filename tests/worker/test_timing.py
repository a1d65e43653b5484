"""Warm-up, calibration, grouping and counts, with a clock that the work itself moves."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest

from engine.worker.timing import (
    MIN_ROUNDS,
    Call,
    calibrated_count,
    group_for,
    group_size,
    measure,
    time_on_host,
)
from engine.worker.work import Kernel, ProtocolError


class Machine:
    """A device on which each call takes a fixed time, and the adapter of it; it notes what is called."""

    def __init__(self, min_reading_s: float = 100e-6, settle_s: float = 0.0) -> None:
        self.now_ns = 0
        self.min_reading_s = min_reading_s
        self.settle_s = settle_s
        self.called: list[str] = []
        self.untimed_rounds: list[int] = []
        self.collecting: list[bool] = []

    def kernel(self, name: str, ns: int) -> Kernel:
        """Work that takes so many nanoseconds."""

        def call() -> None:
            self.now_ns += ns
            self.called.append(name)

        return Kernel(name, call, 1.0)

    def clock(self) -> float:
        return self.now_ns * 1e-9

    def run(self, calls: Sequence[Call], rounds: int) -> None:
        self.untimed_rounds.append(rounds)
        for _ in range(rounds):
            for call in calls:
                call()

    def time(self, calls: Sequence[Call], readings: int, group: int) -> list[list[float]]:
        self.collecting.append(gc.isenabled())
        self.called.clear()
        return time_on_host(calls, readings, group, clock_ns=lambda: self.now_ns)


def test_calls_take_turns_at_every_reading_and_are_averaged_in_groups() -> None:
    machine = Machine()
    kernels = [machine.kernel("a", 1000), machine.kernel("b", 3000)]
    durations_s = machine.time([kernel.call for kernel in kernels], 2, 3)
    assert machine.called == ["a"] * 3 + ["b"] * 3 + ["a"] * 3 + ["b"] * 3
    assert durations_s == [pytest.approx([1e-6] * 2), pytest.approx([3e-6] * 2)]


def test_waiting_for_the_last_result_is_part_of_a_reading() -> None:
    machine = Machine()
    waited: list[object] = []

    def wait(result: object) -> None:
        waited.append(result)
        machine.now_ns += 500

    durations_s = time_on_host([lambda: "result"], 2, 5, wait, lambda: machine.now_ns)
    assert waited == ["result", "result"]
    assert durations_s == [pytest.approx([1e-7, 1e-7])]


@pytest.mark.parametrize(
    ("call_s", "group"), [(1e-3, 1), (100e-6, 1), (99e-6, 2), (50e-6, 2), (49e-6, 4), (50e-9, 2048)]
)
def test_a_group_is_the_least_power_of_two_that_lasts_100_us(call_s: float, group: int) -> None:
    assert group_size(call_s, 100e-6) == group


def test_a_timer_without_a_shortest_reading_never_groups() -> None:
    assert group_size(1e-9, 0.0) == 1


@pytest.mark.parametrize("round_s", [2e-8, 3e-8, 4.9e-8, 7e-6, 99e-6, 101e-6, 3e-3])
@pytest.mark.parametrize("kernels", [1, 5])
def test_a_calibrated_count_is_whole_groups_of_the_size_that_every_other_arm_derives_from_it(
    round_s: float, kernels: int
) -> None:
    budget_s = 0.05
    count = calibrated_count(round_s, kernels, budget_s, 100e-6)
    assert count % group_for(count, kernels, budget_s, 100e-6) == 0
    assert budget_s <= count * round_s < budget_s * 1.15 + MIN_ROUNDS * round_s


def test_slow_work_is_done_five_times_even_beyond_the_budget() -> None:
    assert calibrated_count(10.0, 1, 2.0, 100e-6) == 5


def test_the_budget_gives_the_count() -> None:
    machine = Machine()
    phases: list[str] = []
    measured = measure([machine.kernel("rate", 1_000_000)], machine, 0.5, {}, phases.append, machine.clock)
    assert phases == ["warmup", "calibrate", "measure", "check"]
    assert measured.count == 500
    assert measured.group == 1
    assert measured.durations_s == [pytest.approx([1e-3] * 500)]


def test_a_given_count_is_done_exactly_and_without_calibration() -> None:
    machine = Machine()
    phases: list[str] = []
    measured = measure([machine.kernel("rate", 1_000_000)], machine, 0.5, {"rate": 123}, phases.append, machine.clock)
    assert phases == ["warmup", "measure", "check"]
    assert len(measured.durations_s[0]) == measured.count == 123


def test_the_warm_up_is_the_same_with_and_without_calibration() -> None:
    calibrating, given = Machine(), Machine()
    count = measure([calibrating.kernel("r", 10_000)], calibrating, 0.1, {}, lambda _: None, calibrating.clock).count
    measure([given.kernel("r", 10_000)], given, 0.1, {"r": count}, lambda _: None, given.clock)
    warm_up, calibration = calibrating.untimed_rounds[:-1], calibrating.untimed_rounds[-1]
    assert given.untimed_rounds == warm_up
    assert sum(warm_up[1:]) * 10e-6 == pytest.approx(0.05, rel=0.05), "half the budget, after the first round"
    assert calibration * 10e-6 == pytest.approx(0.01, rel=0.05)


def test_a_device_that_takes_longer_to_settle_is_warmed_up_for_longer() -> None:
    machine = Machine(settle_s=0.2)
    measure([machine.kernel("r", 10_000)], machine, 0.1, {"r": 100}, lambda _: None, machine.clock)
    assert sum(machine.untimed_rounds[1:]) * 10e-6 == pytest.approx(0.2, rel=0.05)


def test_a_given_count_that_is_not_whole_groups_ends_in_a_smaller_one() -> None:
    machine = Machine()
    kernels = [machine.kernel("a", 10_000), machine.kernel("b", 30_000)]
    measured = measure(kernels, machine, 0.04, {"a": 1001, "b": 1001}, lambda _: None, machine.clock)
    assert measured.group == 8
    assert [len(one) for one in measured.durations_s] == [126, 126]
    assert machine.called == ["a", "b"], "the last, timed alone: 1001 = 125 * 8 + 1"


def test_kernels_share_the_budget() -> None:
    machine = Machine()
    kernels = [machine.kernel("a", 1_000_000), machine.kernel("b", 3_000_000)]
    measured = measure(kernels, machine, 0.4, {}, lambda _: None, machine.clock)
    assert measured.count == 100


@pytest.mark.parametrize("counts", [{"a": 5}, {"a": 5, "b": 6}, {"a": 5, "b": 5, "c": 5}])
def test_counts_that_do_not_fit_the_metrics_are_refused(counts: dict[str, int]) -> None:
    machine = Machine()
    kernels = [machine.kernel("a", 1000), machine.kernel("b", 1000)]
    with pytest.raises(ProtocolError, match="counts must name every metric"):
        measure(kernels, machine, 0.01, counts, lambda _: None, machine.clock)


def test_garbage_collection_is_off_while_measuring_and_on_afterwards() -> None:
    machine = Machine()
    assert gc.isenabled()
    measure([machine.kernel("rate", 1_000_000)], machine, 0.01, {}, lambda _: None, machine.clock)
    assert machine.collecting == [False]
    assert gc.isenabled()
