"""One trial with real processes whose protocol lines are not to be believed: it fails, and nothing of it is kept."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import heard, journal, trial
from engine.events import (
    AnyEvent,
    Event,
    Iterations,
    RunStarted,
    TrialEnded,
    TrialStarted,
    WorkerHello,
    WorkerPhase,
    WorkerResult,
)
from engine.launch.base import Launch
from engine.sensors import Sensors
from engine.series import SeriesWriter
from engine.session import fold
from engine.strays import Strays
from engine.trial import Ended, TrialRun
from engine.trial_log import TrialLog
from tests.engine.journal_cases import anchor, planned
from tests.worker.keeping import TOKEN, marks

HONEST = """
import json, os, sys, time
seq = 0
def say(kind, **fields):
    global seq
    head = {"token": os.environ["AIBENCH_TOKEN"], "rank": 0, "seq": seq, "t": time.monotonic(), "kind": kind}
    print(json.dumps({**head, **fields}), flush=True)
    seq += 1
def metric(**fields):
    return {"metric": "rate", "unit": "TFLOP/s", "better": "higher", "work": 1e9, "work_unit": "FLOP", "scale": 1e12,
            "count": 4, "timer": "t", **fields}
def hello(**fields):
    say("hello", **{"pid": 1, "python": "3", "clock_offset_s": 0.0, "clock_uncertainty_s": 0.001, **fields})
def measure():
    for name in ("import", "setup", "warmup", "measure"):
        say("phase", name=name)
    time.sleep(0.05)
    say("phase", name="check")
def durations(**fields):
    say("iterations", **{"metric": "rate", "group": 1, "durations_s": [0.01] * 4, **fields})
def result(*metrics):
    say("result", metrics=metrics or [metric()], facts={})
def end():
    say("bye")
    say("keeper", rank=-1, seq=0, exit_code=0, signal=None, cause="ended", left=0, oom_kills=None)
"""

MEASURED = HONEST + "hello(); measure(); "


def run_script(folder: Path, script: str, record: Callable[[Event], None], deadline_s: float = 30.0) -> Ended:
    """A trial whose keeper is `script`; `record` gets its events."""
    path = folder / "keeper.py"
    path.write_text(script)
    environment = marks("run-x", "t0001") | {"AIBENCH_TOKEN": TOKEN, "PATH": os.environ["PATH"]}

    async def scene() -> Ended:
        sensors = Sensors((), SeriesWriter(folder / "series"), record)
        log = TrialLog(folder / "log")
        run = TrialRun("run-x", "t0001", TOKEN, deadline_s, log, sensors, Strays("run-x"), record)
        return await run.run(Launch((sys.executable, str(path)), environment, folder), ())

    (folder / "series").mkdir()
    return asyncio.run(scene())


def test_an_honest_trial(tmp_path: Path) -> None:
    events: list[Event] = []
    ended = run_script(tmp_path, MEASURED + "durations(); result(); end()", events.append)
    assert (ended.outcome, ended.reason, ended.counts) == ("completed", "", {"rate": 4})
    assert [each.name for each in events if isinstance(each, WorkerPhase)][-2:] == ["measure", "check"]


BELIEVED_NOT = {
    "hello(clock_offset_s=1.7e308)": "protocol: its clock is off by 1.7e+308 s",
    "hello(clock_offset_s=1e6)": "protocol: a line of",
    "hello(clock_uncertainty_s=1e9)": "protocol: its clock is off by 0 s +- 1e+09 s",
    "hello(); hello()": "protocol: it said hello twice",
    "hello(); say('phase', name='import', t=1.7e308)": "protocol: a line of 1.7e+308 s after the trial's begin",
    "hello(); say('phase', name='import', t=0.0)": "protocol: its clock went backwards",
    "say('phase', name='import', t=1.0)": "protocol: a line of",
    "hello(); say('phase', name='lunch')": "protocol: it entered phase 'lunch', which is none",
    "hello(); measure(); measure()": "protocol: it entered phase import twice",
    "hello(); say('phase', name='import', rank=1)": "protocol: a line of rank 1 in a trial of one worker",
    "hello(); say('bye', rank=-1)": "protocol: a line of rank -1 in a trial of one worker",
    "hello(); result(); result()": "protocol: it sent two results",
    "[durations(metric=str(n)) for n in range(100)]": "protocol: it sent durations of more than 64 metrics",
}


@pytest.mark.parametrize("lines", BELIEVED_NOT)
def test_lines_that_cannot_be_believed_fail_their_trial(tmp_path: Path, lines: str) -> None:
    events: list[Event] = []
    ended = run_script(tmp_path, f"{HONEST}\n{lines}\nend()", events.append)
    assert ended.outcome == "failed"
    assert ended.reason.startswith(BELIEVED_NOT[lines]), ended.reason
    for event in events:
        journal.encode(event)


NO_FIGURE = {
    "result(); end()": "the journal has no durations of rate",
    "durations(); say('result', metrics=[], facts={}); end()": "its result has no metrics",
    "durations(durations_s=[]); result(); end()": "the journal has no durations of rate",
    "durations(durations_s=[0.0] * 4); result(); end()": "rate has a duration of 0 s, too short for a rate",
    "durations(); result(metric(work=0.0)); end()": "rate counts no work",
    "durations(); result(metric(scale=-1.0)); end()": "rate counts no work",
    "durations(); result(metric(), metric()); end()": "its result names rate 2 times",
    "durations(); durations(metric='other'); result(); end()": "its result names other 0 times",
    "durations(); result(metric(count=5)); end()": "its result counts 5 iterations of rate, its durations 4",
    "durations(); result(metric(count=3)); end()": "its result counts 3 iterations of rate, its durations 4",
    "durations(durations_s=[9.0] * 4); result(); end()": "its durations add up to 36 s, but it measured for 0.05",
}


@pytest.mark.parametrize("lines", NO_FIGURE)
def test_a_result_without_figures_fails_its_trial(tmp_path: Path, lines: str) -> None:
    events: list[Event] = []
    ended = run_script(tmp_path, MEASURED + lines, events.append)
    assert ended.outcome == "failed"
    assert ended.reason.startswith(NO_FIGURE[lines]), ended.reason


def test_a_result_without_a_measured_window_fails_its_trial(tmp_path: Path) -> None:
    ended = run_script(tmp_path, HONEST + "hello(); durations(); result(); end()", lambda _: None)
    assert (ended.outcome, ended.reason) == ("failed", "it never entered phase measure")


AGREED = {
    "durations(); result(); end()": "completed",
    "durations(group=4, durations_s=[0.01, 0.01]); result(metric(count=5)); end()": "completed",
    "durations(); result(metric(work=1e-300, scale=1e300)); end()": "completed",
    "durations(durations_s=[1e-300] * 4); result(); end()": "failed",
}


@pytest.mark.parametrize("lines", AGREED)
def test_runner_and_session_agree_on_what_makes_figures(tmp_path: Path, lines: str) -> None:
    """Both ask the same rule: the session of a journal that claims completion says what the runner says."""
    events: list[AnyEvent] = [
        RunStarted(t=1.0, run="run-x", version="0", anchor=anchor(), plan={}, trials=(planned(1),)),
        TrialStarted(t=1.0, trial="t0001", python="p", deadline_s=9.0, counts={}),
    ]

    def record(event: Event) -> None:
        assert isinstance(event, WorkerHello | WorkerPhase | Iterations | WorkerResult)
        events.append(event)

    ended = run_script(tmp_path, MEASURED + lines, record)
    events.append(TrialEnded(t=2.0, trial="t0001", outcome="completed", reason="", seconds=1.0))
    (folded,) = fold(events).trials
    assert (folded.outcome, folded.reason) == (ended.outcome, ended.reason)
    assert ended.outcome == AGREED[lines]


FLOODS = {
    "lines": "while True: say('ping', n=1)",
    "lines of one number": "while True: seq = -1; say('iterations', metric='m', group=1, durations_s=[0] * 800)",
    "reports": "while True: say('keeper', exit_code=0, signal=None, cause='ended', left=0, oom_kills=None)",
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_of_valid_lines_ends_its_trial_and_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(trial, "KEEPER_GRACE_S", 0.2)
    monkeypatch.setattr(heard, "MAX_LINES", 5000)
    monkeypatch.setattr(heard, "MAX_BYTES", 1024**2)
    written = 0

    def record(event: Event) -> None:
        nonlocal written
        written += len(journal.encode(event))

    ended = run_script(tmp_path, HONEST + FLOODS[name], record, deadline_s=60)
    assert ended.outcome == "failed"
    assert "it sent more than" in ended.reason
    assert written <= heard.MAX_BYTES


def test_an_event_that_the_journal_refuses_fails_the_trial_at_once(tmp_path: Path) -> None:
    """What crashes the one who reads a worker's lines must not leave the worker waiting for its deadline."""

    def refuse(event: Event) -> None:
        if isinstance(event, WorkerPhase):
            raise RuntimeError("no journal can hold this")

    ended = run_script(tmp_path, f"{MEASURED}\nsys.stdin.read()", refuse, deadline_s=600)
    assert ended.reason == "its output could not be followed: RuntimeError: no journal can hold this"
    assert ended.seconds < 60


def test_a_keeper_that_is_deaf_is_ended_a_while_after_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "KEEPER_GRACE_S", 0.2)
    ended = run_script(tmp_path, f"{HONEST}\nhello(); hello(); time.sleep(600)", lambda _: None, deadline_s=600)
    assert (ended.outcome, ended.reason) == ("failed", "protocol: it said hello twice")
    assert ended.seconds < 60
