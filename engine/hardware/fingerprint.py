"""The fingerprint of a run: what two sessions must share before their numbers may be compared."""

from __future__ import annotations

import os
from collections.abc import Mapping

from engine.hardware.interpreters import Interpreter
from engine.hardware.inventory import Inventory
from engine.text import clean
from engine.values import Missing, Scalar
from engine.variables import is_recorded, is_secret

REDACTED = "(redacted)"

_DEVICE_FACTS = ("driver_version", "cuda_driver_version", "nvml_version")


def fingerprint(
    inventory: Inventory, interpreter: Interpreter, environment: Mapping[str, str] = os.environ
) -> dict[str, Scalar | Missing]:
    """Facts of node, driver, interpreter, framework builds and environment; what cannot be read says why.

    Environment variables are `env_<NAME>`; a value whose name speaks of a secret is "(redacted)".
    """
    return {
        **inventory.host,
        **_drivers(inventory),
        "devices": ", ".join(device.name for device in inventory.accelerators) or "none",
        "python_path": clean(interpreter.path, 500),
        "framework": interpreter.framework,
        **{f"{name}_version": version for name, version in sorted(interpreter.versions.items())},
        **relevant_environment(environment),
    }


def relevant_environment(environment: Mapping[str, str]) -> dict[str, Scalar | Missing]:
    """What a trial's environment can change of its numbers, cleaned and without secrets."""
    return {
        f"env_{clean(name, 100)}": REDACTED if is_secret(name) else clean(value, 1000)
        for name, value in sorted(environment.items())
        if is_recorded(name)
    }


def _drivers(inventory: Inventory) -> dict[str, Scalar | Missing]:
    """Facts that every accelerator of a node shares, the first one's word first."""
    found: dict[str, Scalar | Missing] = {}
    for device in reversed(inventory.accelerators):
        found |= {name: device.facts[name] for name in _DEVICE_FACTS if name in device.facts}
    return found
