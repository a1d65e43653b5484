"""Which trials a plan gives and in which order, checked on plans that hypothesis makes up."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import AibenchError
from engine.plan import Environment, Plan, PlannedTrial, Repetition, ScenarioChoice, Target
from engine.plan_file import MAX_TRIALS
from engine.schedule import estimate_s, expand, resolve_devices
from tests.engine.plan_cases import CPU, assert_one_line, device, find_fake

SCENARIOS = (ScenarioChoice("alpha/mul", {"size": [1, 2]}), ScenarioChoice("idle"))


def plan(arms: int, repeat: int, seed: int = 0) -> Plan:
    environments = tuple(Environment(name=f"arm {n}") for n in range(arms))
    return Plan(environments=environments, scenarios=SCENARIOS, repetition=Repetition(repeat=repeat, seed=seed))


def trials(arms: int, repeat: int, seed: int = 0, devices: int = 1) -> tuple[PlannedTrial, ...]:
    return expand(plan(arms, repeat, seed), [device(n) for n in range(devices)], "torch", find=find_fake)


def of_each_point(planned: tuple[PlannedTrial, ...]) -> list[list[PlannedTrial]]:
    points: dict[tuple[str, str, str], list[PlannedTrial]] = {}
    for trial in planned:
        points.setdefault((trial.scenario, trial.variant, trial.device), []).append(trial)
    return list(points.values())


ARMS = st.integers(1, 5)
REPEATS = st.integers(1, 9)
SEEDS = st.integers(0, 2**63 - 1)
DEVICES = st.integers(1, 4)


@given(ARMS, REPEATS, SEEDS, DEVICES)
def test_every_combination_comes_exactly_once(arms: int, repeat: int, seed: int, devices: int) -> None:
    planned = trials(arms, repeat, seed, devices)
    seen = Counter((t.scenario, t.variant, t.device, t.environment, t.repeat) for t in planned)
    variants = [("alpha/mul", "size 1"), ("alpha/mul", "size 2"), ("beta/idle", "size 1")]
    wanted = itertools.product(
        variants,
        [device(n).device for n in range(devices)],
        [f"arm {n}" for n in range(arms)],
        range(1, repeat + 1),
    )
    assert seen == Counter((*variant, uuid, arm, n) for variant, uuid, arm, n in wanted)


@given(ARMS, REPEATS, SEEDS)
def test_ids_are_unique_and_count_in_order_of_execution(arms: int, repeat: int, seed: int) -> None:
    ids = [trial.trial for trial in trials(arms, repeat, seed)]
    assert ids == [f"t{n:04d}" for n in range(1, len(ids) + 1)]


@given(st.integers(2, 5), REPEATS, SEEDS, DEVICES)
def test_each_pair_holds_every_arm_once_and_slots_count_its_order(
    arms: int, repeat: int, seed: int, devices: int
) -> None:
    for point in of_each_point(trials(arms, repeat, seed, devices)):
        for _, pair in itertools.groupby(point, key=lambda trial: trial.pair):
            members = list(pair)
            assert [trial.slot for trial in members] == list(range(1, arms + 1))
            assert len({trial.environment for trial in members}) == arms
        assert [trial.pair for trial in point] == sorted(trial.pair for trial in point)


@given(st.integers(2, 5), REPEATS, SEEDS)
def test_arms_are_balanced_in_position_within_every_whole_block(arms: int, repeat: int, seed: int) -> None:
    for point in of_each_point(trials(arms, repeat, seed)):
        for block in range(repeat // 2):
            slots: Counter[str] = Counter()
            for trial in point[block * 2 * arms : (block + 1) * 2 * arms]:
                slots[trial.environment] += trial.slot
            assert set(slots.values()) == {arms + 1}


@given(st.integers(2, 5), REPEATS, SEEDS, DEVICES)
def test_the_trials_of_a_block_follow_each_other_at_once(arms: int, repeat: int, seed: int, devices: int) -> None:
    planned = trials(arms, repeat, seed, devices)
    blocks = itertools.groupby(planned, key=lambda t: (t.scenario, t.variant, t.device, (t.pair - 1) // 2))
    sizes = [len(list(members)) for _, members in blocks]
    full, odd = divmod(repeat, 2)
    assert sizes == [2 * arms] * (full * 3 * devices) + [arms] * (odd * 3 * devices)


@given(REPEATS, SEEDS, DEVICES)
def test_with_one_arm_each_round_visits_everything_before_the_next(repeat: int, seed: int, devices: int) -> None:
    planned = trials(1, repeat, seed, devices)
    assert [trial.repeat for trial in planned] == sorted(trial.repeat for trial in planned)
    assert {(trial.slot, trial.pair - trial.repeat) for trial in planned} == {(1, 0)}


@given(ARMS, REPEATS, SEEDS)
def test_the_same_seed_gives_the_same_order(arms: int, repeat: int, seed: int) -> None:
    assert trials(arms, repeat, seed) == trials(arms, repeat, seed)


def test_two_arms_give_abba_or_baab_each_about_half_the_time() -> None:
    shapes: Counter[str] = Counter()
    for point in of_each_point(trials(2, 200, seed=7)):
        letters = "".join("AB"[trial.environment == "arm 1"] for trial in point)
        shapes.update(letters[n : n + 4] for n in range(0, len(letters), 4))
    assert set(shapes) == {"ABBA", "BAAB"}
    assert shapes.total() == 300
    assert 110 < shapes["ABBA"] < 190


def test_an_odd_repeat_ends_with_a_single_pair() -> None:
    for point in of_each_point(trials(2, 3)):
        assert [(trial.pair, trial.slot) for trial in point] == [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)]


def test_devices_and_seeds_have_coins_of_their_own() -> None:
    one, other = (
        [trial.environment for trial in point]
        for point in of_each_point(trials(2, 40, devices=2))
        if point[0].variant == "size 1" and point[0].scenario == "alpha/mul"
    )
    assert one != other
    assert [trial.environment for trial in trials(2, 40, seed=1)] != [trial.environment for trial in trials(2, 40)]


def test_the_order_can_be_recomputed_from_the_documented_hash() -> None:
    planned = [t for t in trials(3, 2, seed=42) if t.variant == "size 2"]
    uuid = device(0).device

    def digest(arm: str) -> str:
        return hashlib.sha256(f"42\nalpha/mul\nsize 2\n{uuid}\n1\n{arm}".encode()).hexdigest()

    order = sorted(["arm 0", "arm 1", "arm 2"], key=digest)
    assert [t.environment for t in planned] == order + order[::-1]


def test_the_order_of_a_known_plan_never_changes() -> None:
    """A later version that orders differently could not explain a session of this one."""
    letters = ["AB"[trial.environment == "arm 1"] for trial in trials(2, 4, seed=2026) if trial.scenario == "beta/idle"]
    assert "".join(letters) == "BAABABBA"


def test_frameworks_go_by_device_and_a_scenario_without_one_gets_python() -> None:
    devices = [device(0), CPU]
    planned = expand(plan(1, 1), devices, {device(0).device: "jax", "cpu": "torch"}, find=find_fake)
    assert {(trial.scenario, trial.device, trial.framework) for trial in planned} == {
        ("alpha/mul", device(0).device, "jax"),
        ("alpha/mul", "cpu", "torch"),
        ("beta/idle", device(0).device, "python"),
        ("beta/idle", "cpu", "python"),
    }


def test_a_parameter_that_one_of_the_devices_cannot_take_is_refused() -> None:
    big = Plan(scenarios=(ScenarioChoice("mul", {"size": 101}),))
    assert len(expand(big, [device(0)], "torch", find=find_fake)) == 1
    with pytest.raises(AibenchError, match="101 is not allowed"):
        expand(big, [device(0), CPU], "torch", find=find_fake)


def test_more_trials_than_a_run_can_hold_are_refused() -> None:
    with pytest.raises(AibenchError, match="24000 trials planned; at most 2400"):
        trials(2, 1000, devices=4)


def test_ids_of_the_longest_plan_sort_by_name() -> None:
    ids = [trial.trial for trial in trials(1, 800)]
    assert len(ids) == MAX_TRIALS
    assert ids[0] == "t0001"
    assert ids == sorted(ids)


def test_the_estimate_adds_the_cards_time_the_measured_time_and_the_warm_up() -> None:
    chosen = Plan(scenarios=(ScenarioChoice("alpha/copy"), ScenarioChoice("mul")), repetition=Repetition(seconds=2.0))
    planned = expand(chosen, [CPU], "torch", find=find_fake)
    assert estimate_s(chosen, planned, find=find_fake) == pytest.approx(3 + 3 + 10 + 3)


PRESENT = [CPU, device(0), device(1)]


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [
        (("auto",), [0, 1]),
        (("cpu",), [-1]),
        (("1", "0"), [1, 0]),
        (("1", device(1).device, "1"), [1]),
        (("auto", "cpu", "0"), [0, 1, -1]),
    ],
)
def test_devices_are_named_by_auto_cpu_index_or_uuid(wanted: tuple[str, ...], indices: list[int]) -> None:
    assert [found.index for found in resolve_devices(wanted, PRESENT)] == indices


def test_auto_means_the_cpu_where_there_is_no_accelerator() -> None:
    assert resolve_devices(Target().devices, [CPU]) == (CPU,)


@pytest.mark.parametrize("name", ["2", "-1", "", "GPU-00000001", "h\x1b]52;c;x\x07", "0" * 9999])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(AibenchError, match="is not there; ") as caught:
        resolve_devices([name], PRESENT)
    assert str(caught.value).endswith("there are: cpu, 0 (NVIDIA H200), 1 (NVIDIA H200)")
    assert_one_line(caught.value)


def test_a_uuid_with_a_slip_gets_the_nearest_one() -> None:
    with pytest.raises(AibenchError, match=f"did you mean '{device(1).device}'"):
        resolve_devices([device(1).device[:-1]], PRESENT)


def test_no_device_at_all_is_said() -> None:
    with pytest.raises(AibenchError, match="device: 'cpu' is not there; there are: none"):
        resolve_devices(["auto"], [])
