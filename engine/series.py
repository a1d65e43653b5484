"""Telemetry samples on disk, round robin: raw inside trials for minutes, windows of rising width for longer.

Four tiers are written side by side, each into segments of its own that are deleted when they are too old, so that
nothing is ever rewritten and both ends are bounded:

    tier     what                            a segment  kept after its end
    raw      every sample inside trials      5 min      10 min
    5 s      n, min, mean, max per quantity  1 h        1 day
    60 s     the same                        1 day      1 week
    600 s    the same                        1 week     the run's life

Disk for one device with q quantities read f times a second, in bytes, with r = 30 + 10 q for a raw row and
w = 40 + 30 q for a window at worst: 900 f r + 90 000 / 5 w + 691 200 / 60 w + 144 w a day of running. For q = 25 and
f = 10 that is below 26 MB plus 0.12 MB a day; constant quantities (most of them) take a tenth.

A segment is JSON lines: a header, then `{"columns": k, ...}` before the first row of each set of quantities, then rows:
raw [k, t, value, ...], windows [k, t, n, cell, ...] where a cell is a number (constant), [mean, min, max], or with a
count of its own [m, value] or [m, mean, min, max].
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from engine import files
from engine.errors import AibenchError
from engine.lines import LineTail
from engine.telemetry.samples import Sample

SCHEMA = 1
MAX_LINE_BYTES = 1024**2
FLUSH_S = 1.0
CLOSE_S = 5.0
GIVE_UP_BYTES = 16 * 1024**2
"""What may wait for a disk that does not answer, before the series is given up."""


class Tier(msgspec.Struct, frozen=True):
    """One resolution: width of its windows (0 is raw), length of a segment, and how long one is kept after its end."""

    window_s: int
    segment_s: float
    keep_s: float


TIERS = (
    Tier(0, 300, 600),
    Tier(5, 3600, 86_400),
    Tier(60, 86_400, 7 * 86_400),
    Tier(600, 7 * 86_400, math.inf),
)


@dataclass
class _Sum:
    n: int
    total: float
    low: float
    high: float

    def add(self, value: float) -> None:
        self.n += 1
        self.total += value
        self.low, self.high = min(self.low, value), max(self.high, value)


@dataclass
class _Open:
    """A window that still takes samples, of one device and provider."""

    begin: float
    sums: dict[str, _Sum] = field(default_factory=dict)


Key = tuple[str, str, tuple[str, ...]]


class _Segments:
    """The segments of one tier, oldest first; the last of `opened` takes rows. `old` are those of an earlier runner."""

    def __init__(self, tier: Tier, start: Callable[[Tier], _Segment]) -> None:
        self.tier = tier
        self.opened: list[_Segment] = []
        self.old: list[_Segment] = []
        self._start = start
        self._windows: dict[tuple[str, str], _Open] = {}

    def take(self, sample: Sample) -> None:
        """Write a raw row, or add to the open window, which is written when the first later sample comes."""
        if self.tier.window_s == 0:
            self._row((sample.device, sample.provider, tuple(sample.values)), sample.t, list(sample.values.values()))
            return
        key = (sample.device, sample.provider)
        begin = sample.t // self.tier.window_s * self.tier.window_s
        window = self._windows.get(key)
        if window is None or window.begin != begin:
            if window is not None:
                self._close(key, window)
            window = self._windows[key] = _Open(begin)
        for name, value in sample.values.items():
            known = window.sums.get(name)
            if known is None:
                window.sums[name] = _Sum(1, value, value, value)
            else:
                known.add(value)

    def close(self) -> None:
        """Write the windows that are still open."""
        for key, window in self._windows.items():
            self._close(key, window)
        self._windows.clear()

    def unwritten(self) -> list[_Segment]:
        """The segments with rows that wait."""
        return [each for each in self.opened if each.waiting_bytes]

    def expired(self, now: float) -> list[Path]:
        """Forget the segments whose time is over; their files are to be deleted."""
        paths = []
        for segments in (self.old, self.opened):
            while segments and now > segments[0].begin + self.tier.segment_s + self.tier.keep_s:
                paths.append(segments.pop(0).path)
        return paths

    def _close(self, key: tuple[str, str], window: _Open) -> None:
        most = max(each.n for each in window.sums.values())
        cells = [_cell(each, most) for each in window.sums.values()]
        self._row((*key, tuple(window.sums)), window.begin, [most, *cells])

    def _row(self, columns: Key, t: float, rest: list[Any]) -> None:
        if not self.opened or t >= self.opened[-1].begin + self.tier.segment_s:
            self.opened.append(self._start(self.tier))
        self.opened[-1].row(columns, t, rest)


class _Segment:
    """One file and the rows that wait to be written to it."""

    def __init__(self, path: Path, begin: float, header: bytes = b"") -> None:
        self.path = path
        self.begin = begin
        self._columns: dict[Key, int] = {}
        self._waiting = bytearray(header)

    @property
    def waiting_bytes(self) -> int:
        """What is not written yet."""
        return len(self._waiting)

    def row(self, columns: Key, t: float, rest: list[Any]) -> None:
        """Queue a row, after its columns where they are new here."""
        number = self._columns.get(columns)
        if number is None:
            number = self._columns[columns] = len(self._columns)
            device, provider, names = columns
            self._waiting += _line({"columns": number, "device": device, "provider": provider, "names": names})
        self._waiting += _line([number, round(t, 4), *rest])

    def take(self) -> bytes:
        """What waits, once."""
        waiting, self._waiting = bytes(self._waiting), bytearray()
        return waiting


def _line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _cell(total: _Sum, most: int) -> Any:
    """The shortest form that loses nothing but digits beyond the seventh."""
    count = [] if total.n == most else [total.n]
    if total.low == total.high:
        return [*count, total.low] if count else total.low
    mean = min(max(float(f"{total.total / total.n:.7g}"), total.low), total.high)
    return [*count, mean, total.low, total.high]


class SeriesWriter:
    """Takes every sample of a run and keeps what the tiers say. Nothing here ever ends a run, or waits for the disk.

    `problem` says why the series was given up ("" while it was not). Segments that an earlier runner of the same run
    left are aged with the others. `clock` is monotonic and that of the samples, `wall` counts from 1970; seconds both.
    """

    def __init__(
        self, folder: Path, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self.problem = ""
        self._told = False
        self._folder = folder
        self._clock = clock
        self._wall = wall
        self._tiers = [_Segments(tier, self._start) for tier in TIERS]
        self._next = 1
        self._flushed = clock()
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="series")
        self._writing: Future[None] | None = None
        self._adopt()

    def add(self, sample: Sample, in_trial: bool) -> str:
        """Keep a sample: raw where it is `in_trial`, in windows always. Returns a problem once, else ""."""
        if not self.problem and sample.values:
            for segments in self._tiers:
                if in_trial or segments.tier.window_s:
                    segments.take(sample)
            now = self._clock()
            if now >= self._flushed + FLUSH_S:
                self._flush(now)
        told, self._told = self._told, bool(self.problem)
        return "" if told else self.problem

    def close(self) -> None:
        """Write what is left, open windows too; a disk that does not answer is waited for CLOSE_S twice at most."""
        for segments in self._tiers:
            segments.close()
        self._wait()
        self._flush(self._clock())
        self._wait()
        self._disk.shutdown(wait=False)

    def _start(self, tier: Tier) -> _Segment:
        now = self._clock()
        path = self._folder / f"{self._next:03}.jsonl"
        self._next += 1
        header = {"series": SCHEMA, "window_s": tier.window_s, "t": round(now, 4), "wall_s": round(self._wall(), 4)}
        return _Segment(path, now, _line(header))

    def _flush(self, now: float) -> None:
        self._flushed = now
        if self._writing is not None:
            if not self._writing.done():
                self._check_backlog()
                return
            self._finish(self._writing)
        expired = [path for segments in self._tiers for path in segments.expired(now)]
        pieces = [(each.path, each.take()) for segments in self._tiers for each in segments.unwritten()]
        if (pieces or expired) and not self.problem:
            self._writing = self._disk.submit(_write, pieces, expired)

    def _wait(self) -> None:
        if self._writing is not None and wait([self._writing], CLOSE_S).done:
            self._finish(self._writing)

    def _finish(self, writing: Future[None]) -> None:
        try:
            writing.result()
        except OSError as error:
            self.problem = self.problem or f"telemetry samples are not kept from here on: {error}"

    def _check_backlog(self) -> None:
        waiting = sum(each.waiting_bytes for segments in self._tiers for each in segments.unwritten())
        if waiting > GIVE_UP_BYTES:
            self.problem = f"telemetry samples are not kept from here on: the disk of {self._folder} does not answer"

    def _adopt(self) -> None:
        offset_s = self._clock() - self._wall()
        for number, path in numbered(self._folder):
            self._next = number + 1
            header = read_header(path)
            for segments in self._tiers:
                if header is not None and segments.tier.window_s == header.window_s:
                    segments.old.append(_Segment(path, header.wall_s + offset_s))


def _write(pieces: list[tuple[Path, bytes]], expired: list[Path]) -> None:
    """Runs on the disk's thread, where a deletion cannot overtake an append that would bring the file back."""
    for path in expired:
        files.remove(path)
    for path, data in pieces:
        files.append_bytes(path, data)


class Header(msgspec.Struct, frozen=True):
    """The first line of a segment: its tier, and its begin on both clocks."""

    series: int
    window_s: int
    t: float
    wall_s: float


_header_decoder = msgspec.json.Decoder(Header)


def numbered(folder: Path) -> list[tuple[int, Path]]:
    """The segments in the order they were begun; none where the folder cannot be read."""
    try:
        found = [
            (int(path.stem), path) for path in folder.iterdir() if path.suffix == ".jsonl" and path.stem.isdecimal()
        ]
    except OSError:
        return []
    return sorted(found)


def read_header(path: Path) -> Header | None:
    """The first line of a segment, None where it is none."""
    tail = LineTail(path, MAX_LINE_BYTES)
    try:
        return _header_decoder.decode(next(tail.lines(), None) or b"")
    except (msgspec.MsgspecError, AibenchError, RecursionError):
        return None
    finally:
        tail.close()
