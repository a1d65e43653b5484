"""Journals of real runs on an NVIDIA H200 (identities blanked), folded again: the figures must stay what they were."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from engine import runfolder
from engine.events import TelemetrySummary
from engine.journal import read_events
from engine.session import Session, fold
from engine.session_file import dump_session, parse_session

SESSIONS = Path(__file__).parent.parent / "fixtures" / "sessions"
GPU = "GPU-00000000-0000-0000-0000-000000000000"


@pytest.fixture(scope="module")
def unsettled() -> Session:
    """The quick preset with a warm-up of half a second, as a driver 580 and torch 2.11 ran it."""
    return fold(read_events(SESSIONS / "h200-quick-unsettled" / runfolder.JOURNAL))


def test_every_planned_trial_of_the_recording_is_there_with_its_figure(unsettled: Session) -> None:
    assert unsettled.outcome == "completed"
    assert [trial.outcome for trial in unsettled.trials] == ["completed"] * 8
    medians = {f"{each.variant.split()[0]} {each.metric}": round(each.median, 1) for each in unsettled.measurements}
    assert medians == {
        "fp64 rate": 57.0,
        "fp32 rate": 51.1,
        "tf32 rate": 363.5,
        "bf16 rate": 684.1,
        "fp16 rate": 657.7,
        "fp8 rate": 1260.2,
        "int8 rate": 922.7,
        "fp32 copy_bandwidth": 4266.0,
        "fp32 scale_bandwidth": 4214.6,
        "fp32 add_bandwidth": 4374.2,
        "fp32 triad_bandwidth": 4378.4,
        "fp32 dot_bandwidth": 4368.8,
    }


def test_the_undershoot_of_the_power_regulator_is_no_steady_state(unsettled: Session) -> None:
    steady = {each.variant: each.steady for each in unsettled.measurements if each.metric == "rate"}
    assert steady["fp32 8192x8192x8192"] == "yes"
    assert steady["bf16 8192x8192x8192"].startswith("no steady state")


def test_the_window_of_a_power_limited_trial_says_so(unsettled: Session) -> None:
    (bf16,) = [each for each in unsettled.measurements if each.variant.startswith("bf16")]
    seen = bf16.telemetry[GPU]
    power, capped = seen["power_w"], seen["limit_sw_power_cap"]
    assert isinstance(power, TelemetrySummary)
    assert isinstance(capped, TelemetrySummary)
    assert power.source == "NVML field power_instant"
    assert 690 < power.mean < 710
    assert capped.mean > 0.8
    assert not isinstance(seen["fan_speed_percent"], TelemetrySummary), (
        "the board has no fan, which is not a speed of 0"
    )


def test_the_session_file_holds_all_of_it(unsettled: Session) -> None:
    assert parse_session(dump_session(unsettled), "the session") == unsettled


@pytest.fixture(scope="module")
def paired() -> Session:
    """Ten pairs, bare and podman 4.9 with crun in mirror mode, of a bf16 product and of STREAM."""
    return fold(read_events(SESSIONS / "h200-bare-podman" / runfolder.JOURNAL))


def test_the_arms_took_turns_in_balanced_blocks(paired: Session) -> None:
    order = [trial.environment for trial in paired.trials if trial.scenario == "compute/gemm"]
    assert [trial.outcome for trial in paired.trials] == ["completed"] * 40
    assert len(order) == 20
    for first in range(0, 20, 4):
        assert order[first : first + 2] == order[first + 2 : first + 4][::-1]
        assert sorted(order[first : first + 2]) == ["bare", "podman"]


def test_both_arms_did_the_same_count_of_work(paired: Session) -> None:
    for metric, count in (("rate", 605), ("triad_bandwidth", 337)):
        assert {each.n + each.warmup_n for each in paired.measurements if each.metric == metric} == {count}


@pytest.mark.parametrize(("metric", "low", "high"), [("rate", -0.018, 0.017), ("triad_bandwidth", -0.0005, 0.0005)])
def test_podman_cost_no_more_than_the_pairs_can_tell(paired: Session, metric: str, low: float, high: float) -> None:
    """Of ten pairs, the second smallest and largest log ratio bound the median with 97.9 % (binomial, both tails)."""
    medians = {(each.pair, each.environment): each.median for each in paired.measurements if each.metric == metric}
    slower = sorted(math.log(medians[pair, "bare"] / medians[pair, "podman"]) for pair in range(1, 11))
    assert low < slower[1] < 0 < slower[8] < high
