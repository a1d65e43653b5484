from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.events import (
    AnyEvent,
    DeviceSeen,
    Fingerprint,
    Iterations,
    MetricResult,
    Notice,
    RunEnded,
    RunResumed,
    RunStarted,
    TrialEnded,
    TrialStarted,
    TrialTelemetry,
    WorkerResult,
)
from engine.session import DIED, MAX_NOTICES, Fold, Session, fold
from engine.session_file import dump_session, parse_session
from engine.values import Missing
from tests.engine.journal_cases import (
    METRIC,
    anchor,
    ended,
    iterations,
    planned,
    result,
    run_ended,
    run_events,
    run_started,
    setting,
    started,
    telemetry,
    trial_events,
)


def outcomes(session: Session) -> list[tuple[str, str]]:
    return [(trial.outcome, trial.reason) for trial in session.trials]


def resumed(monotonic_s: float = 200.0, boot_id: str = "another") -> RunResumed:
    later = anchor(monotonic_s, 1_700_000_500.0, boot_id)
    return RunResumed(t=monotonic_s, version="0.1.0", anchor=later)


def test_the_session_says_how_many_iterations_a_reading_holds() -> None:
    figures, *_ = fold(
        [run_started(1), started("t0001"), iterations("t0001", group=4), result("t0001"), ended("t0001")]
    ).measurements
    assert (figures.n, figures.group) == (40, 4)
    assert figures.p95 == Missing("durations are means of up to 4 iterations, which hide the slow ones")


def test_a_device_without_sensors_has_no_empty_table() -> None:
    nothing = msgspec.structs.replace(telemetry("t0001"), device="cpu", summaries={})
    *events, last = trial_events("t0001")
    [figures] = fold([run_started(1), *events, nothing, last]).measurements
    assert list(figures.telemetry) == ["GPU-1"]


def test_a_complete_run() -> None:
    session = fold(run_events(2))
    assert (session.outcome, session.reason, session.name) == ("completed", "", "case")
    assert session.started == "2023-11-14T22:13:20+00:00"
    assert session.seconds == 10.0
    assert outcomes(session) == [("completed", ""), ("completed", "")]
    assert [each.device for each in session.devices] == ["GPU-1"]
    first = session.measurements[0]
    assert (first.trial, first.metric, first.median, first.best, first.p95) == ("t0001", "rate", 1000.0, 1000.0, 1000.0)
    assert (first.n, first.cv, first.warmup_n, first.steady) == (10, 0.0, 0, "yes")
    assert first.window_s == 1.5
    assert first.telemetry["GPU-1"]["fan_percent"] == Missing("not supported", "nvml")


def test_telemetry_that_comes_after_the_end_is_attached() -> None:
    *events, last, end = list(run_events(1))
    session = fold([*(each for each in events if not isinstance(each, TrialTelemetry)), last, telemetry("t0001"), end])
    assert session.measurements[0].window_s == 1.5


def test_without_telemetry_the_window_is_missing() -> None:
    session = fold(each for each in run_events(1) if not isinstance(each, TrialTelemetry))
    assert session.measurements[0].window_s == Missing("no telemetry of its window")


def test_runner_killed_in_a_trial() -> None:
    session = fold([run_started(3), *trial_events("t0001"), started("t0002")])
    assert (session.outcome, session.reason) == ("aborted", DIED)
    assert outcomes(session) == [
        ("completed", ""),
        ("aborted", f"the run ended while it ran: {DIED}"),
        ("not_run", f"the run ended before it: {DIED}"),
    ]
    assert session.trials[1].seconds == Missing("it has no end in the journal")
    assert session.trials[2].seconds == Missing("it did not run")
    assert [each.trial for each in session.measurements] == ["t0001"]


def test_a_living_run_has_running_and_planned_trials() -> None:
    session = fold([run_started(3), *trial_events("t0001"), started("t0002")], alive=True)
    assert session.outcome == "running"
    assert [each.outcome for each in session.trials] == ["completed", "running", "planned"]


def test_an_end_that_calls_unfinished_trials_completed_is_a_failure() -> None:
    session = fold([run_started(1), run_ended()])
    assert (session.outcome, session.reason) == ("failed", "1 trials have no end in the journal")
    assert session.trials[0].outcome == "not_run"


def test_completed_without_a_result_is_a_failed_trial() -> None:
    session = fold([run_started(1), started("t0001"), iterations("t0001"), ended("t0001"), run_ended()])
    assert outcomes(session) == [("failed", "the journal has no result of it")]
    assert session.measurements == ()


def test_completed_without_durations_is_a_failed_trial() -> None:
    session = fold([run_started(1), started("t0001"), result("t0001"), ended("t0001"), run_ended()])
    assert outcomes(session) == [("failed", "the journal has no durations of rate")]


def test_a_failed_trial_with_a_result_has_no_measurements() -> None:
    events = [run_started(1), *trial_events("t0001")[:-1], ended("t0001", "failed", "killed by SIGKILL"), run_ended()]
    session = fold(events)
    assert outcomes(session) == [("failed", "killed by SIGKILL")]
    assert session.measurements == ()


def test_an_end_without_a_reason_still_has_one() -> None:
    assert outcomes(fold([run_started(1), ended("t0001", "skipped")])) == [("skipped", "no reason was given")]


def test_the_first_end_of_a_trial_stands() -> None:
    events = [run_started(1), *trial_events("t0001"), ended("t0001", "failed", "late"), *trial_events("t0001")]
    session = fold(events)
    assert outcomes(session) == [("completed", "")]
    assert len(session.measurements) == 1


def test_a_repeated_start_loses_no_durations() -> None:
    begin, *rest = trial_events("t0001")
    session = fold([run_started(1), begin, *rest[:3], begin, *rest[3:]])
    assert session.measurements[0].n == 10


def test_a_resumed_run_takes_up_what_was_not_finished() -> None:
    events = [run_started(3), *trial_events("t0001"), started("t0002"), iterations("t0002", (9.0,) * 50)]
    events += [ended("t0003", "not_run", "the run was stopped"), resumed()]
    again = fold(events)
    assert outcomes(again) == [("completed", ""), ("aborted", DIED), ("not_run", "the run was stopped")]
    session = fold([*events, *trial_events("t0002"), *trial_events("t0003"), run_ended()])
    assert outcomes(session) == [("completed", "")] * 3
    assert [each.n for each in session.measurements] == [10, 10, 10]


def test_a_resumed_run_leaves_finished_trials_alone() -> None:
    events = [run_started(2), *trial_events("t0001"), ended("t0002", "failed", "it broke"), run_ended(), resumed()]
    events += [started("t0001"), ended("t0001", "aborted", "again"), started("t0002"), ended("t0002", "completed")]
    assert outcomes(fold(events)) == [("completed", ""), ("failed", "it broke")]


def test_a_resumed_run_that_dies_again_is_aborted() -> None:
    session = fold([run_started(1), run_ended(), resumed()])
    assert (session.outcome, session.reason) == ("aborted", DIED)


def test_seconds_across_a_reboot_follow_the_wall_clock() -> None:
    # started at wall 1 700 000 000, resumed 500 s later at monotonic 20, last event at monotonic 110
    assert fold([run_started(1), resumed(20.0), run_ended()]).seconds == 590.0


def test_seconds_within_one_boot_follow_the_monotonic_clock() -> None:
    again = resumed(105.0, anchor().boot_id)
    assert fold([run_started(1), again, run_ended()]).seconds == 10.0


def test_a_clock_that_went_backwards_gives_no_seconds() -> None:
    early = RunResumed(t=5.0, version="0.1.0", anchor=anchor(5.0, 1_600_000_000.0, "another"))
    assert fold([run_started(1), early]).seconds == Missing("the clock went backwards")


def test_a_start_that_no_calendar_knows() -> None:
    start = msgspec.structs.replace(run_started(1), anchor=anchor(wall_s=1e300))
    assert fold([start]).started == "1e+300 s after 1970, which is no date"


def test_a_changed_machine_is_told_after_a_resume() -> None:
    changed = Fingerprint(t=201.0, facts={"driver": "999.9"})
    session = fold([run_started(1), *setting(), resumed(), changed])
    assert session.fingerprint["driver"] == "570.1"
    assert session.notices == ("warning: fingerprint: driver changed in a resumed run: 570.1 is now 999.9",)


def test_notices_are_bounded() -> None:
    events = [Notice(t=1.0, level="warning", source="x", text=str(number)) for number in range(1000)]
    session = fold([*events, Notice(t=1.0, level="info", source="x", text="quiet")])
    assert len(session.notices) == MAX_NOTICES + 1
    assert session.notices[-1] == "warning: further notices are in the journal alone"


def test_a_lost_first_line_is_said() -> None:
    session = fold(trial_events("t0001"))
    assert (session.outcome, session.trials) == ("failed", ())
    assert "first line is lost" in session.reason


def test_durations_are_released_when_a_trial_ends() -> None:
    folded = Fold()
    for event in run_events(1):
        folded.add(event)
    assert folded._trials["t0001"].durations == {}


def test_lost_durations_are_told_in_the_measurement() -> None:
    metric = msgspec.structs.replace(METRIC, count=25)
    session = fold([run_started(1), started("t0001"), iterations("t0001"), result("t0001", metric), ended("t0001")])
    assert session.measurements[0].steady == "no steady state: 15 of 25 iterations are missing in the journal"


def test_two_planned_trials_of_one_name_are_two_reported() -> None:
    start = msgspec.structs.replace(run_started(1), trials=(planned(1), planned(1)))
    assert outcomes(fold([start, *trial_events("t0001")])) == [("completed", ""), ("completed", "")]


NAMES = st.sampled_from(["t0001", "t0002", "t0003", "stranger"])
TIMES = st.floats(allow_nan=False, allow_infinity=False)
OUTCOMES = st.sampled_from(["completed", "failed", "unsupported", "skipped", "aborted", "not_run"])
METRICS = st.builds(
    MetricResult,
    metric=st.sampled_from(["rate", "other"]),
    unit=st.just("u"),
    better=st.sampled_from(["higher", "lower"]),
    work=TIMES,
    work_unit=st.just("B"),
    scale=st.one_of(st.just(0.0), st.just(1e9), TIMES),
    count=st.integers(),
    timer=st.just(""),
)
EVENTS: st.SearchStrategy[Any] = st.one_of(
    st.builds(
        RunStarted,
        t=TIMES,
        run=st.just("r"),
        version=st.just("v"),
        anchor=st.builds(anchor, TIMES, TIMES),
        plan=st.just({}),
        trials=st.lists(st.sampled_from([planned(1), planned(2), planned(3)]), max_size=4).map(tuple),
    ),
    st.builds(resumed, TIMES),
    st.builds(started, NAMES, TIMES),
    st.builds(
        Iterations,
        t=TIMES,
        trial=NAMES,
        rank=st.integers(0, 1),
        metric=st.sampled_from(["rate", "other"]),
        group=st.integers(),
        durations_s=st.lists(st.one_of(st.just(0.001), TIMES), max_size=20).map(tuple),
    ),
    st.builds(
        WorkerResult,
        t=TIMES,
        trial=NAMES,
        rank=st.integers(0, 1),
        metrics=st.lists(METRICS, max_size=3).map(tuple),
        facts=st.just({}),
    ),
    st.builds(telemetry, NAMES),
    st.builds(TrialEnded, t=TIMES, trial=NAMES, outcome=OUTCOMES, reason=st.sampled_from(["", "why"]), seconds=TIMES),
    st.builds(
        RunEnded, t=TIMES, outcome=st.sampled_from(["completed", "failed"]), reason=st.just(""), exit_code=st.just(0)
    ),
    st.builds(
        DeviceSeen, t=TIMES, device=NAMES, index=st.just(0), kind=st.just("cpu"), name=st.just(""), facts=st.just({})
    ),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(EVENTS, max_size=40), st.booleans(), st.booleans())
def test_any_sequence_reports_each_planned_trial_once(events: list[AnyEvent], begun: bool, alive: bool) -> None:
    if begun:
        events = [run_started(3), *events]
    session = fold(events, alive=alive)
    plans = [event.trials for event in events if isinstance(event, RunStarted)]
    assert [each.trial for each in session.trials] == [each.trial for each in (plans[0] if plans else ())]
    assert all(each.reason or each.outcome in ("completed", "running", "planned") for each in session.trials)
    completed = {each.trial for each in session.trials if each.outcome == "completed"}
    assert {each.trial for each in session.measurements} == completed
    assert parse_session(dump_session(session), "it") == session


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=30), st.lists(EVENTS, max_size=30))
def test_a_completed_trial_stays_completed(before: list[AnyEvent], after: list[AnyEvent]) -> None:
    folded = Fold()
    for event in [run_started(3), *before]:
        folded.add(event)
    completed = {each.trial: each for each in folded.session().trials if each.outcome == "completed"}
    for event in after:
        folded.add(event)
    later = {each.trial: each for each in folded.session().trials}
    assert {name: later[name] for name in completed} == completed


def test_a_started_trial_of_a_finished_run_needs_no_anchor() -> None:
    begun: list[AnyEvent] = [TrialStarted(t=1.0, trial="t0001", python="", deadline_s=1.0, counts={}), run_ended()]
    assert fold(begun).seconds == Missing("its journal has no start")


@pytest.mark.parametrize("durations", [(0.0,) * 10, (-1.0,) * 10, (1e300,) * 10])
def test_durations_that_cannot_be_make_no_figure(durations: tuple[float, ...]) -> None:
    session = fold([run_started(1), started("t0001"), iterations("t0001", durations), result("t0001"), ended("t0001")])
    assert session.trials[0].outcome == "failed"
    assert session.measurements == ()
