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

OVERRIDE = "AIBENCH_RUNTIME_DIR"
FOLDER_NAME = "aibench-tui"
SHARED_MODE = 0o1777
HOLDER_BYTES = 1024

FOLDER_LOCK_TRIES = 20
FOLDER_LOCK_PAUSE_S = 0.05
"""A look at a lock (`is_running`) holds it for an instant, so a runner asks more than once."""


def runtime_folder() -> Path:
    """The owner-only folder of control sockets, made where it is missing.

    Raises AibenchError (code 4) naming the path where it is not a folder of ours that only we can enter.
    """
    folder = runtime_path()
    try:
        folder.mkdir(mode=0o700, parents=OVERRIDE in os.environ, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise _refused(folder, error.strerror or "cannot be made") from error
    if not stat.S_ISDIR(found.st_mode):
        raise _refused(folder, "it is not a folder")
    if found.st_uid != os.geteuid():
        raise _refused(folder, f"it belongs to uid {found.st_uid}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise _refused(folder, "others can enter it")
    return folder


def runtime_path() -> Path:
    """Where the runtime folder is or would be; nothing is made or looked at."""
    if OVERRIDE in os.environ:
        return Path(os.environ[OVERRIDE])
    if os.environ.get("XDG_RUNTIME_DIR"):
        return Path(os.environ["XDG_RUNTIME_DIR"]) / FOLDER_NAME
    return Path("/run") / FOLDER_NAME if os.geteuid() == 0 else Path(f"/tmp/{FOLDER_NAME}-{os.geteuid()}")  # noqa: S108


def _refused(folder: Path, why: str) -> AibenchError:
    what = f"the runtime folder {folder} cannot be used: {why}"
    return AibenchError(what, f"remove it, or set {OVERRIDE} to a folder of your own", code=exits.NOT_READY)


def device_lock_folder() -> Path:
    """The folder of device locks, which all users of a node share (mode 1777), made where it is missing.

    Raises AibenchError (code 4) naming the path where it is not such a folder.
    """
    folder = _device_lock_path()
    try:
        mode = _made_shared(folder)
    except OSError as error:
        raise _refused(folder, error.strerror or "cannot be made") from error
    if not _is_shared(mode):
        raise _refused(folder, "it is not a folder that all users share (mode 1777)")
    return folder


def _made_shared(folder: Path) -> int:
    """The folder's mode, after making it if need be; in one step, so that no other user finds it half made."""
    umask = os.umask(0)
    try:
        folder.mkdir(mode=SHARED_MODE, exist_ok=True)
    finally:
        os.umask(umask)
    return folder.lstat().st_mode


def _device_lock_path() -> Path:
    if OVERRIDE in os.environ:
        return runtime_folder() / "locks"
    with contextlib.suppress(OSError):
        if _is_shared(os.stat("/run/lock").st_mode):
            return Path("/run/lock") / FOLDER_NAME
    return Path(f"/tmp/{FOLDER_NAME}-locks")  # noqa: S108 - checked by mode, and its files are opened without following


def _is_shared(mode: int) -> bool:
    return stat.S_ISDIR(mode) and stat.S_IMODE(mode) & SHARED_MODE == SHARED_MODE


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
    path = folder / (re.sub("[^A-Za-z0-9._-]", "_", device)[:100] + ".lock")
    descriptor = _open_shared(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _read_holder(descriptor)
        os.close(descriptor)
        raise _busy(device, holder) if error.errno == errno.EWOULDBLOCK else _unusable(path, error) from error
    _write_holder(descriptor, run)
    return descriptor


def _open_shared(path: Path) -> int:
    """Open a lock file that anybody may have made, or make it.

    Never O_CREAT on one that is there: in a sticky folder the kernel refuses that for the files of other users
    (fs.protected_regular), root included.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        try:
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            descriptor = _create_shared(path, flags)
    except OSError as error:
        raise _unusable(path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _unusable(path, OSError(errno.EINVAL, "it is not a plain file"))
    return descriptor


def _create_shared(path: Path, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:  # another run was first
        return os.open(path, flags)
    os.fchmod(descriptor, 0o666)
    return descriptor


def _unusable(path: Path, error: OSError) -> AibenchError:
    return AibenchError(f"the device lock {path} cannot be used: {error.strerror}", "remove it", code=exits.NOT_READY)


def _busy(device: str, holder: dict[str, Any]) -> AibenchError:
    run, pid = clean(str(holder.get("run", "an unknown run")), 80), clean(str(holder.get("pid", "?")), 20)
    who = f"run {run} (pid {pid}, user {clean(str(holder.get('user', '?')), 40)})"
    what = f"device {clean(device, 80)} is in use by {who} since {clean(str(holder.get('since', '?')), 40)}"
    if pid.isdigit() and not Path("/proc", pid).exists():
        return AibenchError(
            f"{what}, whose runner is gone", "end what it left with `aibench-tui clean`", code=exits.NOT_READY
        )
    return AibenchError(what, "wait for its end or watch it with `aibench-tui show`", code=exits.NOT_READY)


def _read_holder(descriptor: int) -> dict[str, Any]:
    try:
        holder = json.loads(os.pread(descriptor, HOLDER_BYTES, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _write_holder(descriptor: int, run: str) -> None:
    since = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    holder = {"run": run, "pid": os.getpid(), "user": user_name(), "since": since}
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

    Raises AibenchError (code 4) where another runner has it.
    """
    path = folder / runfolder.LOCK
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise AibenchError(
            f"{path} cannot be opened: {error.strerror}", "check the folder", code=exits.INCOMPLETE
        ) from error
    try:
        if not any(_try_folder_lock(descriptor, pause) for pause in range(FOLDER_LOCK_TRIES)):
            what = f"{folder} is in use by a runner"
            raise AibenchError(what, "wait for its end or watch it with `aibench-tui show`", code=exits.NOT_READY)
        yield descriptor
    finally:
        os.close(descriptor)


def _try_folder_lock(descriptor: int, tries_before: int) -> bool:
    if tries_before:
        time.sleep(FOLDER_LOCK_PAUSE_S)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_running(folder: Path) -> bool:
    """Whether a runner holds this run folder now; also where that is hidden from us, since it is somebody else's."""
    try:
        descriptor = os.open(folder / runfolder.LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
