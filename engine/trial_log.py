"""What a trial prints beside the protocol: its head and tail are kept, the middle is counted."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine import files

HEAD_BYTES = 8 * 1024 * 1024
TAIL_BYTES = 8 * 1024 * 1024
RECENT_BYTES = 4096
FLOOD_BYTES = 256 * 1024 * 1024
"""A trial that prints more than this disturbs what it measures, and fails."""


class TrialLog:
    """A log of at most HEAD_BYTES + TAIL_BYTES and a line that says what was dropped.

    Writing happens on a thread of its own, so that a slow disk never holds up the pipes of a worker; no more than the
    kept bytes wait in memory. A disk that refuses is remembered in `problem` and costs the log alone.
    """

    def __init__(self, path: Path) -> None:
        self.written = 0
        self.problem = ""
        self._path = path
        self._head_left = HEAD_BYTES
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._dropped = 0
        self._recent = b""
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="trial-log")

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
            self._disk.submit(self._append, head)
        if rest:
            self._keep_tail(rest)

    def recent(self) -> bytes:
        """The newest RECENT_BYTES, for a failure's last words."""
        return self._recent

    def close(self) -> None:
        """Write the dropped count and the tail; the disk's thread ends."""
        if self._dropped:
            self._disk.submit(self._append, f"\n… {self._dropped} bytes were not kept …\n".encode())
        for piece in self._tail:
            self._disk.submit(self._append, piece)
        self._disk.shutdown(wait=True)

    def _keep_tail(self, data: bytes) -> None:
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail_bytes > TAIL_BYTES:
            oldest = self._tail.popleft()
            self._tail_bytes -= len(oldest)
            self._dropped += len(oldest)

    def _append(self, data: bytes) -> None:
        if self.problem:
            return
        try:
            files.append_bytes(self._path, data)
        except OSError as error:
            self.problem = f"{self._path.name}: {error.strerror}"
