"""From a plan to everything a runner needs before its first trial; whatever is wrong shows here, before any load."""

from __future__ import annotations

import re
import secrets
import sys
import time
from pathlib import Path

import msgspec

from engine import runfolder
from engine.control import socket_path
from engine.errors import AibenchError
from engine.events import Anchor, RunStarted, TrialEnd, TrialEnded, WorkerResult
from engine.hardware.fingerprint import fingerprint
from engine.hardware.interpreters import Interpreter, choose
from engine.hardware.inventory import Inventory, discover, first_of_kinds
from engine.journal import read_events
from engine.launch import launcher_for
from engine.plan import Environment, Plan, PlannedTrial
from engine.plan_file import check_plan
from engine.registry import find
from engine.schedule import expand, resolve_devices
from engine.session import Device
from engine.values import Missing, Scalar

FINAL_OUTCOMES = frozenset({"completed", "failed", "unsupported", "skipped"})
"""Outcomes that a resumed run keeps; aborted trials run again."""

RUN_ID_FORM = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
TRIAL_ID_FORM = re.compile(r"t[0-9]{4,9}")

Group = tuple[str, str, str]
"""Trials of one (scenario, variant, device) do the same count of work in every arm and repeat."""


class Past(msgspec.Struct, frozen=True):
    """What a run taken up again has behind it: its start, the trials it keeps, and the counts of work they fixed."""

    started: RunStarted
    finished: dict[str, TrialEnd]
    counts: dict[Group, dict[str, int]]


class Ground(msgspec.Struct, frozen=True):
    """A plan and the devices it names, found and not yet locked: looking so far puts no load on them."""

    run: str
    plan: Plan
    inventory: Inventory
    devices: tuple[Device, ...]
    past: Past | None = None


class Setup(msgspec.Struct, frozen=True):
    """A run ready to start, its devices locked."""

    ground: Ground
    trials: tuple[PlannedTrial, ...]
    pythons: dict[tuple[str, str], Interpreter]
    fingerprint: dict[str, Scalar | Missing]


def new_run_id() -> str:
    """A run's id: sortable by time, short enough for a socket path, never used twice."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


def survey(plan: Plan) -> Ground:
    """The ground of a new run.

    Raises AibenchError (code 2) for a plan, a device or a runtime folder that is not right.
    """
    check_plan(plan)
    run = new_run_id()
    socket_path(run)
    inventory = discover()
    return Ground(run, plan, inventory, resolve_devices(plan.target.devices, inventory.devices))


def survey_again(folder: Path) -> Ground:
    """The ground of the run in `folder`, to go on with it; its plan and its trials are the journal's.

    Raises AibenchError (code 2) where the folder holds no run, or a device is gone.
    """
    journal = folder / runfolder.JOURNAL
    if not journal.is_file():
        raise AibenchError(f"{folder} holds no run", "name a session's folder; `aibench-tui list` shows them")
    past = _past(journal)
    plan = parse_plan_of(past.started)
    _refuse_foreign(folder, past.started, plan)
    inventory = discover()
    names = tuple(dict.fromkeys(trial.device for trial in past.started.trials))
    devices = resolve_devices(names, inventory.devices)
    return Ground(past.started.run, plan, inventory, devices, past)


def _refuse_foreign(folder: Path, started: RunStarted, plan: Plan) -> None:
    """Sessions are handed from person to person: nothing in a journal may name a place outside its own folder."""
    check_plan(plan, "the journal's plan")
    trials = [trial.trial for trial in started.trials]
    arms = {environment.label for environment in plan.environments}
    if (
        not RUN_ID_FORM.fullmatch(started.run)
        or len(set(trials)) != len(trials)
        or not all(TRIAL_ID_FORM.fullmatch(trial) for trial in trials)
        or not all(trial.environment in arms for trial in started.trials)
        or not all(trial.framework in find(trial.scenario).CARD.frameworks for trial in started.trials)
    ):
        raise AibenchError(f"{folder} was not written by this program", "start its plan anew")
    own = [folder / name for name in (runfolder.SCRATCH, runfolder.LOGS, runfolder.SERIES, runfolder.STAGE)]
    for path in (*own, *(folder / runfolder.SCRATCH).glob("*")):
        if path.is_symlink():
            raise AibenchError(f"{path} is a link", "remove it, or start the plan anew")


def set_up(ground: Ground) -> Setup:
    """The rest of the preparation, which may touch the devices: interpreters, trials, fingerprint.

    Raises AibenchError (code 2) for a framework or an interpreter that is not there.
    """
    pythons = _pythons(ground.plan, ground.devices)
    frameworks = {device.device: _framework(pythons, device) for device in ground.devices}
    past = ground.past
    trials = past.started.trials if past else expand(ground.plan, ground.devices, frameworks)
    return Setup(ground, trials, pythons, _facts(ground, pythons))


def parse_plan_of(started: RunStarted) -> Plan:
    """The plan that a journal carries."""
    try:
        return msgspec.convert(started.plan, Plan)
    except msgspec.ValidationError as error:
        raise AibenchError(f"the journal's plan cannot be read: {error}", "it comes from another version") from error


def group_of(trial: PlannedTrial) -> Group:
    """The trials that share a count of work."""
    return (trial.scenario, trial.variant, trial.device)


def anchor() -> Anchor:
    """Now, on both clocks of this boot."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    boot_id = boot.read_text().strip() if boot.exists() else ""
    return Anchor(monotonic_s=time.monotonic(), wall_s=time.time(), boot_id=boot_id)


def chosen(python: Interpreter, kind: str) -> str:
    """A line that names the interpreter of a kind of device, and what was passed over for it."""
    version = python.versions.get(python.framework, "")
    passed = f" (passed over: {'; '.join(python.tried)})" if python.tried else ""
    return f"{python.framework} {version} for {kind} at {python.path}{passed}"


def own_python() -> Interpreter:
    """The program's own interpreter, for scenarios that need no framework."""
    return Interpreter(path=sys.executable, framework="python", versions={}, tried=())


def python_of(pythons: dict[tuple[str, str], Interpreter], framework: str, kind: str) -> Interpreter:
    """The interpreter that runs a framework on a kind of device."""
    return own_python() if framework == "python" else pythons[framework, kind]


def _pythons(plan: Plan, devices: tuple[Device, ...]) -> dict[tuple[str, str], Interpreter]:
    """One interpreter per kind of device, keyed by (framework, kind); none where no scenario needs a framework."""
    if all(find(choice.id).CARD.frameworks == ("python",) for choice in plan.scenarios):
        return {}
    found: dict[tuple[str, str], Interpreter] = {}
    for kind, device in first_of_kinds(devices).items():
        interpreter = choose(plan.target.python, plan.target.framework, kind, device=device)
        found[interpreter.framework, kind] = interpreter
    return found


def _framework(pythons: dict[tuple[str, str], Interpreter], device: Device) -> str:
    return next((framework for framework, kind in pythons if kind == device.kind), "python")


def _facts(ground: Ground, pythons: dict[tuple[str, str], Interpreter]) -> dict[str, Scalar | Missing]:
    """The fingerprint; where unlike devices have their own interpreters, keys of the others start with the kind."""
    first, *others = pythons.items() or [(("", ""), own_python())]
    facts = fingerprint(ground.inventory, first[1])
    for (_, kind), interpreter in others:
        more = fingerprint(ground.inventory, interpreter)
        facts.update({f"{kind}_{name}": value for name, value in more.items() if facts.get(name) != value})
    return {**facts, **arms(ground.devices, ground.plan.environments, first[1].path)}


def arms(
    devices: tuple[Device, ...], environments: tuple[Environment, ...], python: str
) -> dict[str, Scalar | Missing]:
    """What each arm says of itself. Raises AibenchError for one that cannot run here, before any load."""
    return {
        f"arm_{environment.label}_{name}": value
        for device in devices
        for environment in environments
        for name, value in launcher_for(environment, python, device.device, device.kind).describe().items()
    }


def _past(journal: Path) -> Past:
    started: RunStarted | None = None
    finished: dict[str, TrialEnd] = {}
    results: dict[str, dict[str, int]] = {}
    for event in read_events(journal):
        if isinstance(event, RunStarted):
            started = started or event
        elif isinstance(event, WorkerResult):
            results[event.trial] = {metric.metric: metric.count for metric in event.metrics}
        elif isinstance(event, TrialEnded) and event.outcome in FINAL_OUTCOMES:
            if event.outcome == "completed" and event.trial not in results:
                continue  # a completed trial without its figures, lost in a damaged journal, is run again
            finished.setdefault(event.trial, event.outcome)
    if started is None:
        raise AibenchError(f"{journal} has no start of a run", "its first line is lost; start the plan anew")
    counts: dict[Group, dict[str, int]] = {}
    for trial in started.trials:
        if finished.get(trial.trial) == "completed" and trial.trial in results:
            counts.setdefault(group_of(trial), results[trial.trial])
    return Past(started, finished, counts)
