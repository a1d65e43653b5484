"""How a trial starts: one launcher for each kind of environment."""

from __future__ import annotations

from engine.launch.bare import BareLauncher
from engine.launch.base import Launcher
from engine.launch.oci import OciLauncher
from engine.plan import Environment


def launcher_for(environment: Environment, python: str, device: str, kind: str) -> Launcher:
    """The launcher of one arm, for trials of `python` on one device.

    Raises AibenchError where the arm cannot run here.
    """
    if environment.kind == "bare":
        return BareLauncher(python, device, kind)
    return OciLauncher(environment, python, device, kind)
