"""kill -9 of any of our processes, at any moment: no worker is left two seconds later, and nothing finished is lost."""

from __future__ import annotations

import contextlib
import itertools
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
from tests.program import Program, processes, run_of, wait_for, write_plan
from tests.program.victims import RUN_ENDS_WITH, Found, Victim, aim, containers_left, left_behind, of_run

SEED = 20260
AT_ONCE = 8
TIMEOUT_S = 15.0
"""Of a trial: far beyond two seconds, and soon enough for what only it ends, a client of podman without a container."""

PATIENCE_S = 1.0
END_S = 20.0
TRIES = 20
"""A run that was over at its moment is run again; so many misses in a row are a fault of the test."""

BARE = ("owner", "runner", "guard", "telemetry", "keeper", "worker")
CONTAINER = ("owner", "runner", "guard", "client", "conmon", "keeper", "worker")


@dataclass(frozen=True)
class Kind:
    """A kind of run to shoot at: about how long it prepares and then measures, in seconds, and whom to hit when.

    A run of `short` trials ends by itself, and kills fall between its trials too. In one that is not short, a worker
    with a daemon of its own hangs for ever, so that what is left two seconds after a kill would still be there.
    One kill in `early_one_in` comes while the run still prepares.
    """

    name: str
    prepares_s: float
    measures_s: float
    roles: tuple[str, ...] = BARE
    early_roles: tuple[str, ...] = ("probe", "runner", "probe", "owner")
    early_one_in: int = 4
    short: bool = True
    env: str = "bare"


BUSY = Kind("busy", 0.8, 2.0)
HANGING = Kind("hanging", 0.8, 1.5, short=False)
TORCH = Kind("torch", 2.5, 3.0, ("worker", "keeper", "runner"), ("inspection", "runner"), early_one_in=2)
BUSY_CONTAINERS = Kind("busy containers", 1.0, 3.0, CONTAINER, env="podman")
HANGING_CONTAINER = Kind("hanging container", 1.0, 1.5, CONTAINER, short=False, env="podman")


@dataclass(frozen=True)
class Target:
    """Whom to hit and when: in a random moment while the run prepares (`early`) or after its first trial began.

    Where no such process is alive then or soon after, another one of the run is hit.
    """

    number: int
    kind: Kind
    early: bool
    role: str


def targets(*counts: tuple[Kind, int]) -> list[Target]:
    """So many targets of each kind, the roles in turn, shuffled so that cheap and costly runs mix."""
    found: list[Target] = []
    for kind, count in counts:
        early, late = itertools.cycle(kind.early_roles), itertools.cycle(kind.roles)
        for number in range(count):
            is_early = number % kind.early_one_in == 0
            found.append(Target(len(found), kind, is_early, next(early if is_early else late)))
    random.Random(SEED).shuffle(found)
    return found


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
        plan = write_plan(program, "nothing", env=kind.env, seconds=0.1, repeat=3, trial_timeout_s=TIMEOUT_S)
    else:
        plan = write_plan(program, "brood", "nothing", floor="first", env=kind.env, trial_timeout_s=TIMEOUT_S)
    return program.start(
        "run", "--plan", str(plan), "--python", sys.executable, "--out", str(program.sessions), **quiet
    )


def shoot(target: Target, program: Program) -> Shot:
    """One run and one kill, after a random time, of a process of it."""
    chance = random.Random(SEED + target.number)
    for attempt in range(TRIES):
        tried = replace(program, home=program.home / f"{target.number}-{attempt}")
        tried.home.mkdir()
        if target.kind.env == "podman":  # by a configuration of its own, podman's processes are known to be this run's
            own = shutil.copy(os.environ["CONTAINERS_CONF"], tried.home)
            tried.extra_env = {"CONTAINERS_CONF": str(own)}
        process = start(tried, target.kind)
        moment = await_moment(target, tried, chance)
        victim = take_aim(target, tried, process.pid, chance)
        if victim is not None:
            return hit(Shot(target.number, target.kind.name, moment, victim), target.kind, tried, process)
        process.wait(timeout=60)
    raise AssertionError(f"no run of {TRIES} lasted until its moment")


def await_moment(target: Target, program: Program, chance: random.Random) -> str:
    """Wait for the target's moment, and say when it was.

    The first trial is waited for, since a busy machine takes long over what comes before it.
    """
    if target.early:
        after, pause_s = "the start", chance.uniform(0.05, target.kind.prepares_s)
    else:
        after, pause_s = "the first trial's start", chance.uniform(0.0, target.kind.measures_s)
        wait_for(lambda: _journal_has(program, b'"trial_started"'), 60, "the first trial", pause_s=0.05)
    time.sleep(pause_s)
    return f"{pause_s:.2f} s after {after}"


def take_aim(target: Target, program: Program, owner: int, chance: random.Random) -> Victim | None:
    """A process in the target's role, waited for a little; else another one of the run. None where the run is over."""
    end = time.monotonic() + PATIENCE_S
    while True:
        victim = aim(program, owner, target.role, chance)
        if victim is None or victim.role == target.role or time.monotonic() > end:
            return victim
        time.sleep(chance.uniform(0.01, 0.1))


def _journal_has(program: Program, text: bytes) -> bool:
    return any(text in path.read_bytes() for path in program.sessions.glob(f"*/{runfolder.JOURNAL}"))


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
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=60)
    left += [f"{each} at the end" for each in await_end(program, process)]
    if kind.env == "podman":
        left += [f"{name} at the end" for name in containers(program)]
    return judge(replace(shot, left=tuple(left)), kind, program, before)


def await_end(program: Program, owner: subprocess.Popen[bytes]) -> list[Found]:
    """Wait until no process of the run is left; those that stay are ended here and returned.

    A conmon whose client died while it started a container may stay: it is podman's, and holds nothing.
    """
    end = time.monotonic() + END_S
    while (
        (found := of_run(program, owner.pid)) and time.monotonic() < end and {each.role for each in found} != {"conmon"}
    ):
        time.sleep(0.2)
    for each in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each.process.pid, signal.SIGKILL)
    owner.wait()
    return [each for each in found if each.role != "conmon"]


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


def fire(aims: Sequence[Target], program: Program) -> None:
    """Every kill must leave and lose nothing, and a process of every role must have been hit."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        shots = list(pool.map(lambda target: shoot(target, program), aims))
    bad = [shot for shot in shots if shot.left or shot.lost or shot.unreported or shot.disturbed]
    hits = Counter(shot.victim.role for shot in shots)
    print(f"victims and outcomes: {Counter((shot.victim.role, shot.outcome) for shot in shots)}", *bad, sep="\n")
    assert not bad, f"{len(bad)} of {len(shots)} kills, with victims {dict(hits)}; the first: {bad[0]}"
    assert hits.keys() >= {target.role for target in aims}, hits


@pytest.mark.timeout(400)
def test_kills_lose_nothing_and_leave_nothing(hostile: Program) -> None:
    fire(targets((BUSY, 92), (HANGING, 78)), hostile)


@pytest.mark.timeout(200)
def test_kills_of_runs_with_torch_lose_nothing_and_leave_nothing(hostile: Program) -> None:
    pytest.importorskip("torch", reason="cannot here: no torch in the tests' interpreter")
    hostile.extra_env = {"OMP_NUM_THREADS": "1"}
    fire(targets((TORCH, 10)), hostile)


@pytest.mark.timeout(200)
def test_kills_of_runs_with_containers_lose_nothing_and_leave_nothing(
    hostile: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(hostile.home, monkeypatch)
    fire(targets((BUSY_CONTAINERS, 10), (HANGING_CONTAINER, 10)), hostile)


def processes_of(program: Program, process: subprocess.Popen[bytes], *roles: str) -> list[int]:
    """The living processes of the run in these roles."""
    return [each.process.pid for each in of_run(program, process.pid) if each.role in roles]


def hang(program: Program, how: str) -> subprocess.Popen[bytes]:
    """A run whose first trial hangs now, with a good one after it."""
    plan = write_plan(program, how)
    process = program.start("run", "--plan", str(plan), "--json", "--out", str(program.sessions))
    wait_for(lambda: _journal_has(program, b'"name":"setup"'), what="the hanging trial")
    if how == "brood":
        wait_for(lambda: processes_of(program, process, "sleep"), what="the worker's daemon")
    return process


@pytest.mark.parametrize("how", ["hang", "brood"])
def test_a_killed_keeper_fails_its_trial_and_the_run_goes_on(hostile: Program, how: str) -> None:
    process = hang(hostile, how)
    (keeper,) = processes_of(hostile, process, "keeper")
    trial = processes_of(hostile, process, "worker", "sleep")
    os.kill(keeper, signal.SIGKILL)
    wait_for(lambda: not set(trial) & {each.pid for each in processes()}, 2.0, "the end of the trial")
    out, err = process.communicate(timeout=60)
    outcomes = {trial["scenario"]: (trial["outcome"], trial["reason"]) for trial in json.loads(out)["trials"]}
    assert outcomes["hostile/misbehave"][0] == "failed"
    assert "keeper was killed" in outcomes["hostile/misbehave"][1]
    assert outcomes["harness/floor"][0] == "completed"
    assert process.returncode == 1, err.decode()


def test_a_killed_runner_is_reported_and_its_run_resumed(hostile: Program) -> None:
    process = hang(hostile, "brood")
    (runner,) = processes_of(hostile, process, "runner")
    os.kill(runner, signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 3
    assert b"killed or power lost" in err
    assert b"--resume" in err.splitlines()[-1]
    wait_for(lambda: not of_run(hostile, 0), 2.0, "the end of the trial")
    (folder,) = hostile.folders()
    session = sessions.load(folder)
    assert session.outcome == "aborted"
    assert [trial.outcome for trial in session.trials] == ["aborted", "not_run"]
    assert run_of(folder) == session.run


@pytest.mark.parametrize(("how", "roles"), [("brood", {"runner", "keeper"}), ("hang", {"runner", "keeper", "guard"})])
def test_a_runner_killed_in_one_instant_with_its_helpers(hostile: Program, how: str, roles: set[str]) -> None:
    """The guard ends the trial then; without it, the worker's own death signal, which what it started has not."""
    process = hang(hostile, how)
    victims = processes_of(hostile, process, *roles)
    assert len(victims) == len(roles)
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none sees another's end
        for pid in victims:
            os.kill(pid, number)
    wait_for(lambda: not processes_of(hostile, process, "worker", "sleep"), 2.0, "the end of the trial")
    process.communicate(timeout=30)
    assert process.returncode == 3


def test_a_runner_that_stands_still_for_seconds_completes_its_run(hostile: Program) -> None:
    plan = write_plan(hostile, "nothing", seconds=0.1, repeat=4)
    process = hostile.start("run", "--plan", str(plan), "--json", "--out", str(hostile.sessions))
    wait_for(lambda: _journal_has(hostile, b'"trial_ended"'), what="the end of the first trial")
    (runner,) = processes_of(hostile, process, "runner")
    os.kill(runner, signal.SIGSTOP)
    time.sleep(3.0)
    os.kill(runner, signal.SIGCONT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    assert [trial["outcome"] for trial in json.loads(out)["trials"]] == ["completed"] * 8


def test_a_runner_killed_while_it_inspects_an_interpreter_leaves_no_inspection(hostile: Program) -> None:
    python = hostile.home / "python3"
    python.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")
    python.chmod(0o700)
    arguments = ("--scenario", "gemm", "--devices", "cpu", "--python", str(python), "--out", str(hostile.sessions))
    process = hostile.start("run", *arguments)
    wait_for(lambda: processes_of(hostile, process, "inspection"), what="the inspection")
    (runner,) = processes_of(hostile, process, "runner")
    os.kill(runner, signal.SIGKILL)
    wait_for(lambda: not processes_of(hostile, process, "inspection"), 2.0, "the end of the inspection")
    process.communicate(timeout=30)
    assert process.returncode == 3
