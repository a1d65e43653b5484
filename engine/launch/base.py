"""What a launcher owes the runner: a command that starts one trial's keeper, and how to end what can outlive it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from engine.values import Missing, Scalar


class TrialFiles(msgspec.Struct, frozen=True):
    """Where a trial finds its staged code, its spec file and its own empty folder, as host paths."""

    stage: Path
    spec: Path
    scratch: Path

    @property
    def run_folder(self) -> Path:
        """The run folder that these lie in."""
        return self.stage.parent


class Launch(msgspec.Struct, frozen=True):
    """A command ready to start: its environment is complete (nothing is inherited beside it), stdin stays open for
    the whole trial. `handle` names what outlives the keeper (a container), "" where nothing does."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path
    handle: str = ""
    runtime: str = ""


class Launcher(Protocol):
    """One way of starting trials. Building a command has no side effect, so tests compare it word by word."""

    def prepare(self, run: str, trial: str, token: str, deadline_s: float, files: TrialFiles) -> Launch:
        """The command for a trial, whose protocol lines carry `token`.

        Raises AibenchError where this environment cannot run here.
        """
        ...

    def describe(self) -> dict[str, Scalar | Missing]:
        """Facts for the fingerprint: the runtime and its version, the back end, the limits in force."""
        ...


def keeper_command(python: str, run: str, trial: str, deadline_s: float, files: TrialFiles) -> tuple[str, ...]:
    """The keeper and its worker, both by path out of the stage.

    The keeper is isolated (-I). The worker is not: the user's PYTHONPATH and user site may hold the framework.
    """
    worker = files.stage / "engine" / "worker"
    keeper = (python, "-I", str(worker / "keeper.py"), "--run", run, "--trial", trial, "--deadline", f"{deadline_s:g}")
    return (*keeper, "--", python, str(worker / "main.py"), str(files.spec))
