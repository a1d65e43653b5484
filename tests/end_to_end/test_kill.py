"""kill -9 of any of our processes, at any moment: no worker is left two seconds later, and nothing finished is lost."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from engine import runfolder, sessions
from engine.events import RunStarted, TrialEnded
from engine.journal import read_events
from engine.session import Session
from tests.engine.launch.podman import configure, containers_of
from tests.program import Program, wait_for, write_plan
from tests.program.victims import RUN_ENDS_WITH, Found, Victim, aim, containers_left, left_behind, of_run

SEED = 20260
AT_ONCE = 8
END_S = 20.0
TRIES = 20
"""A run that was over at its moment is run again; so many misses in a row are a fault of the test."""

BARE = ("owner", "runner", "telemetry", "probe", "keeper", "worker")
TORCH_ROLES = ("inspection", "runner", "owner", "worker", "keeper")
CONTAINER_ROLES = ("owner", "runner", "guard", "client", "conmon", "keeper", "worker")


@dataclass(frozen=True)
class Kind:
    """A kind of run to shoot at, and about how long it prepares and then measures, in seconds.

    A run of `short` trials ends by itself, and kills fall between its trials too. In one that is not short, a worker
    with a daemon of its own hangs for ever, so that what is left two seconds after a kill would still be there.
    """

    name: str
    roles: tuple[str, ...]
    prepares_s: float
    measures_s: float
    short: bool = True
    env: str = "bare"


BUSY = Kind("busy", BARE, 1.0, 2.0)
HANGING = Kind("hanging", BARE, 1.0, 1.5, short=False)
TORCH = Kind("torch", TORCH_ROLES, 3.0, 3.0)
BUSY_CONTAINERS = Kind("busy containers", CONTAINER_ROLES, 1.0, 3.0, env="podman")
HANGING_CONTAINER = Kind("hanging container", CONTAINER_ROLES, 1.0, 1.5, short=False, env="podman")


@dataclass(frozen=True)
class Shot:
    """One kill: what was hit and when, and what was seen afterwards; every list should be empty."""

    number: int
    kind: str
    moment: str
    victim: Victim
    left: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    unreported: tuple[str, ...] = ()
    disturbed: tuple[str, ...] = ()
    outcome: str = "no run yet"


def start(program: Program, kind: Kind) -> subprocess.Popen[bytes]:
    """Start a run of this kind."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if kind is TORCH:
        plan = program.home / "plan.toml"
        plan.write_text(
            'schema = 1\n[target]\ndevices = ["cpu"]\n[repetition]\nseconds = 0.1\nrepeat = 2\n[[scenario]]\n'
            'id = "gemm"\n[scenario.parameters]\ndtypes = ["fp32"]\nshapes = ["64x48x32"]\n'
        )
    elif kind.short:
        plan = write_plan(program, "nothing", env=kind.env, seconds=0.1, repeat=3)
    else:
        plan = write_plan(program, "brood", "nothing", floor="first", env=kind.env)
    return program.start(
        "run", "--plan", str(plan), "--python", sys.executable, "--out", str(program.sessions), **quiet
    )


def shoot(number: int, kind: Kind, program: Program) -> Shot:
    """One run and one kill, after a random time, of a process of it."""
    chance = random.Random(SEED + number)
    for attempt in range(TRIES):
        tried = replace(program, home=program.home / f"{number}-{attempt}")
        tried.home.mkdir()
        if kind.env == "podman":  # by a configuration of its own, podman's processes can be told from another run's
            own = shutil.copy(os.environ["CONTAINERS_CONF"], tried.home)
            tried.extra_env = {"CONTAINERS_CONF": str(own)}
        process = start(tried, kind)
        moment = await_moment(number, kind, tried, chance)
        victim = aim(tried, process.pid, kind.roles[number % len(kind.roles)], chance)
        if victim is not None:
            return hit(Shot(number, kind.name, moment, victim), kind, tried, process)
        process.wait(timeout=60)
    raise AssertionError(f"no run of {TRIES} lasted until its moment")


def await_moment(number: int, kind: Kind, program: Program, chance: random.Random) -> str:
    """Every fourth kill comes while the run looks for devices and interpreters, the others after its first trial began.

    On a busy machine the former takes longer, so that otherwise it would get most of the kills.
    """
    if number % 4 == 0:
        after, pause_s = "the start", chance.uniform(0.05, kind.prepares_s)
    else:
        after, pause_s = "the first trial's start", chance.uniform(0.0, kind.measures_s)
        journals = program.sessions.glob
        wait_for(
            lambda: any(b'"trial_started"' in path.read_bytes() for path in journals("*/journal.jsonl")),
            60,
            "the first trial",
            pause_s=0.05,
        )
    time.sleep(pause_s)
    return f"{pause_s:.2f} s after {after}"


def hit(shot: Shot, kind: Kind, program: Program, process: subprocess.Popen[bytes]) -> Shot:
    """Kill, look two seconds later, let the run end and see what `show` has of it."""
    before = {folder: finished(folder) for folder in program.folders()}
    assert shot.victim.pid > 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(shot.victim.pid, signal.SIGKILL)
    time.sleep(2.0)
    left = [str(each) for each in left_behind(program, process.pid, shot.victim)]
    if kind.env == "podman":
        left += containers_left(shot.victim, containers(program))
    if not kind.short and process.poll() is None:
        process.terminate()
    process.wait(timeout=60)
    left += [f"{each} at the end" for each in await_end(program)]
    if kind.env == "podman":
        left += [f"{name} at the end" for name in containers(program)]
    return judge(replace(shot, left=tuple(left)), kind, program, before)


def await_end(program: Program) -> list[Found]:
    """Wait until no process of the run is left; those that stay are ended here and returned."""
    end = time.monotonic() + END_S
    while (found := of_run(program, 0)) and time.monotonic() < end:
        time.sleep(0.2)
    for each in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each.process.pid, signal.SIGKILL)
    return found


def containers(program: Program) -> list[str]:
    """The containers of the program's runs."""
    return [name for run in program.run_ids() for name in containers_of(run)]


def finished(folder: Path) -> dict[str, bytes]:
    """Trials whose end is in the journal right now, with what it says."""
    journal = folder / runfolder.JOURNAL
    if not journal.exists():
        return {}
    return {each.trial: msgspec.json.encode(each) for each in read_events(journal) if isinstance(each, TrialEnded)}


def judge(shot: Shot, kind: Kind, program: Program, before: dict[Path, dict[str, bytes]]) -> Shot:
    """Compare what `show` reads with what was planned, and with what was finished before the kill."""
    for folder in program.folders():
        journal = folder / runfolder.JOURNAL
        planned = _planned(journal)
        if not planned:
            continue
        session = sessions.load(folder)
        ended = finished(folder)
        lost = [trial for trial, end in before.get(folder, {}).items() if ended.get(trial) != end]
        measured = {measurement.trial for measurement in session.measurements}
        lost += sorted({trial.trial for trial in session.trials if trial.outcome == "completed"} - measured)
        reported = {trial.trial for trial in session.trials}
        shot = replace(
            shot,
            lost=tuple(lost),
            unreported=(*sorted(planned ^ reported), *_not_shown(shot, folder, program, planned)),
            disturbed=tuple(_disturbed(shot, kind, session)),
            outcome=session.outcome,
        )
    return shot


def _planned(journal: Path) -> set[str]:
    events = read_events(journal) if journal.exists() else iter(())
    return {trial.trial for event in events if isinstance(event, RunStarted) for trial in event.trials}


def _not_shown(shot: Shot, folder: Path, program: Program, planned: set[str]) -> set[str]:
    """Trials that the command itself leaves out; asked after some shots only, since it takes a process."""
    if shot.number % 8:
        return set()
    done = program.call("show", str(folder), "--json")
    assert done.returncode == 0, done.stderr
    return planned - {trial["trial"] for trial in json.loads(done.stdout)["trials"]}


def _disturbed(shot: Shot, kind: Kind, session: Session) -> Iterable[str]:
    """Trials that did not complete although neither they nor the run were hit."""
    if kind.short and shot.victim.role not in RUN_ENDS_WITH:
        for trial in session.trials:
            if trial.trial != shot.victim.trial and trial.outcome != "completed":
                yield f"{trial.trial} {trial.outcome}: {trial.reason}"


def fire(kinds: Sequence[Kind], program: Program, wanted: Sequence[str]) -> None:
    """A kill for each of `kinds`; every one must have left and lost nothing, and every wanted role must be hit."""
    numbered = list(enumerate(kinds))
    random.Random(SEED).shuffle(numbered)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        shots = list(pool.map(lambda each: shoot(each[0], each[1], program), numbered))
    bad = [shot for shot in shots if shot.left or shot.lost or shot.unreported or shot.disturbed]
    hits = Counter(shot.victim.role for shot in shots)
    print(f"victims and outcomes: {Counter((shot.victim.role, shot.outcome) for shot in shots)}", *bad, sep="\n")
    assert not bad, f"{len(bad)} of {len(shots)} kills, with victims {dict(hits)}; the first: {bad[0]}"
    assert hits.keys() >= set(wanted)


@pytest.mark.timeout(400)
def test_kills_lose_nothing_and_leave_nothing(hostile: Program) -> None:
    fire([BUSY] * 102 + [HANGING] * 70, hostile, BARE)


@pytest.mark.timeout(200)
def test_kills_of_runs_with_torch_lose_nothing_and_leave_nothing(hostile: Program) -> None:
    pytest.importorskip("torch", reason="cannot here: no torch in the tests' interpreter")
    hostile.extra_env = {"OMP_NUM_THREADS": "1"}
    fire([TORCH] * 10, hostile, TORCH_ROLES)


@pytest.mark.timeout(200)
def test_kills_of_runs_with_containers_lose_nothing_and_leave_nothing(
    hostile: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile.home.mkdir(exist_ok=True)
    configure(hostile.home, monkeypatch)
    fire([BUSY_CONTAINERS] * 9 + [HANGING_CONTAINER] * 9, hostile, CONTAINER_ROLES)
