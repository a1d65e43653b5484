"""What a trial prints beside the protocol: its head and tail are kept, the middle is counted."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from engine import files

HEAD_BYTES = 8 * 1024 * 1024
TAIL_BYTES = 8 * 1024 * 1024
RECENT_BYTES = 4096
FLOOD_BYTES = 256 * 1024 * 1024
"""A trial that prints more than this disturbs what it measures, and fails."""

PIECE_BYTES = 64 * 1024
FLUSH_S = 1.0
"""What waits is written when it is a piece, or this old: a worker that prints byte by byte costs no write for each."""

CLOSE_S = 10.0
"""How long the end of a trial waits for the disk: enough for all that is kept at 2 MB/s."""


class TrialLog:
    """A log of at most HEAD_BYTES + TAIL_BYTES and a line that says what was dropped.

    Writing happens on a thread of its own, so that a slow disk never holds up the pipes of a worker; no more than the
    kept bytes wait in memory. A disk that refuses or does not answer costs the log alone; `problem` says so.
    """

    def __init__(self, path: Path) -> None:
        self.written = 0
        self.problem = ""
        self._path = path
        self._head_left = HEAD_BYTES
        self._tail = bytearray()
        self._dropped = 0
        self._recent = b""
        self._waiting = bytearray()
        self._closing = False
        self._changed = threading.Condition()
        # a daemon: a disk that is dead must not keep the runner from ending
        self._thread = threading.Thread(target=self._serve, name="trial-log", daemon=True)
        self._thread.start()

    @property
    def flooded(self) -> bool:
        """Whether the trial printed more than FLOOD_BYTES."""
        return self.written > FLOOD_BYTES

    @property
    def dropped(self) -> int:
        """Bytes that were not kept."""
        return self._dropped

    def write(self, data: bytes) -> None:
        """Keep what fits of `data`."""
        self.written += len(data)
        self._recent = (self._recent + data[-RECENT_BYTES:])[-RECENT_BYTES:]
        head, rest = data[: self._head_left], data[self._head_left :]
        if head:
            self._head_left -= len(head)
            self._queue(head)
        if rest:
            self._keep_tail(rest)

    def recent(self) -> bytes:
        """The newest RECENT_BYTES, for a failure's last words."""
        return self._recent

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write the dropped count and the tail, and wait for the disk, but no longer than `timeout_s`."""
        with self._changed:
            if self._dropped:
                self._waiting += f"\n… {self._dropped} bytes were not kept …\n".encode()
            self._waiting += self._tail
            self._tail.clear()
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.problem = self.problem or f"{self._path.name}: the disk has not answered for {timeout_s:g} s"

    def _queue(self, data: bytes) -> None:
        with self._changed:
            self._waiting += data
            if len(self._waiting) == len(data) or len(self._waiting) >= PIECE_BYTES:
                self._changed.notify()

    def _keep_tail(self, data: bytes) -> None:
        self._tail += data
        excess = max(len(self._tail) - TAIL_BYTES, 0)
        del self._tail[:excess]  # moves the buffer's begin, not its bytes
        self._dropped += excess

    def _serve(self) -> None:
        """The disk's thread: pieces as they come, until `close` has handed over the last."""
        file: files.Appender | None = None
        ended = False
        while not ended:
            data, ended = self._next_piece()
            if data and not self.problem:
                file = self._append(file, data)
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _next_piece(self) -> tuple[bytes, bool]:
        """At most PIECE_BYTES of what waits, and whether they are the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            self._changed.wait_for(lambda: len(self._waiting) >= PIECE_BYTES or self._closing, FLUSH_S)
            data = bytes(self._waiting[:PIECE_BYTES])
            del self._waiting[:PIECE_BYTES]
            return data, self._closing and not self._waiting

    def _append(self, file: files.Appender | None, data: bytes) -> files.Appender | None:
        try:
            file = file or files.Appender(self._path)
            file.add(data)
            file.forget()
        except OSError as error:
            self.problem = f"{self._path.name}: {error.strerror}"
        return file
