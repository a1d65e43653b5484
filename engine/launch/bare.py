"""The bare launcher: trials run on the host as it is, by the interpreter that the plan chose."""

from __future__ import annotations

import os

from engine.launch.base import Launch, TrialFiles, keeper_command
from engine.launch.environment import trial_environment
from engine.values import Missing, Scalar


class BareLauncher:
    """Starts a trial's keeper as a plain process; nothing of it outlives the keeper."""

    def __init__(self, python: str, device: str, kind: str) -> None:
        self._python = python
        self._device = device
        self._kind = kind

    def prepare(self, run: str, trial: str, token: str, deadline_s: float, files: TrialFiles) -> Launch:
        """The keeper's command, with the trial's own folder as the current one."""
        environment = trial_environment(
            os.environ,
            run=run,
            trial=trial,
            token=token,
            device=self._device,
            kind=self._kind,
            run_folder=files.run_folder,
            scratch=files.scratch,
        )
        return Launch(keeper_command(self._python, run, trial, deadline_s, files), environment, files.scratch)

    def describe(self) -> dict[str, Scalar | Missing]:
        """A bare trial has no runtime and no limits of its own."""
        return {"runtime": "none"}
