"""The one place that creates, writes, renames and syncs the program's files: owner-only, durable, never through a link.

Every failure is a FileError: one line for the operator, and an OSError for code that can go on without the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from engine import exits
from engine.errors import AibenchError
from engine.text import clean

MAX_PLAN_BYTES = 1024**2
MAX_SESSION_BYTES = 16 * 1024**2

PATH_LIMIT = 500
"""Characters of a path in a message."""

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW

_ELSEWHERE = "or name another folder with --out"
_REMEDIES = {
    errno.ENOSPC: f"make room there, {_ELSEWHERE}",
    errno.EDQUOT: f"make room in your quota, {_ELSEWHERE}",
    errno.EROFS: "it is mounted read-only: name another folder with --out",
    errno.EACCES: f"give this user the right to it, {_ELSEWHERE}",
    errno.EPERM: f"give this user the right to it, {_ELSEWHERE}",
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "a part of the path is a file: check it",
    errno.EISDIR: "it is a folder: name a file",
    errno.ELOOP: "a symbolic link stands in the way: remove it",
    errno.ENAMETOOLONG: "name a shorter path",
    errno.EIO: "the disk reports a fault: see dmesg",
    errno.ESTALE: "the network file system lost it: mount it again",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EEXIST: "name another file or remove it",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
    errno.ENOMEM: "raise the limit of memory (ulimit -v) or free some",
    errno.EAGAIN: "raise the limit of processes (ulimit -u)",
    errno.EINVAL: "name another file",
}
_READ_REMEDIES = dict.fromkeys((errno.EACCES, errno.EPERM), "read it as its owner or as root") | {
    errno.ENOENT: "check the path",
    errno.ENAMETOOLONG: "name a shorter path",
    errno.EINVAL: "check the disk",
}


class FileError(AibenchError, OSError):
    """A file operation that failed: `what` names the operation and the path, `do` what helps against this errno."""

    def __init__(self, error: OSError, path: Path | str, doing: str, *, code: int = exits.INCOMPLETE) -> None:
        reason = error.strerror or type(error).__name__
        remedies = _REMEDIES | _READ_REMEDIES if doing == "read" else _REMEDIES
        what = f"cannot {doing} {clean(str(path), PATH_LIMIT)}: {reason}"
        AibenchError.__init__(self, what, remedies.get(error.errno or 0, ""), code=code)
        self.errno = error.errno
        self.strerror = reason

    def __str__(self) -> str:
        return f"{self.what}; {self.do}" if self.do else self.what


@contextlib.contextmanager
def explained(path: Path | str, doing: str, *, code: int = exits.INCOMPLETE) -> Iterator[None]:
    """Every OSError inside comes out as a FileError about `doing` something with `path`."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise FileError(error, path, doing, code=code) from error


def read_limited(path: Path, limit_bytes: int, *, what: str = "") -> bytes:
    """All of the regular file `path`; `what` names it to the operator (the path by default).

    Raises AibenchError (code 2) where it cannot be read, is a device, pipe or folder, or holds more than `limit_bytes`.
    """
    name = what or clean(str(path))
    with explained(path, "read", code=exits.USAGE):
        descriptor = open_regular(path, name)
        with os.fdopen(descriptor, "rb") as stream:
            data = stream.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise AibenchError(f"{name} is larger than {limit_bytes} bytes", "name a smaller file")
    return data


def open_regular(path: Path, name: str) -> int:
    """A descriptor to read the regular file `path`. A pipe or a device, which could block for ever, is refused.

    Raises AibenchError (code 2) for what is no regular file, OSError where it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise AibenchError(f"{name} is not a regular file", "name a file")
    return descriptor


def make_private_folder(path: Path) -> None:
    """Make `path` and what is missing above it, for the owner alone, durably. One that is there is taken as it is.

    Raises FileError.
    """
    with explained(path, "make the folder"):
        if path.is_dir():
            return
        make_private_folder(path.parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
        fsync_folder(path.parent)


def probe_writable(folder: Path) -> None:
    """See that a file can be made and filled in `folder`, which is made where it is missing.

    Raises FileError (code 2) naming what is in the way.
    """
    probe = folder / f".probe-{secrets.token_hex(4)}"
    with explained(folder, "write in", code=exits.USAGE):
        try:
            make_private_folder(folder)
            create_private(probe, bytes(4096))
        except FileError as error:
            raise FileError(error, folder, "write in", code=exits.USAGE) from error
        finally:
            remove(probe)


def create_private(path: Path, data: bytes) -> None:
    """A new durable file for the owner alone, complete or not there.

    Raises FileExistsError where one is, else FileError.
    """
    try:
        descriptor = os.open(path, _CREATE | os.O_EXCL, 0o600)
    except FileExistsError:
        raise
    except OSError as error:
        raise FileError(error, path, "create") from error
    with explained(path, "write"):
        try:
            with _closing(descriptor):
                write_all(descriptor, data)
                os.fsync(descriptor)
        except OSError:
            remove(path)
            raise
        fsync_folder(path.parent)


def write_private(path: Path, data: bytes) -> None:
    """A file of passing use for the owner alone, not synced; what was there is overwritten. Raises FileError."""
    with explained(path, "write"), _closing(os.open(path, _CREATE | os.O_TRUNC, 0o600)) as descriptor:
        write_all(descriptor, data)


def append_bytes(path: Path, data: bytes) -> None:
    """Add `data` at the end of `path`, for logs: not synced. Raises FileError."""
    with explained(path, "append to"), _closing(os.open(path, _CREATE | os.O_APPEND, 0o600)) as descriptor:
        write_all(descriptor, data)


def atomic_write(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, durably: whatever fails, the file is the old one or the new one, complete.

    Raises FileError.
    """
    with replacing(path) as stream:
        stream.write(data)


@contextlib.contextmanager
def replacing(path: Path, *, is_new: bool = False, code: int = exits.INCOMPLETE) -> Iterator[IO[bytes]]:
    """A stream whose bytes take the place of `path` once the block has ended well: synced, renamed, folder synced.

    Where the block or the disk fails, the old file stays and nothing is left beside it. Raises FileError, with `code`
    where nothing can be begun: at what is no regular file, which a rename would take away, or with `is_new` any file.
    """
    temporary = path.parent / f".{path.name[:200]}.{secrets.token_hex(4)}.tmp"
    with explained(path, "write", code=code):
        _check_place(path, is_new=is_new)
        stream = os.fdopen(os.open(temporary, _CREATE | os.O_EXCL, 0o600), "wb")
    with explained(path, "write"):
        try:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            stream.close()
            _check_place(path, is_new=is_new)  # once more: it may have taken long to fill
            os.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                stream.close()
            remove(temporary)
            raise
        fsync_folder(path.parent)


def _check_place(path: Path, *, is_new: bool) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if is_new:
        raise FileExistsError(errno.EEXIST, "it is there already")


def remove(path: Path) -> None:
    """Take a file away; one that is gone, or that will not go, is none of the caller's trouble."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def fsync_folder(folder: Path) -> None:
    """Make the names in `folder` durable. A file system that cannot sync folders (EINVAL) has nothing to give."""
    with _closing(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte, however short the single writes are."""
    _write_by(lambda piece: os.write(descriptor, piece), data)


def _write_by(write: Callable[[memoryview], int], data: bytes | bytearray) -> None:
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += write(view[done:])


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class Appender:
    """The single writer of a file of lines. Raw OSErrors; the caller knows what they mean.

    Before its first byte it looks at the last one: where a crash tore the last line, it starts a new one, since a torn
    tail would eat the next good record. What is not synced yet is kept in memory and can be written again in place:
    after a failed fdatasync the kernel may have dropped the pages while calling them clean.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._synced = os.fstat(self._descriptor).st_size
        torn = self._synced > 0 and os.pread(self._descriptor, 1, self._synced - 1) != b"\n"
        self._waiting = bytearray(b"\n" if torn else b"")
        self._written = 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are not known to be durable."""
        return len(self._waiting)

    def add(self, data: bytes) -> None:
        """Take whole lines in; no disk is touched."""
        self._waiting += data

    def flush(self) -> None:
        """Hand everything to the kernel, going on where a failed attempt stopped."""
        while self._written < len(self._waiting):
            with memoryview(self._waiting) as view, view[self._written :] as piece:
                self._written += os.pwrite(self._descriptor, piece, self._synced + self._written)

    def sync(self) -> None:
        """Everything so far is durable when this returns."""
        self.flush()
        os.fdatasync(self._descriptor)
        self._synced += len(self._waiting)
        self._waiting.clear()
        self._written = 0

    def forget(self) -> None:
        """Everything so far is in the kernel's hands and will not be written again, for files that are not synced."""
        self.flush()
        self._synced += len(self._waiting)
        self._waiting.clear()
        self._written = 0

    def rewind(self) -> None:
        """After a failure: the next flush writes all that is not durable again, the same bytes at the same place."""
        self._written = 0

    def close(self) -> None:
        """Let go of the file; nothing is written."""
        os.close(self._descriptor)


class Reserve:
    """Disk space held back by a preallocated file, so that a run on a disk that fills up can still write its end."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._left = size_bytes
        with explained(path, "reserve disk space in"):
            try:
                with _closing(os.open(path, _CREATE, 0o600)) as descriptor:
                    _allocate(descriptor, size_bytes)
            except OSError:
                remove(path)
                raise

    def release(self) -> bool:
        """Give half of what is left back to the disk, the last page altogether; False where nothing was left."""
        if self._left == 0:
            return False
        self._left = self._left // 2 if self._left > 8192 else 0
        if self._left == 0:
            remove(self._path)
        else:
            with contextlib.suppress(OSError):
                os.truncate(self._path, self._left)
        return True

    def close(self) -> None:
        """Give everything back."""
        self._left = 0
        remove(self._path)


def _allocate(descriptor: int, size_bytes: int) -> None:
    """Real blocks, by fallocate where the file system has it, else by writing."""
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        write_all(descriptor, bytes(size_bytes))
