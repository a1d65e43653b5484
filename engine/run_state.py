"""Whether a run is over, by its own folder alone: what a process, a label or a name says of it, others can say too."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from engine import runfolder
from engine.journal import MAX_LINE_BYTES
from engine.locks import shared_run_lock
from engine.setup import RUN_ID_FORM

_SAID = {
    errno.ENOENT: "is not there",
    errno.EACCES: "is closed to us",
    errno.ELOOP: "is a link",
    errno.ENOTDIR: "is no folder",
}


class NotOver(Exception):
    """A run that must be left alone; `why` is for people."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Running(NotOver):
    """Its lock is held."""


class RunOver(msgspec.Struct, frozen=True):
    """A run that is over. `folder` is a descriptor of its folder, good as long as the run is held."""

    run: str
    folder: int


class _Start(msgspec.Struct, frozen=True):
    """What is looked at of a journal's first line."""

    event: str
    run: str


@contextlib.contextmanager
def held_over(folder: Path, run: str = "") -> Iterator[RunOver]:
    """Hold a run that is over (`run`, or the one of the folder), so that nobody takes it up again meanwhile.

    It is over only where the folder is there and no link, its journal begins with the start of that very run, and its
    lock is free. Raises Running where the lock is held, NotOver where anything of this cannot be told.
    """
    with contextlib.ExitStack() as held:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise _undecided("folder", error, is_link=os.path.islink(folder)) from error
        held.callback(os.close, descriptor)
        try:
            free = held.enter_context(shared_run_lock(runfolder.LOCK, descriptor))
        except OSError as error:
            raise _undecided(runfolder.LOCK, error) from error
        if not free:
            raise Running("it is running")
        found = _run_of(descriptor)
        if run not in ("", found):
            raise NotOver("folder is another run's")
        yield RunOver(found, descriptor)


def _run_of(folder: int) -> str:
    try:
        line = _first_line(folder)
    except OSError as error:
        raise _undecided("journal", error) from error
    try:
        start = msgspec.json.decode(line, type=_Start)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise NotOver("journal is not a run's") from error
    if start.event != "run_started" or not RUN_ID_FORM.fullmatch(start.run):
        raise NotOver("journal is not a run's")
    return start.run


def _first_line(folder: int) -> bytes:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(runfolder.JOURNAL, flags, dir_fd=folder)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is no plain file")
        return os.read(descriptor, min(found.st_size, MAX_LINE_BYTES)).partition(b"\n")[0]
    finally:
        os.close(descriptor)


def _undecided(thing: str, error: OSError, *, is_link: bool = False) -> NotOver:
    if is_link:  # which O_DIRECTORY reports as no folder
        return NotOver(f"{thing} is a link")
    return NotOver(f"{thing} {_SAID.get(error.errno or 0) or f'cannot be read: {error.strerror}'}")
