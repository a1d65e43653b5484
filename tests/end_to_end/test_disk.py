"""A disk that fails, at any call, in the real program: what was finished stays, and one clear line says what to do."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine import runfolder, sessions
from tests.faults import Call, build_shim, fault_environment, read_calls
from tests.program import Program, processes_with, wait_for, write_plan

TRIALS = 2
AT_ONCE = 6
SMALL_DISK_BYTES = 1536 * 1024


@dataclass
class Seen:
    """What a run with one failing call showed."""

    n: int
    fired: bool
    code: int
    last_line: str
    told: int
    completed: int
    reported: int
    traceback: bool


ARGUMENTS = ("run", "--preset", "floor", "--repeat", str(TRIALS), "--seconds", "0.05")


def run_with_fault(home: Path, library: Path, n: int, number: int, *, sticky: bool) -> Seen:
    """Run the trials; the n-th call that changes the sessions folder fails in each of our processes."""
    program = Program(home / f"n{n}-{sticky}")
    program.sessions.mkdir(parents=True)
    mark = program.home / "fired"
    program.extra_env = fault_environment(library, program.sessions, n, number, sticky=sticky, removals=True, mark=mark)
    done = program.call(*ARGUMENTS, "--out", str(program.sessions))
    program.extra_env = None
    folders = program.folders()
    session = sessions.load(folders[0]) if folders and (folders[0] / "journal.jsonl").exists() else None
    lines = done.stderr.strip().splitlines()
    return Seen(
        n=n,
        fired=mark.exists(),
        code=done.returncode,
        last_line=lines[-1] if lines else "",
        told=len(re.findall(r"^\[\d/\d\] .* ns$", done.stderr, re.MULTILINE)),
        completed=sum(trial.outcome == "completed" for trial in session.trials) if session else 0,
        reported=len(session.trials) if session else 0,
        traceback="Traceback" in done.stderr,
    )


def calls_to_fail(home: Path, library: Path) -> list[Call]:
    """The calls of the runner in a run without a fault; of those that copy the stage, the first of each function."""
    program = Program(home / "none")
    program.sessions.mkdir(parents=True)
    log = program.home / "calls"
    program.extra_env = fault_environment(library, program.sessions, removals=True, log=log)
    assert program.call(*ARGUMENTS, "--out", str(program.sessions)).returncode == 0
    calls = read_calls(log)
    runner = calls[-1].process  # the owner writes nothing once it has started it
    kept: list[Call] = []
    for call in calls:
        copies = f"/{runfolder.STAGE}" in call.path
        if call.process == runner and not (copies and any(_same_step(call, other) for other in kept)):
            kept.append(call)
    return kept


def _same_step(one: Call, other: Call) -> bool:
    return f"/{runfolder.STAGE}" in other.path and one.function == other.function


def every_fault(home: Path, library: Path, number: int, *, sticky: bool) -> list[Seen]:
    """One run for each n that is worth it, and on until n is beyond the last call."""
    numbers = [call.n for call in calls_to_fail(home, library)]
    beyond = range(numbers[-1] + 1, numbers[-1] + 100)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        seen = list(pool.map(lambda n: run_with_fault(home, library, n, number, sticky=sticky), numbers))
        for n in beyond:
            seen.append(run_with_fault(home, library, n, number, sticky=sticky))
            if not seen[-1].fired:
                return seen
    raise AssertionError("the faults found no end")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("number", "sticky"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_a_fault_in_any_call_loses_no_finished_trial(tmp_path: Path, number: int, sticky: bool) -> None:
    seen = every_fault(tmp_path, build_shim(tmp_path), number, sticky=sticky)
    assert sum(each.fired for each in seen) > 50
    assert [each for each in seen if _is_wrong(each)] == []


def _is_wrong(seen: Seen) -> bool:
    """Whether something was lost, or was not said in one line."""
    if seen.traceback or seen.completed < seen.told or seen.code not in (0, 1, 2, 3):
        return True
    if seen.reported not in (0, TRIALS):
        return True
    if seen.code == 0:
        return seen.completed != TRIALS
    says = re.search(f"{os.strerror(errno.ENOSPC)}|{os.strerror(errno.EIO)}", seen.last_line)
    return not (seen.last_line.startswith("aibench-tui: ") and says and "; " in seen.last_line)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with hardly any room."""
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("needs root to mount a small file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "tmpfs", str(disk)], check=False
    )
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount a tmpfs")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_ends_the_run_with_one_line_and_keeps_what_is_finished(hostile: Program, small_disk: Path) -> None:
    plan = write_plan(hostile, "flood", floor="first")
    done = hostile.call("run", "--plan", str(plan), "--repeat", "9", "--out", str(small_disk))
    assert done.returncode in (1, 3), done.stderr
    assert "Traceback" not in done.stderr
    assert "No space left" in done.stderr
    (folder,) = small_disk.glob("[0-9]*")
    session = sessions.load(folder)
    assert len(session.trials) == 18
    assert session.trials[0].outcome == "completed"
    assert session.outcome in ("completed", "failed")


def test_a_run_folder_that_vanishes_ends_the_run(hostile: Program) -> None:
    plan = write_plan(hostile, "hang", trial_timeout_s=2)
    process = hostile.start("run", "--plan", str(plan), "--out", str(hostile.sessions))
    wait_for(lambda: list(hostile.sessions.glob("*/scratch/t0001/trial.json")), what="the first trial")
    (run,) = hostile.run_ids()
    shutil.rmtree(hostile.folders()[0])
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert b"Traceback" not in err
    wait_for(lambda: not list(processes_with(f"AIBENCH_RUN_ID={run}")), what="the end of its processes")
