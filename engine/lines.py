"""Whole lines of a file that may still grow, in bounded memory: the read side of journals and series."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from engine import exits, files
from engine.text import clean

CHUNK_BYTES = 256 * 1024


class LineTail:
    """Follows one file. A line over `limit_bytes` comes as None, never held whole; empty ones are left out."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._path = path
        self._limit = limit_bytes
        self._descriptor: int | None = None
        self._ready: deque[bytes] = deque()
        self._rest = b""

    def lines(self) -> Iterator[bytes | None]:
        """The lines complete by now; an unfinished last one waits for the rest. A file not there yet has none.

        Raises AibenchError (code 2) where the path cannot be read or is no regular file.
        """
        while self._ready or self._fill():
            line = self._ready.popleft()
            if len(line) > self._limit:
                yield None
            elif line:
                yield line

    def torn(self) -> bytes | None:
        """What stands after the last newline, b"" for nothing, once nobody writes any more."""
        rest, self._rest = self._rest, b""
        return None if len(rest) > self._limit else rest

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _fill(self) -> bool:
        """Read on until a line is complete; False where there is no more to read."""
        while not self._ready:
            chunk = self._read()
            if not chunk:
                return False
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            self._ready.extend(whole)
            self._rest = self._rest[: self._limit + 1]  # enough to tell that the line is too long
        return True

    def _read(self) -> bytes:
        with files.explained(self._path, "read", code=exits.USAGE):
            if self._descriptor is None:
                with contextlib.suppress(FileNotFoundError):
                    self._descriptor = files.open_regular(self._path, clean(str(self._path)))
            return b"" if self._descriptor is None else os.read(self._descriptor, CHUNK_BYTES)
