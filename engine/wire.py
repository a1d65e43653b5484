"""The lines that a trial's processes print, read with suspicion: whatever is not one of ours is log text.

The write side is engine.worker.protocol (and the last line of engine.worker.keeper). A line counts only with the
trial's token, at most MAX_LINE bytes and numbers that a journal can hold; engine.heard says whether to believe it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from engine.events import MetricResult
from engine.text import clean, clean_tree
from engine.values import Scalar

MAX_LINE = 8192

PHASES = ("import", "setup", "warmup", "calibrate", "measure", "check")

MAX_INTEGER = 2**63 - 1
"""What TOML holds (TOML 1.0.0, "Integer")."""

MAX_GROUP = 10**12
"""More iterations than that in one reading of a timer would take days; sums of them still fit MAX_INTEGER."""


class WireLine(msgspec.Struct, frozen=True, tag_field="kind", kw_only=True):
    """What every line carries. `t` is seconds of the sender's monotonic clock."""

    token: str
    rank: int
    seq: int
    t: float


class Ping(WireLine, frozen=True, tag="ping", kw_only=True):
    """A request for our clock; the answer goes to the worker's stdin at once."""

    n: int


class Hello(WireLine, frozen=True, tag="hello", kw_only=True):
    """The worker is up and knows the offset of its clock to ours."""

    pid: int
    python: str
    clock_offset_s: float
    clock_uncertainty_s: float


class Phase(WireLine, frozen=True, tag="phase", kw_only=True):
    """The worker enters a phase."""

    name: str


class Durations(WireLine, frozen=True, tag="iterations", kw_only=True):
    """Durations of iterations in order, each the mean of `group` of them."""

    metric: str
    group: int
    durations_s: tuple[float, ...]


class Result(WireLine, frozen=True, tag="result", kw_only=True):
    """The work of each metric, and facts about how it was done."""

    metrics: tuple[MetricResult, ...]
    facts: dict[str, Scalar]


class Failure(WireLine, frozen=True, tag="failure", kw_only=True):
    """The worker gives up, with a cause that decides the outcome."""

    cause: Literal["error", "unsupported", "incorrect", "out_of_memory", "protocol"]
    reason: str


class Bye(WireLine, frozen=True, tag="bye", kw_only=True):
    """The worker has said everything."""


class KeeperReport(WireLine, frozen=True, tag="keeper", kw_only=True):
    """How the worker ended, as its keeper saw it; `left` processes could not be ended."""

    exit_code: int | None
    signal: int | None
    cause: Literal["ended", "deadline", "eof"]
    left: int
    oom_kills: int | None


Line = Ping | Hello | Phase | Durations | Result | Failure | Bye | KeeperReport

_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def decode(line: bytes, token: str) -> Line | None:
    """The protocol line in `line`, every string clean, or None where it is not one of this trial's."""
    if not line.startswith(b"{") or len(line) > MAX_LINE:
        return None
    try:
        message = _decoder.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    if message.token != token or not _is_storable(message):
        return None
    if isinstance(message, Durations):
        return msgspec.structs.replace(message, metric=clean(message.metric, 1000))
    return _cleaned(message)


def _is_storable(message: Line) -> bool:
    """Whether a journal and a session file can hold its numbers."""
    if isinstance(message, Durations):  # by far the longest lines, so without copying them
        head = (message.rank, message.seq, message.t)
        return _holds(head) and 1 <= message.group <= MAX_GROUP and all(0 <= s < math.inf for s in message.durations_s)
    return _holds(msgspec.to_builtins(message))


def _holds(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_holds, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_holds, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or abs(value) <= MAX_INTEGER


def _cleaned(message: Line) -> Line:
    cleaned: Line = msgspec.convert(clean_tree(msgspec.to_builtins(message), limit=1000), Line)
    return cleaned


class LineSplitter:
    """Cuts a byte stream into lines and bounds the memory of a stream that never ends one.

    `feed` yields (line, whole): a line longer than MAX_LINE comes in pieces with whole = False, which are log text.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._overlong = False

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """The lines that `data` completes."""
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            whole = not self._overlong and len(line) <= MAX_LINE
            self._overlong = False
            yield line, whole
        self._rest = rest
        if len(rest) > MAX_LINE:
            self._overlong, self._rest = True, b""
            yield rest, False

    def end(self) -> Iterator[tuple[bytes, bool]]:
        """What is left when the stream ends."""
        if self._rest:
            yield self._rest, not self._overlong
        self._rest = b""


def last_words(log_tail: bytes) -> str:
    """The last line with text in a log's tail, clean and short, for a reason."""
    lines = [line for line in log_tail.splitlines() if line.strip()]
    return clean(lines[-1].strip(), 160) if lines else ""
