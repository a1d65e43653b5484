"""What runs leave behind when they are killed: found by run id, and ended only where the run is known to be over.

Every process of a trial carries the run's id and folder in its environment and every container in its labels. Others
may carry them too, so only the run's own folder tells whether it is over (engine.run_state); what cannot be decided
by it is left alone and named.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from engine import runfolder
from engine.control import SOCKET_SUFFIX, is_dead_socket
from engine.errors import AibenchError
from engine.kill import kill_all
from engine.launch import oci
from engine.launch.containers import RUNTIMES, Container
from engine.launch.environment import RUN_FOLDER, RUN_ID
from engine.locks import runtime_folder
from engine.run_state import NotOver, Running, held_over
from engine.setup import RUN_ID_FORM, TRIAL_ID_FORM
from engine.text import clean
from engine.worker.keeper import environment, living

PAUSE_S = 0.01


class Leftover(msgspec.Struct, frozen=True):
    """Something of a run that is over or, with `why`, of one that may not be. `detail` and `why` are clean, for people.

    The others are as they are, for finding it again: clean them before printing. `name` is a process id, a container's
    name or a path; `folder` is the run folder that the thing names.
    """

    kind: Literal["process", "container", "socket", "scratch"]
    run: str
    name: str
    detail: str
    folder: str = ""
    why: str = ""


def leftovers(sessions: Iterable[Path] = (), run: str = "") -> list[Leftover]:
    """What is left of runs that are over (of one of them with `run`), in the order in which it is best cleaned.

    `sessions` are run folders whose scratch folders are looked at. Processes are only those of our own user.
    """
    return [found for found in look(sessions) if not found.why and run in ("", found.run)]


def look(sessions: Iterable[Path] = ()) -> list[Leftover]:
    """What `leftovers` finds, and with `why` what looks like it and is left alone."""
    return [*_containers(), *_processes(), *_sockets(), *_scratch(sessions)]


def clean_up(found: Iterable[Leftover]) -> list[Leftover]:
    """End or remove what `leftovers` found, each after looking once more; returns what is still there."""
    return [leftover for leftover in found if not _is_cleaned(leftover)]


def _is_cleaned(leftover: Leftover) -> bool:
    try:
        return not leftover.why and _CLEANERS[leftover.kind](leftover)
    except (NotOver, OSError):  # taken up again meanwhile, or the disk does not let us
        return False


def _judged(leftover: Leftover) -> Leftover | None:
    """The same with the reason to leave it alone, if there is one; None for what belongs to a living run."""
    try:
        if not os.path.isabs(leftover.folder):
            raise NotOver("folder is not an absolute path")
        with held_over(Path(leftover.folder), leftover.run):
            return leftover
    except Running:
        return None
    except NotOver as undecided:
        return msgspec.structs.replace(leftover, why=undecided.why)


def _processes() -> Iterator[Leftover]:
    for pid in living():
        run, folder = _marks_of(pid)
        if run and folder and _is_own(pid) and not _is_guard(pid):
            what = f"process {pid} ({_command(pid)}) of {clean(run, 100)}"
            if found := _judged(Leftover("process", run, str(pid), what, folder)):
                yield found


def _marks_of(pid: int) -> tuple[str, str]:
    """The run's id and folder that a process carries, as they are; empty where it carries none."""
    entries = dict(entry.partition(b"=")[::2] for entry in environment(pid))
    run, folder = entries.get(RUN_ID.encode(), b""), entries.get(RUN_FOLDER.encode(), b"")
    return os.fsdecode(run), os.fsdecode(folder)


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
        if found := _judged_container(container):
            yield found


def _judged_container(container: Container) -> Leftover | None:
    """A container is of a run only with all of our labels, and stays while neither the run nor its own time is over."""
    what = f"{container.runtime} container {container.name}"
    found = Leftover("container", container.run, f"{container.runtime}:{container.name}", what, container.folder)
    if not (container.run and container.trial and container.folder and container.expires):
        return msgspec.structs.replace(found, why="it lacks labels that ours have")
    return found if _is_expired(container) else _judged(found)


def _is_expired(container: Container) -> bool:
    return time.time() > container.expires


def _all_containers(run: str = "") -> Iterator[Container]:
    for runtime in RUNTIMES:
        with contextlib.suppress(AibenchError):  # not installed, or its daemon is down: nothing there could be ended
            yield from oci.list_ours(runtime, run)


def _sockets() -> Iterator[Leftover]:
    with contextlib.suppress(AibenchError):  # no runtime folder of ours: no sockets of ours
        for path in runtime_folder().glob(f"*{SOCKET_SUFFIX}"):
            run = path.name.removesuffix(SOCKET_SUFFIX)
            if RUN_ID_FORM.fullmatch(run) and is_dead_socket(path):
                yield Leftover("socket", run, str(path), f"control socket of {run}")


def _scratch(sessions: Iterable[Path]) -> Iterator[Leftover]:
    for folder in sessions:
        scratch = folder / runfolder.SCRATCH
        if _has_trial_folders(scratch):
            name = clean(folder.name, 300)
            found = _judged(Leftover("scratch", "", str(scratch), f"trial files of {name}", str(folder.absolute())))
            if found:
                yield msgspec.structs.replace(found, run=name)


def _has_trial_folders(scratch: Path) -> bool:
    """A first look, for which links are followed: what is behind one is named, and left alone."""
    try:
        return any(TRIAL_ID_FORM.fullmatch(name) for name in os.listdir(scratch))
    except OSError:
        return False


def _clean_process(leftover: Leftover) -> bool:
    """Kill the whole dead run: what it forks while we look is of the same run."""
    pid, meant = int(leftover.name), (leftover.run, leftover.folder)
    if _marks_of(pid) == meant:
        with held_over(Path(leftover.folder), leftover.run):
            kill_all(lambda pid: _marks_of(pid) == meant and _is_own(pid) and not _is_guard(pid))
    return _marks_of(pid) != meant


def _clean_container(leftover: Leftover) -> bool:
    """Remove it if it is still the same: another one may have its name by now."""
    runtime, _, name = leftover.name.partition(":")
    meant = [each for each in _all_containers(leftover.run) if (each.runtime, each.name) == (runtime, name)]
    if any(_judged_container(container) != leftover for container in meant):
        return False
    is_expired = all(_is_expired(container) for container in meant)
    with contextlib.nullcontext() if is_expired else held_over(Path(leftover.folder), leftover.run):
        return oci.remove(runtime, name, leftover.run)


def _clean_socket(leftover: Leftover) -> bool:
    path = Path(leftover.name)
    if is_dead_socket(path):
        path.unlink(missing_ok=True)
    return not path.exists()


def _clean_scratch(leftover: Leftover) -> bool:
    """Remove the trials' folders; the one that they lie in stays, and so does what else is in it."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with held_over(Path(leftover.folder)) as over:
        scratch = os.open(runfolder.SCRATCH, flags, dir_fd=over.folder)
        try:
            for name in _trial_folders(scratch):
                # by the descriptor, so that no part of the path can become a link meanwhile; rmtree follows none
                shutil.rmtree(f"/proc/self/fd/{scratch}/{name}", ignore_errors=True)
            return not _trial_folders(scratch)
        finally:
            os.close(scratch)


def _trial_folders(scratch: int) -> list[str]:
    names = [name for name in os.listdir(scratch) if TRIAL_ID_FORM.fullmatch(name)]
    return [name for name in names if stat.S_ISDIR(os.stat(name, dir_fd=scratch, follow_symlinks=False).st_mode)]


_CLEANERS: dict[str, Callable[[Leftover], bool]] = {
    "process": _clean_process,
    "container": _clean_container,
    "socket": _clean_socket,
    "scratch": _clean_scratch,
}
