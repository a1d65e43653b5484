"""The processes of one run by what they are, and what must be gone once one of them was killed."""

from __future__ import annotations

import os
import random
import re
from dataclasses import dataclass

from tests.program import Process, Program, processes

_MODULES = {
    "keeper.py": "keeper",  # before the worker, whose command line a keeper's ends with
    "worker/main.py": "worker",
    "inspect_frameworks.py": "inspection",
    "engine.telemetry": "telemetry",
    "engine.hardware": "probe",
    "engine.runner": "runner",
    "engine.guard": "guard",
}
OURS = frozenset({"owner", "client", "conmon", *_MODULES.values()})
"""What is killed: our own processes, and those of podman that a container hangs on."""

RUN_ENDS_WITH = frozenset({"owner", "runner"})
TRIAL_ENDS_WITH = frozenset({"keeper", "worker", "client", "conmon"})
_MAY_OUTLIVE_RUNNER = frozenset({"owner", "guard", "guard's", "conmon", "podman", "runc"})
"""They end by themselves once they have reported or removed what the runner left."""

_CONTAINER = re.compile(r"\baibench-[0-9a-f-]+-(t\d+)\b")


@dataclass(frozen=True)
class Victim:
    """A process to kill, and the trial that it belongs to ("" for those of the run)."""

    pid: int
    role: str
    trial: str


@dataclass(frozen=True)
class Found:
    """A process of the run with its role and trial."""

    process: Process
    role: str
    trial: str

    def __str__(self) -> str:
        return f"{self.role} {self.process.pid} of {self.trial or 'the run'}: {self.process.command[:120]}"


def of_run(program: Program, owner: int) -> list[Found]:
    """Every living process of the program's runs."""
    marks = {f"AIBENCH_RUNTIME_DIR={program.runtime}", *(f"AIBENCH_RUN_ID={run}" for run in program.run_ids())}
    if program.extra_env and "CONTAINERS_CONF" in program.extra_env:  # all that podman's processes have
        marks.add(f"CONTAINERS_CONF={program.extra_env['CONTAINERS_CONF']}")
    found = {each.pid: each for each in processes() if not each.environment.isdisjoint(marks)}
    return [Found(each, _role(each, found, owner), _trial(each)) for each in found.values()]


def aim(program: Program, owner: int, wanted: str, chance: random.Random) -> Victim | None:
    """One of our processes that is alive now, of the wanted role if there is one; None where the run is over."""
    by_role: dict[str, list[Found]] = {}
    for each in of_run(program, owner):
        by_role.setdefault(each.role, []).append(each)
    if "owner" not in by_role:
        return None
    role = wanted if wanted in by_role else chance.choice(sorted(OURS & by_role.keys()))
    chosen = chance.choice(by_role[role])
    return Victim(chosen.process.pid, chosen.role, chosen.trial)


def left_behind(program: Program, owner: int, victim: Victim) -> list[Found]:
    """What is alive and should not be, two seconds after `victim` was killed."""
    return [each for each in of_run(program, owner) if _should_be_gone(each, victim)]


def containers_left(victim: Victim, names: list[str]) -> list[str]:
    """Those of the run's containers that should have gone within two seconds of `victim`.

    Without its conmon a container's end is not noticed by podman: the runner removes it a little later.
    """
    if victim.role in RUN_ENDS_WITH:
        return names
    return [name for name in names if victim.role == "client" and name.endswith(f"-{victim.trial}")]


def _should_be_gone(each: Found, victim: Victim) -> bool:
    if each.process.pid == victim.pid:
        return True
    if victim.role == "runner":
        return each.role not in _MAY_OUTLIVE_RUNNER
    if victim.role == "owner":  # the runner is told and ends the run in order; the worker is what must be gone
        return any(entry.startswith("AIBENCH_TRIAL_ID=") for entry in each.process.environment)
    return victim.role in TRIAL_ENDS_WITH and each.process.has(f"AIBENCH_TRIAL_ID={victim.trial}")


def _role(process: Process, found: dict[int, Process], owner: int) -> str:
    if process.pid == owner:
        return "owner"
    parent = found.get(process.parent)
    if parent is not None and _role(parent, found, owner) in ("guard", "guard's"):
        return "guard's"
    if parent is not None and parent.command == process.command:
        return "fork"  # it has not become what it is going to be yet
    words = process.command.split(" ")
    name = os.path.basename(words[0])
    if name == "podman" and "run" in words[1:2]:
        return "client"
    if not name.startswith("python"):
        return name
    return next((role for part, role in _MODULES.items() if part in process.command), "other")


def _trial(process: Process) -> str:
    inside = next((each for each in process.environment if each.startswith("AIBENCH_TRIAL_ID=")), "")
    container = _CONTAINER.search(process.command)
    return inside.partition("=")[2] or (container.group(1) if container else "")
