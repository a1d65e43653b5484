"""kill -9 of any of our processes, at any moment: no worker is left two seconds later, and nothing finished is lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from engine import runfolder, sessions
from engine.events import TrialEnded
from engine.journal import read_events
from tests.program import Program, processes_with, run_of, wait_for

KILLS = 200
SEED = 20260
TRIALS = 8
LATEST_S = 3.5
"""With six at once, a run of that many trials takes about this long here, so kills fall into every part of it."""


@dataclass
class Shot:
    """One kill: what was hit, and what was seen afterwards."""

    number: int
    victim: str
    left: list[tuple[int, str]]
    lost: list[str]
    planned: int
    reported: int
    outcome: str


def marks(program: Program) -> tuple[str, ...]:
    """What the environment of this program's processes holds."""
    return (f"AIBENCH_RUNTIME_DIR={program.runtime}", *(f"AIBENCH_RUN_ID={run}" for run in program.run_ids()))


def workers(program: Program) -> list[tuple[int, str]]:
    """The keepers, workers and sensors that are alive."""
    wanted = ("keeper.py", "worker/main.py", "engine.telemetry")
    return [
        (pid, command) for pid, command in processes_with(*marks(program)) if any(name in command for name in wanted)
    ]


def role(command: str) -> str:
    """Which of our processes a command line belongs to."""
    for name in ("keeper.py", "worker/main.py", "engine.telemetry", "engine.hardware", "engine.runner", "engine.guard"):
        if name in command:
            return name
    return "owner" if "aibench_tui.py" in command else "other"


def finished(folder: Path) -> dict[str, bytes]:
    """Trials whose end is in the journal right now, with what it says."""
    journal = folder / runfolder.JOURNAL
    if not journal.exists():
        return {}
    return {each.trial: msgspec.json.encode(each) for each in read_events(journal) if isinstance(each, TrialEnded)}


def take_aim(program: Program, owner: int, chance: random.Random) -> tuple[int, str]:
    """A process of the run that is alive now, (0, "") where the run is over; each role is as likely as the others."""
    by_role: dict[str, list[int]] = {}
    for pid, command in processes_with(*marks(program)):
        by_role.setdefault(role(command), []).append(pid)
    if owner not in by_role.get("owner", []):
        return 0, ""
    victim = chance.choice(sorted(by_role))
    return chance.choice(by_role[victim]), victim


def shoot(number: int, home: Path) -> Shot:
    """One run, one kill after a random time of a random process of it; a run that was over already is run again."""
    chance = random.Random(SEED + number)
    for attempt in range(20):
        program = Program(home / f"kill{number}-{attempt}")
        command = [
            "run",
            "--preset",
            "floor",
            "--repeat",
            str(TRIALS),
            "--seconds",
            "0.1",
            "--out",
            str(program.sessions),
        ]
        process = program.start(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0.2, LATEST_S))
        pid, victim = take_aim(program, process.pid, chance)
        if pid:
            break
        process.wait(timeout=60)
    before = {folder: finished(folder) for folder in program.folders()}
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    left: list[tuple[int, str]] = []
    if victim in ("owner", "engine.runner"):
        time.sleep(2.0)
        left = workers(program)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=60)
    wait_for(
        lambda: not list(processes_with(*marks(program))), 20, f"the end of run {number} after {victim} was killed"
    )
    return judge(number, victim, program, before, left)


def judge(
    number: int, victim: str, program: Program, before: dict[Path, dict[str, bytes]], left: list[tuple[int, str]]
) -> Shot:
    """Compare what `show` reads with what was finished before the kill."""
    lost: list[str] = []
    planned = reported = 0
    outcome = "no run yet"
    for folder in program.folders():
        if not finished(folder) and not before.get(folder):
            continue
        session = sessions.load(folder)
        outcome = session.outcome
        ended = finished(folder)
        lost += [trial for trial, end in before.get(folder, {}).items() if ended.get(trial) != end]
        completed = {trial.trial for trial in session.trials if trial.outcome == "completed"}
        measured = {measurement.trial for measurement in session.measurements}
        lost += sorted(completed - measured)
        planned, reported = TRIALS, len(session.trials)
    return Shot(number, victim, left, lost, planned, reported, outcome)


@pytest.mark.timeout(600)
def test_two_hundred_kills_lose_nothing_and_leave_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        shots = list(pool.map(lambda number: shoot(number, tmp_path), range(KILLS)))
    assert [shot for shot in shots if shot.left] == []
    assert [shot for shot in shots if shot.lost] == []
    assert [shot for shot in shots if shot.planned != shot.reported] == []
    hit = {shot.victim for shot in shots}
    assert {"owner", "engine.runner", "engine.telemetry", "engine.hardware", "keeper.py", "worker/main.py"} <= hit
    assert "completed" in {shot.outcome for shot in shots if shot.victim in ("engine.telemetry", "keeper.py")}


def test_a_killed_keeper_fails_its_trial_and_the_run_goes_on(hostile: Program) -> None:
    process = hostile.start(
        "run",
        "--scenario",
        "misbehave",
        "--scenario",
        "floor",
        "--plan",
        str(_hanging_plan(hostile)),
        "--json",
        "--out",
        str(hostile.sessions),
    )
    wait_for(lambda: [pid for pid, command in workers(hostile) if "worker/main.py" in command], what="the worker")
    time.sleep(0.3)
    (keeper,) = [pid for pid, command in workers(hostile) if "keeper.py" in command]
    worker = [pid for pid, command in workers(hostile) if "keeper.py" not in command and "worker/main.py" in command]
    os.kill(keeper, signal.SIGKILL)
    wait_for(lambda: not any(Path(f"/proc/{pid}/stat").exists() for pid in worker), 2.0, "the worker's end")
    out, err = process.communicate(timeout=60)
    document = msgspec.json.decode(out)
    outcomes = {trial["scenario"]: (trial["outcome"], trial["reason"]) for trial in document["trials"]}
    assert outcomes["hostile/misbehave"][0] == "failed"
    assert "keeper was killed" in outcomes["hostile/misbehave"][1]
    assert outcomes["harness/floor"][0] == "completed"
    assert process.returncode == 1, err.decode()


def _hanging_plan(program: Program) -> Path:
    program.home.mkdir(parents=True, exist_ok=True)
    plan = program.home / "hang.toml"
    plan.write_text(
        'schema = 1\n[target]\ndevices = ["cpu"]\n[repetition]\nseconds = 0.05\n'
        '[[scenario]]\nid = "hostile/misbehave"\n[scenario.parameters]\nhow = ["hang"]\n'
        '[[scenario]]\nid = "harness/floor"\n'
    )
    return plan


def test_a_killed_runner_is_reported_and_its_run_resumed(hostile: Program) -> None:
    process = hostile.start("run", "--plan", str(_hanging_plan(hostile)), "--out", str(hostile.sessions))
    wait_for(lambda: [pid for pid, command in workers(hostile) if "worker/main.py" in command], what="the worker")
    (runner,) = [pid for pid, command in processes_with(*marks(hostile)) if role(command) == "engine.runner"]
    os.kill(runner, signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 3
    assert b"killed or power lost" in err
    assert b"--resume" in err.splitlines()[-1]
    wait_for(lambda: not workers(hostile), 2.0, "the end of the workers")
    (folder,) = hostile.folders()
    session = sessions.load(folder)
    assert session.outcome == "aborted"
    assert [trial.outcome for trial in session.trials] == ["aborted", "not_run"]
    assert run_of(folder) == session.run
