"""What runs leave behind when they are killed: found by run id, and ended only where the run is known to be over.

A run is alive as long as its run folder's lock is held (engine.locks.is_running). Every process of a trial carries
the run's id and folder in its environment and every container in its labels, so whoever can see them can tell.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from engine import runfolder
from engine.control import SOCKET_SUFFIX, is_dead_socket
from engine.errors import AibenchError
from engine.launch import oci
from engine.launch.containers import RUNTIMES
from engine.launch.environment import RUN_FOLDER, RUN_ID, TRIAL_ID
from engine.locks import is_running, runtime_folder
from engine.text import clean
from engine.worker.keeper import UNKILLABLE_S, environment, living

PAUSE_S = 0.01


class Leftover(msgspec.Struct, frozen=True):
    """Something of a run that is over. `run` and `detail` are clean, for people.

    `name` is a process id, a container's name or a path as it is, for finding it again: clean it before printing.
    """

    kind: Literal["process", "container", "socket", "scratch"]
    run: str
    name: str
    detail: str


def kill_trial(run: str, trial: str) -> list[int]:
    """End every process whose environment carries both ids, repeatedly until none is left.

    Returns those that the kernel does not let go within UNKILLABLE_S (a hung driver call). Others are never touched.
    """
    marks = {f"{RUN_ID}={run}".encode(), f"{TRIAL_ID}={trial}".encode()}

    def is_meant(entries: set[bytes]) -> bool:
        return marks <= entries

    return sorted(pid for pid in _kill_all(is_meant) if pid in living() and is_meant(environment(pid)))


def leftovers(sessions: Iterable[Path] = (), run: str = "") -> list[Leftover]:
    """What is left of runs that are over (of one of them with `run`), in the order in which it is best cleaned.

    `sessions` are run folders whose scratch folders are looked at. Processes are only those of our own user.
    """
    found = [*_containers(), *_processes(), *_sockets(), *_scratch(sessions)]
    return [leftover for leftover in found if run in ("", leftover.run)]


def clean_up(found: Iterable[Leftover]) -> list[Leftover]:
    """End or remove what `leftovers` found, each after looking once more; returns what is still there."""
    return [leftover for leftover in found if not _CLEANERS[leftover.kind](leftover)]


def _kill_all(is_meant: Callable[[set[bytes]], bool]) -> set[int]:
    """SIGKILL what matches until a look at /proc shows none, so that a process that forks meanwhile does not escape."""
    killed: set[int] = set()
    last_new = time.monotonic()
    while time.monotonic() - last_new < UNKILLABLE_S:
        victims = {pid for pid in living() if pid != os.getpid() and is_meant(environment(pid))}
        if not victims:
            break
        if not victims <= killed:
            last_new = time.monotonic()
        killed |= victims
        for pid in victims:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(PAUSE_S)
    return killed


def _processes() -> Iterator[Leftover]:
    for pid in living():
        run, folder = _marks_of(pid)
        if run and folder and _is_own(pid) and not is_running(Path(folder)) and not _is_guard(pid):
            detail = f"process {pid} ({_command(pid)}) of run {run}, whose runner is gone"
            yield Leftover("process", run, str(pid), detail)


def _marks_of(pid: int) -> tuple[str, str]:
    """The run's id and folder that a process carries; empty where it carries none."""
    entries = dict(entry.partition(b"=")[::2] for entry in environment(pid))
    run, folder = entries.get(RUN_ID.encode(), b""), entries.get(RUN_FOLDER.encode(), b"")
    return clean(run, 100), os.fsdecode(folder)


def _is_own(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.geteuid() and pid != os.getpid()
    except OSError:
        return False


def _is_guard(pid: int) -> bool:
    """A guard outlives its runner on purpose, for seconds, to stop what the runner left."""
    try:
        return b"engine.guard" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _command(pid: int) -> str:
    try:
        return clean(Path(f"/proc/{pid}/comm").read_text(errors="replace").strip(), 40)
    except OSError:
        return "ended meanwhile"


def _containers() -> Iterator[Leftover]:
    for container in _all_containers():
        expired = time.time() > container.expires
        if expired or (os.path.isdir(container.folder) and not is_running(Path(container.folder))):
            why = "has expired" if expired else "has no runner any more"
            detail = f"{container.runtime} container {container.name} of run {container.run}, which {why}"
            yield Leftover("container", container.run, f"{container.runtime}:{container.name}", detail)


def _all_containers() -> Iterator[oci.Container]:
    for runtime in RUNTIMES:
        with contextlib.suppress(AibenchError):  # not installed, or its daemon is down: nothing there could be ended
            yield from oci.list_ours(runtime)


def _sockets() -> Iterator[Leftover]:
    with contextlib.suppress(AibenchError):  # no runtime folder of ours: no sockets of ours
        for path in runtime_folder().glob(f"*{SOCKET_SUFFIX}"):
            if is_dead_socket(path):
                run = clean(path.name.removesuffix(SOCKET_SUFFIX), 100)
                yield Leftover("socket", run, str(path), f"control socket {clean(str(path))}, which nobody serves")


def _scratch(sessions: Iterable[Path]) -> Iterator[Leftover]:
    for folder in sessions:
        scratch = folder / runfolder.SCRATCH
        if scratch.is_dir() and not scratch.is_symlink() and any(scratch.iterdir()) and not is_running(folder):
            yield Leftover("scratch", clean(folder.name, 300), str(scratch), f"trial files in {clean(str(scratch))}")


def _clean_process(leftover: Leftover) -> bool:
    """Kill the whole dead run: what it forks while we look is of the same run."""
    mark = f"{RUN_ID}={leftover.run}".encode()
    _, folder = _marks_of(int(leftover.name))
    if folder and not is_running(Path(folder)):
        _kill_all(lambda entries: mark in entries)
    return _marks_of(int(leftover.name))[0] != leftover.run


def _clean_container(leftover: Leftover) -> bool:
    runtime, _, name = leftover.name.partition(":")
    return oci.remove(runtime, name, leftover.run)


def _clean_socket(leftover: Leftover) -> bool:
    path = Path(leftover.name)
    if is_dead_socket(path):
        path.unlink(missing_ok=True)
    return not path.exists()


def _clean_scratch(leftover: Leftover) -> bool:
    """Empty the folder, which stays: a resumed run goes on with it."""
    scratch = Path(leftover.name)
    if not is_running(scratch.parent):
        for entry in scratch.iterdir():
            shutil.rmtree(entry, ignore_errors=True)
    return not any(scratch.iterdir())


_CLEANERS: dict[str, Callable[[Leftover], bool]] = {
    "process": _clean_process,
    "container": _clean_container,
    "socket": _clean_socket,
    "scratch": _clean_scratch,
}
