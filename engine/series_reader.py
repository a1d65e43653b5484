"""Telemetry samples read back for charts (the format: engine.series)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec

from engine.lines import LineTail
from engine.series import MAX_LINE_BYTES, SCHEMA, TIERS, Header, numbered, read_header
from engine.text import clean


class Window(msgspec.Struct, frozen=True):
    """A quantity over a window (n = 1 for a raw sample)."""

    n: int
    mean: float
    min: float
    max: float


class Row(msgspec.Struct, frozen=True):
    """One line of a segment. `t` is the monotonic begin of the window, `wall_s` the same instant by the wall clock."""

    t: float
    wall_s: float
    device: str
    provider: str
    window_s: int
    values: dict[str, Window]


class _Columns(msgspec.Struct, frozen=True):
    columns: int
    device: str
    provider: str
    names: tuple[str, ...]


_Number = int | float

_columns_decoder = msgspec.json.Decoder(_Columns)
_row_decoder = msgspec.json.Decoder(list[_Number | list[_Number]])


class SeriesReader:
    """Streams rows in the order they were written; a damaged line costs itself and is counted in `corrupt`."""

    def __init__(self, folder: Path) -> None:
        self.corrupt = 0
        self._folder = folder

    def rows(self, window_s: int) -> Iterator[Row]:
        """All rows of the tier of this width (0 is raw), in constant memory."""
        for path, header in self._segments(window_s):
            yield from self._rows(path, header)

    def history(self) -> Iterator[Row]:
        """The whole run, each time at the finest windows left of it; where two widths meet they may overlap by one."""
        ends = [math.inf]
        for tier in TIERS[1:]:
            ends.append(next((header.wall_s for _, header in self._segments(tier.window_s)), ends[-1]))
        for tier, end in zip(reversed(TIERS[1:]), reversed(ends[:-1]), strict=True):
            for row in self.rows(tier.window_s):
                if row.wall_s >= end:
                    break
                yield row

    def _segments(self, window_s: int) -> Iterator[tuple[Path, Header]]:
        for _, path in numbered(self._folder):
            header = read_header(path)
            if header is not None and header.window_s == window_s and header.series <= SCHEMA:
                yield path, header

    def _rows(self, path: Path, header: Header) -> Iterator[Row]:
        columns: dict[int, _Columns] = {}
        tail = LineTail(path, MAX_LINE_BYTES)
        try:
            lines = tail.lines()
            next(lines, None)
            for line in lines:
                try:
                    row = _take_line(line or b"", columns, header)
                except (ValueError, TypeError, IndexError, KeyError, RecursionError, msgspec.MsgspecError):
                    self.corrupt += 1
                    continue
                if row is not None:
                    yield row
        finally:
            tail.close()


def _take_line(line: bytes, columns: dict[int, _Columns], header: Header) -> Row | None:
    """A row, or None for a line that names columns, which is remembered. Raises where it is neither."""
    if line.startswith(b"{"):
        named = _columns_decoder.decode(line)
        columns[named.columns] = named
        return None
    number, t, *rest = _row_decoder.decode(line)
    known = columns[number]  # type: ignore[index]
    most = _count(rest.pop(0)) if header.window_s else 1
    if not isinstance(t, _Number):
        raise ValueError
    values = {clean(name): _window(cell, most) for name, cell in zip(known.names, rest, strict=True)}
    return Row(
        t=t,
        wall_s=header.wall_s + t - header.t,
        device=clean(known.device),
        provider=clean(known.provider),
        window_s=header.window_s,
        values=values,
    )


def _window(cell: _Number | list[_Number], most: int) -> Window:
    """The reverse of `_cell`."""
    if not isinstance(cell, list):
        return Window(most, cell, cell, cell)
    n = _count(cell.pop(0)) if len(cell) in (2, 4) else most
    if len(cell) == 1:
        return Window(n, cell[0], cell[0], cell[0])
    mean, low, high = cell
    return Window(n, mean, low, high)


def _count(number: _Number | list[_Number]) -> int:
    if not isinstance(number, int) or number < 1:
        raise ValueError
    return number
