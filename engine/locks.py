"""Locks that two runs must not share (a device, a run folder), and the folders that locks and sockets lie in.

Every lock is a flock(2), so a holder that dies, however it dies, holds nothing. The workers inherit the descriptors
of the device locks: a device stays locked while an orphan still burns it. The text in a lock file only informs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import getpass
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from engine import exits, runfolder
from engine.errors import AibenchError
from engine.text import clean
from engine.variables import RUN_ID
from engine.worker.keeper import environment

OVERRIDE = "AIBENCH_RUNTIME_DIR"
FOLDER_NAME = "aibench-tui"
DEVICE_LOCK_PREFIX = f"{FOLDER_NAME}-"
SHARED_MODE = 0o1777
HOLDER_BYTES = 1024

FOLDER_LOCK_TRIES = 20
FOLDER_LOCK_PAUSE_S = 0.05
"""A look at a lock (`is_running`) holds it for an instant, so a runner asks more than once."""

# a pipe, a link or a device in a lock's place must neither hold us up nor lead us anywhere
_LOCK_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_NO_LOCK = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.EISDIR, errno.ENAMETOOLONG}
)
"""Failures that say that there is no lock a runner could hold; any other one hides it."""


def runtime_folder() -> Path:
    """The owner-only folder of control sockets, made where it is missing.

    Raises AibenchError (code 4) naming the path where it is not a folder of ours that only we can enter.
    """
    folder = runtime_path()
    try:
        folder.mkdir(mode=0o700, parents=_overridden(), exist_ok=True)
        found = folder.lstat()
    except FileExistsError as error:
        raise _refused(folder, "it is not a folder", "remove it") from error
    except OSError as error:
        raise _refused(folder, error.strerror or "cannot be made") from error
    if not stat.S_ISDIR(found.st_mode):
        raise _refused(folder, "it is not a folder", "remove it")
    if found.st_uid != os.geteuid():
        raise _refused(folder, f"it belongs to uid {found.st_uid}", "remove it")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise _refused(folder, "others can enter it", "remove it")
    return folder


def runtime_path() -> Path:
    """Where the runtime folder is or would be; nothing is made or looked at."""
    if _overridden():
        return Path(os.environ[OVERRIDE]).absolute()
    if os.environ.get("XDG_RUNTIME_DIR"):
        return Path(os.environ["XDG_RUNTIME_DIR"]) / FOLDER_NAME
    return Path("/run") / FOLDER_NAME if os.geteuid() == 0 else Path(f"/tmp/{FOLDER_NAME}-{os.geteuid()}")  # noqa: S108


def _overridden() -> bool:
    return bool(os.environ.get(OVERRIDE))  # empty is as good as not set


def _refused(folder: Path, why: str, mend: str = "") -> AibenchError:
    """`mend` is what helps in a place that we chose; what somebody named may be anything, and is not ours to mend."""
    what = f"the runtime folder {clean(str(folder), 300)} cannot be used: {why}"
    if _overridden():
        return AibenchError(what, f"name another folder in {OVERRIDE}", code=exits.NOT_READY)
    other = f"name a folder of your own in {OVERRIDE}"
    return AibenchError(what, f"{mend}, or {other}" if mend else other, code=exits.NOT_READY)


def device_lock_folder() -> Path:
    """The folder of device locks, which all users of a node share (mode 1777).

    It is the system's own: in a folder that one user made for all, that user could replace the locks of the others.
    Raises AibenchError (code 4) naming the path where it is not such a folder.
    """
    folder = _device_lock_path()
    try:
        found = _made_shared(folder)
    except OSError as error:
        raise _refused(folder, error.strerror or "cannot be made") from error
    if not _is_shared(found):
        raise _refused(folder, "it is not a folder that all users share (mode 1777)")
    if not _is_safe(found):
        raise _refused(folder, f"it belongs to uid {found.st_uid}, who could take locks away")
    return folder


def _made_shared(folder: Path) -> os.stat_result:
    """The folder, after making it if need be; in one step, so that no other user finds it half made."""
    umask = os.umask(0)
    try:
        folder.mkdir(mode=SHARED_MODE, exist_ok=True)
    finally:
        os.umask(umask)
    return folder.lstat()


def _device_lock_path() -> Path:
    if _overridden():
        return runtime_folder() / "locks"
    with contextlib.suppress(OSError):
        found = os.lstat("/run/lock")
        if _is_shared(found) and _is_safe(found):
            return Path("/run/lock")
    return Path("/tmp")  # noqa: S108 - checked by mode and owner, and its files are opened without following


def _is_shared(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) & SHARED_MODE == SHARED_MODE


def _is_safe(found: os.stat_result) -> bool:
    """The owner of a folder may remove what others made in it, sticky or not."""
    return found.st_uid in (0, os.geteuid())


class DeviceLocks:
    """Held device locks. `fds` go to every process that may use the devices (subprocess pass_fds)."""

    def __init__(self) -> None:
        self.fds: list[int] = []

    def __enter__(self) -> DeviceLocks:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Let go. Only close: an unlock would also unlock it for a worker that is still there."""
        while self.fds:
            os.close(self.fds.pop())


def acquire(device_ids: Sequence[str], run: str) -> DeviceLocks:
    """Lock devices for a run, all or none.

    Raises AibenchError (code 4) naming the device and the holder where one is taken.
    """
    folder = device_lock_folder()
    locks = DeviceLocks()
    try:
        for device in sorted(set(device_ids)):
            locks.fds.append(_lock_device(folder, device, run))
    except BaseException:
        locks.release()
        raise
    return locks


def _lock_device(folder: Path, device: str, run: str) -> int:
    path = folder / f"{DEVICE_LOCK_PREFIX}{re.sub('[^A-Za-z0-9._-]', '_', device)[:100]}.lock"
    descriptor = _open_shared(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        refusal = _busy(device, path, descriptor) if error.errno == errno.EWOULDBLOCK else _unusable(path, error)
        os.close(descriptor)
        raise refusal from error
    _write_holder(descriptor, run)
    return descriptor


def _open_shared(path: Path) -> int:
    """Open a lock file that anybody may have made, or make it.

    Never O_CREAT on one that is there: in a sticky folder the kernel refuses that for the files of other users
    (fs.protected_regular), root included.
    """
    try:
        try:
            return _open_lock(path, os.O_RDWR)
        except FileNotFoundError:
            return _create_shared(path)
    except OSError as error:
        raise _unusable(path, error) from error


def _create_shared(path: Path) -> int:
    try:
        descriptor = _open_lock(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    except FileExistsError:  # another run was first
        return _open_lock(path, os.O_RDWR)
    os.fchmod(descriptor, 0o666)
    return descriptor


def _open_lock(path: Path, flags: int) -> int:
    """Open a lock to hold it and write into it: a plain file that has no other name, under which it is another's."""
    descriptor = _open_plain(path, flags)
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EMLINK, "it has more than one name (hard links)")
    return descriptor


def _open_plain(path: Path | str, flags: int, folder: int | None = None) -> int:
    descriptor = os.open(path, flags | _LOCK_FLAGS, 0o600, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a plain file")
    return descriptor


def _unusable(path: Path, error: OSError) -> AibenchError:
    return AibenchError(f"the device lock {path} cannot be used: {error.strerror}", "remove it", code=exits.NOT_READY)


def _busy(device: str, path: Path, descriptor: int) -> AibenchError:
    """Who has the device, as far as that is certain: the text in the lock may be that of an earlier holder."""
    what = f"device {clean(device, 80)} is in use by"
    holder = _read_holder(descriptor)
    if _is_living(holder):
        do = "wait for its end or watch it with `aibench-tui show`"
        return AibenchError(f"{what} {_told(holder)}", do, code=exits.NOT_READY)
    pid = _find_holder(descriptor)
    if not pid:
        last = f" (the last that left one: {_told(holder)})" if holder else ""
        do = f"`fuser -v {path}` as root names it"
        return AibenchError(f"{what} a process that left no name{last}", do, code=exits.NOT_READY)
    run = _run_of(pid)
    if run:
        what, do = f"{what} process {pid} of run {run}, whose runner is gone", "end it with `aibench-tui clean`"
    else:
        what, do = f"{what} process {pid}, which is of no run", "wait for its end, or end it"
    return AibenchError(what, do, code=exits.NOT_READY)


def _told(holder: dict[str, Any]) -> str:
    run, pid = clean(str(holder.get("run", "?")), 80), clean(str(holder.get("pid", "?")), 20)
    user, since = clean(str(holder.get("user", "?")), 40), clean(str(holder.get("since", "?")), 40)
    return f"run {run} (pid {pid}, user {user}) since {since}"


def _is_living(holder: dict[str, Any]) -> bool:
    pid = holder.get("pid")
    return isinstance(pid, int) and holder.get("ticks") == _start_ticks(pid) != 0


def _start_ticks(pid: int) -> int:
    """When a process began (clock ticks since boot; with its number that names one process), 0 for one that is over."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return 0 if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


def _find_holder(descriptor: int) -> int:
    """A process that holds the lock of this file by a descriptor, as far as we may look; 0 where none can be seen."""
    lock = os.fstat(descriptor)
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            info = link.parent.parent / "fdinfo" / link.name
            if os.path.samestat(os.stat(link), lock) and b"\nlock:" in info.read_bytes():
                return int(link.parts[2])
    return 0


def _run_of(pid: int) -> str:
    entries = dict(entry.partition(b"=")[::2] for entry in environment(pid))
    return clean(entries.get(RUN_ID.encode(), b""), 80)


def _read_holder(descriptor: int) -> dict[str, Any]:
    try:
        holder = json.loads(os.pread(descriptor, HOLDER_BYTES, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _write_holder(descriptor: int, run: str) -> None:
    since = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    holder = {"run": run, "pid": os.getpid(), "ticks": _start_ticks(os.getpid()), "user": user_name(), "since": since}
    with contextlib.suppress(OSError):  # a full disk must not stop a run that has its lock
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def user_name() -> str:
    """Who we are, for people; the number where the system has no name for it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())


@contextlib.contextmanager
def lock_run_folder(folder: Path) -> Iterator[int]:
    """Hold a run folder, so that one runner alone writes into it. Workers never inherit this lock.

    Raises AibenchError (code 4) where another runner has it, (code 2 or 3) where the lock cannot be used.
    """
    try:
        descriptor = _open_lock(folder / runfolder.LOCK, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise _not_lockable(folder / runfolder.LOCK, error) from error
    try:
        if not any(_try_folder_lock(descriptor, pause) for pause in range(FOLDER_LOCK_TRIES)):
            what = f"{folder} is in use by a runner"
            raise AibenchError(what, "wait for its end or watch it with `aibench-tui show`", code=exits.NOT_READY)
        yield descriptor
    finally:
        os.close(descriptor)


def _not_lockable(path: Path, error: OSError) -> AibenchError:
    what = f"{clean(str(path), 300)} cannot be used: {error.strerror}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return AibenchError(what, "do it as the folder's owner or as root")
    if error.errno == errno.EMLINK:
        return AibenchError(what, "copy the folder without hard links and name the copy")
    if error.errno in _NO_LOCK:
        return AibenchError(what, "remove it if it is not the program's")
    return AibenchError(what, "check the folder", code=exits.INCOMPLETE)


def _try_folder_lock(descriptor: int, tries_before: int) -> bool:
    if tries_before:
        time.sleep(FOLDER_LOCK_PAUSE_S)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def shared_run_lock(path: Path | str, folder: int | None = None) -> Iterator[bool]:
    """Keep every runner from taking a run folder's lock, if none has it; False where one has it.

    `path` may be below the descriptor `folder`. Raises OSError where there is no lock or it cannot be told.
    """
    descriptor = _open_plain(path, os.O_RDONLY, folder)
    try:
        yield _try_shared(descriptor)
    finally:
        os.close(descriptor)


def _try_shared(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_running(folder: Path) -> bool:
    """Whether a runner holds this run folder now, for showing it; also where that is hidden from us.

    A folder without a lock is not running here: it may be a copy. What is to be removed asks engine.run_state instead.
    """
    try:
        with shared_run_lock(folder / runfolder.LOCK) as free:
            return not free
    except OSError as error:
        return error.errno not in _NO_LOCK
