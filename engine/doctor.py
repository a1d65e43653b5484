"""Checks that a machine is ready for a run. Each says what it found, and what to do where that is not good."""

from __future__ import annotations

import platform
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from engine import files, sessions
from engine.errors import AibenchError
from engine.hardware.interpreters import Interpreter, choose
from engine.hardware.inventory import Inventory, discover, first_of_kinds
from engine.locks import device_lock_folder, runtime_folder
from engine.sweep import leftovers
from engine.text import clean

MIN_FREE_BYTES = 1024**3
MIN_SHM_BYTES = 1024**3
MIN_OPEN_FILES = 1024


class Check(msgspec.Struct, frozen=True):
    """One finding. A "problem" means that a run would fail or mislead; a "warning" that some of it might."""

    name: str
    state: Literal["ok", "warning", "problem"]
    found: str
    do: str = ""


def examine(sessions_folder: Path, python: str = "auto") -> list[Check]:
    """Every check, in the order that a person would ask. A check that cannot run is a problem, never an ok."""
    groups: dict[str, Iterator[Check]] = {
        "program": _program(),
        "device": _machine(python),
        "folders": _folders(sessions_folder),
        "limits": _limits(),
        "logout": _logout(),
        "left-overs": _leftovers(sessions_folder),
    }
    return [check for name, group in groups.items() for check in _guarded(name, group)]


def interpreter_for_auto(python: str, framework: str) -> Interpreter:
    """The interpreter for the devices that a plan's "auto" means here: the accelerators, else the CPU.

    Where they are of several kinds, it is the first kind's. Raises AibenchError (code 2) where one of them has none.
    """
    inventory = discover()
    devices = inventory.accelerators or inventory.devices
    found = [choose(python, framework, kind, device=device) for kind, device in first_of_kinds(devices).items()]
    return found[0]


def _guarded(name: str, group: Iterator[Check]) -> Iterator[Check]:
    try:
        yield from group
    except AibenchError as error:
        yield Check(name, "problem", error.what, error.do)
    except Exception as error:  # whatever it is: the other checks still tell something
        yield Check(name, "problem", clean(f"cannot be checked: {type(error).__name__}: {error}", 300))


def _program() -> Iterator[Check]:
    yield Check("program", "ok", f"Python {platform.python_version()} at {sys.executable}, {platform.platform()}")


def _machine(python: str) -> Iterator[Check]:
    inventory = discover()
    yield from _devices(inventory)
    yield from _guarded("framework", _interpreters(inventory, python))


def _devices(inventory: Inventory) -> Iterator[Check]:
    for device in inventory.devices:
        yield Check("device", "ok", f"{device.index if device.index >= 0 else '-'}  {device.name}  {device.device}")
    for problem in inventory.problems:
        yield Check("device", "warning", problem)


def _interpreters(inventory: Inventory, python: str) -> Iterator[Check]:
    for kind, device in first_of_kinds(inventory.devices).items():
        try:
            found = choose(python, "auto", kind, device=device)
        except AibenchError as error:
            yield Check(f"framework for {kind}", "problem", error.what, error.do)
            continue
        versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
        yield Check(f"framework for {kind}", "ok", f"{versions} at {found.path}")


def _folders(sessions_folder: Path) -> Iterator[Check]:
    files.probe_writable(sessions_folder)
    free = shutil.disk_usage(sessions_folder).free
    state: Literal["ok", "warning"] = "ok" if free >= MIN_FREE_BYTES else "warning"
    do = "" if state == "ok" else "make room, or name another folder with --out"
    yield Check("sessions folder", state, f"{sessions_folder}, {free / 1e9:.1f} GB free", do)
    yield Check("runtime folder", "ok", str(runtime_folder()))
    yield Check("device locks", "ok", str(device_lock_folder()))


def _limits() -> Iterator[Check]:
    shm = Path("/dev/shm")  # noqa: S108  # nothing is written there, only its size is read
    size = shutil.disk_usage(shm).total if shm.is_dir() else 0
    yield _at_least("shared memory /dev/shm", size, MIN_SHM_BYTES, "GB", 1e9, "collectives and data loaders need it")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield _at_least("open files (ulimit -n)", soft, MIN_OPEN_FILES, "files", 1, "raise it with ulimit -n")


def _at_least(name: str, value: float, limit: float, unit: str, scale: float, do: str) -> Check:
    found = f"{value / scale:.4g} {unit}"
    return (
        Check(name, "ok", found)
        if value >= limit
        else Check(name, "warning", found, f"under {limit / scale:.4g} {unit}: {do}")
    )


def _logout() -> Iterator[Check]:
    """Whether this system ends a detached run when its user logs out."""
    found = [str(path) for path in _logind_files() if _kills(path)]
    if found:
        yield Check(
            "logout",
            "warning",
            f"KillUserProcesses=yes in {found[0]}",
            "a detached run dies at logout: loginctl enable-linger",
        )
    pam = [path for path in Path("/etc/pam.d").glob("*") if "pam_slurm_adopt" in _text(path)]
    if pam:
        yield Check("logout", "warning", f"pam_slurm_adopt in {pam[0]}", "a detached run ends with its Slurm job")
    if not found and not pam:
        yield Check("logout", "ok", "nothing here ends a detached run at logout")


def _logind_files() -> list[Path]:
    return [Path("/etc/systemd/logind.conf"), *Path("/etc/systemd/logind.conf.d").glob("*.conf")]


def _kills(path: Path) -> bool:
    lines = [line.strip().replace(" ", "") for line in _text(path).splitlines()]
    return any(
        line.lower() in ("killuserprocesses=yes", "killuserprocesses=true", "killuserprocesses=1") for line in lines
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _leftovers(sessions_folder: Path) -> Iterator[Check]:
    found = leftovers(sessions.folders(sessions_folder))
    if found:
        names = ", ".join(f"{each.kind} {each.name}" for each in found[:3])
        yield Check(
            "left-overs",
            "warning",
            f"{len(found)} of runs that are gone: {names}",
            "aibench-tui clean ends and removes them",
        )
    else:
        yield Check("left-overs", "ok", "none")
