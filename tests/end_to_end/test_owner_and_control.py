"""Who may steer a run, and what becomes of it when its owner goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from engine import sessions
from engine.control import ControlClient
from tests.program import Program, processes_with, wait_for

HANG_THEN_FLOOR = """schema = 1
on_owner_exit = "{on_owner_exit}"
hard_end_s = {hard_end_s}
[target]
devices = ["cpu"]
[repetition]
seconds = 0.05
trial_timeout_s = {timeout}
[[scenario]]
id = "misbehave"
[scenario.parameters]
how = ["hang"]
[[scenario]]
id = "floor"
"""


def started(
    program: Program, *, on_owner_exit: str = "stop", hard_end_s: float = 600, timeout: float = 60
) -> tuple[subprocess.Popen[bytes], str]:
    """A run whose first trial hangs, and its id."""
    plan = program.home / "plan.toml"
    plan.write_text(HANG_THEN_FLOOR.format(on_owner_exit=on_owner_exit, hard_end_s=hard_end_s, timeout=timeout))
    process = program.start("run", "--plan", str(plan), "--json", "--out", str(program.sessions))
    wait_for(lambda: b'"name":"setup"' in _journal(program), what="the hanging trial")
    return process, program.run_ids()[0]


def marks(program: Program, run: str) -> tuple[str, str]:
    """What the runner's environment holds, and that of everything that it starts."""
    return f"AIBENCH_RUNTIME_DIR={program.runtime}", f"AIBENCH_RUN_ID={run}"


def _journal(program: Program) -> bytes:
    return b"".join(path.read_bytes() for path in program.sessions.glob("*/journal.jsonl"))


@pytest.fixture
def runtime(hostile: Program, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process looks for control sockets where the program has them."""
    monkeypatch.setenv("AIBENCH_RUNTIME_DIR", str(hostile.runtime))
    return hostile.runtime


@pytest.mark.usefixtures("runtime")
def test_skip_ends_the_trial_and_the_run_goes_on(hostile: Program) -> None:
    process, run = started(hostile)
    with ControlClient(run) as client:
        assert client.send("skip")["ok"]
    out, err = process.communicate(timeout=60)
    trials = json.loads(out)["trials"]
    assert [trial["outcome"] for trial in trials] == ["skipped", "completed"], err
    assert trials[0]["reason"].startswith("skipped by ")
    assert process.returncode == 0
    assert b'"command":"skip"' in _journal(hostile)


@pytest.mark.usefixtures("runtime")
def test_a_paused_run_starts_no_trial_until_it_is_resumed(hostile: Program) -> None:
    process, run = started(hostile)
    with ControlClient(run) as client:
        assert client.send("pause")["ok"]
        assert client.send("skip")["ok"]
        wait_for(lambda: b'"trial_ended"' in _journal(hostile), what="the end of the skipped trial")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1.0)
        assert _journal(hostile).count(b'"trial_started"') == 1
        assert client.send("resume")["ok"]
        out, _ = process.communicate(timeout=60)
    assert [trial["outcome"] for trial in json.loads(out)["trials"]] == ["skipped", "completed"]


@pytest.mark.usefixtures("runtime")
def test_only_one_controller_at_a_time(hostile: Program) -> None:
    process, run = started(hostile)
    with ControlClient(run) as first, ControlClient(run) as second:
        assert first.send("claim")["ok"]
        refused = second.send("stop")
        assert not refused["ok"]
        assert str(os.getpid()) in refused["reason"]
        assert second.send("status")["ok"]
        assert first.send("stop")["ok"]
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert json.loads(out)["outcome"] == "aborted"
    assert "stopped by" in json.loads(out)["reason"]


def test_a_run_that_stops_with_its_owner(hostile: Program) -> None:
    process, run = started(hostile)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not list(processes_with(*marks(hostile, run))), 10, "the end of the run")
    session = sessions.load(hostile.folders()[0])
    assert session.outcome == "aborted"
    assert "owner" in session.reason
    assert [trial.outcome for trial in session.trials] == ["aborted", "not_run"]
    assert (hostile.folders()[0] / "session.toml").is_file()


def test_a_run_that_goes_on_without_its_owner(hostile: Program) -> None:
    process, run = started(hostile, on_owner_exit="continue", timeout=2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for(lambda: not list(processes_with(*marks(hostile, run))), 30, "the end of the run")
    session = sessions.load(hostile.folders()[0])
    assert session.outcome == "completed"
    assert [trial.outcome for trial in session.trials] == ["failed", "completed"]


def test_the_hard_end_ends_every_run(hostile: Program) -> None:
    process, _ = started(hostile, hard_end_s=2)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert "hard end of 2 s" in json.loads(out)["reason"]
