"""The worker's side of the protocol: JSON lines on a private copy of fd 1, answers of the runner on one of fd 0.

Libraries print what they like: after `take_pipes` fd 1 is fd 2 and fd 0 is empty, so nothing that they (or compilers
which they start) write or read can tear a line or eat an answer.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import select
import time
from collections.abc import Callable, Sequence
from typing import Any

from engine.worker.spec import MAX_BYTES
from engine.worker.work import Cause, ProtocolError

MAX_LINE_BYTES = 8192
MAX_REASON_CHARS = 1000
MAX_DURATIONS = 100_000
"""Durations of one metric that are sent; of more, consecutive ones are averaged."""

PINGS = 3
PONG_TIMEOUT_S = 30.0
_DURATIONS_PER_LINE = 400
_DIGITS = 7


class PipeClosed(SystemExit):
    """The runner is gone: nobody reads any more, so the worker leaves without a word."""

    def __init__(self) -> None:
        super().__init__(1)


def take_pipes() -> tuple[int, int]:
    """Move fd 0 and fd 1 to private close-on-exec copies; returns (reading fd, writing fd).

    Afterwards fd 1 is a copy of fd 2, and fd 0 is /dev/null.
    """
    reading = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    writing = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return reading, writing


def one_line(text: str) -> str:
    """`text` on one line, with runs of blanks made one, of at most MAX_REASON_CHARS characters."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON_CHARS else line[: MAX_REASON_CHARS - 1] + "…"


def grouped(durations_s: Sequence[float], limit: int = MAX_DURATIONS) -> tuple[int, list[float]]:
    """At most `limit` durations, and how many consecutive ones each is the mean of (the last may have fewer)."""
    group = max(1, -(-len(durations_s) // limit))
    if group == 1:
        return 1, list(durations_s)
    parts = (durations_s[first : first + group] for first in range(0, len(durations_s), group))
    return group, [sum(part) / len(part) for part in parts]


class LineReader:
    """Lines from a file descriptor, each within a time limit and of bounded length."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._held = b""

    def line(self, timeout_s: float | None = None) -> bytes:
        """The next line without its newline. Raises PipeClosed at the end, ProtocolError when it is late or long."""
        while b"\n" not in self._held:
            if len(self._held) > MAX_BYTES:
                raise ProtocolError(f"a line from the runner is longer than {MAX_BYTES} bytes")
            if not select.select([self._fd], [], [], timeout_s)[0]:
                raise ProtocolError(f"the runner did not answer within {timeout_s:g} s")
            data = os.read(self._fd, 65536)
            if not data:
                raise PipeClosed
            self._held += data
        line, _, self._held = self._held.partition(b"\n")
        return line


class Wire:
    """Writes protocol lines of one rank, numbered from 0. Every method raises PipeClosed once the reader is gone."""

    def __init__(self, fd: int, token: str, rank: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._fd = fd
        self._token = token
        self._rank = rank
        self._clock = clock
        self._seq = 0

    def send(self, kind: str, **fields: object) -> None:
        """Write one line. Raises ProtocolError for one above MAX_LINE_BYTES or with a number that is not finite."""
        head = {"token": self._token, "rank": self._rank, "seq": self._seq, "kind": kind, "t": self._clock()}
        try:
            line = json.dumps({**head, **fields}, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        except ValueError as error:
            raise ProtocolError(f"a {kind} line cannot be written: {error}") from None
        if len(line) > MAX_LINE_BYTES:
            raise ProtocolError(f"a {kind} line has {len(line)} bytes; {MAX_LINE_BYTES} are allowed")
        self._write(line)
        self._seq += 1

    def _write(self, line: bytes) -> None:
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError:
            raise PipeClosed from None

    def greet(self, reader: LineReader, timeout_s: float = PONG_TIMEOUT_S) -> None:
        """Exchange clocks with the runner and say hello.

        offset = runner's clock - middle of the exchange, of the exchange with the least round trip; its uncertainty is
        half that round trip (NTP, RFC 5905 section 8).
        """
        exchanges = [self._exchange(number, reader, timeout_s) for number in range(PINGS)]
        round_trip_s, offset_s = min(exchanges)
        self.send(
            "hello",
            pid=os.getpid(),
            python=platform.python_version(),
            clock_offset_s=offset_s,
            clock_uncertainty_s=round_trip_s / 2,
        )

    def _exchange(self, number: int, reader: LineReader, timeout_s: float) -> tuple[float, float]:
        begin = self._clock()
        self.send("ping", n=number)
        runner_s = _pong(reader.line(timeout_s), number)
        end = self._clock()
        return end - begin, runner_s - (begin + end) / 2

    def phase(self, name: str) -> None:
        """Enter a phase: import, setup, warmup, calibrate, measure or check."""
        self.send("phase", name=name)

    def iterations(self, metric: str, group: int, durations_s: Sequence[float]) -> None:
        """Send every duration of a metric in order, over as many lines as it takes.

        Each given duration is already the mean of `group` calls; above MAX_DURATIONS they are averaged further.
        """
        factor, kept = grouped(durations_s)
        for first in range(0, len(kept), _DURATIONS_PER_LINE):
            part = [float(f"{duration:.{_DIGITS}g}") for duration in kept[first : first + _DURATIONS_PER_LINE]]
            self.send("iterations", metric=metric, group=group * factor, durations_s=part)

    def failure(self, cause: Cause, reason: str) -> None:
        """Say in one line why the trial failed; it is shortened to what a protocol line holds."""
        line = one_line(reason)
        # A character takes up to 12 bytes as JSON escapes, so a thousand may not fit.
        while len(json.dumps(line)) > MAX_LINE_BYTES - 1024:
            line = line[: len(line) * 3 // 4]
        self.send("failure", cause=cause, reason=line)

    def bye(self) -> None:
        """The last line of a worker that succeeded."""
        self.send("bye")


def _pong(line: bytes, number: int) -> float:
    try:
        answer: Any = json.loads(line)
        if answer["pong"] == number:
            return float(answer["t"])
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ProtocolError(f"the runner's answer to ping {number} is no pong: {line[:80]!r}")
