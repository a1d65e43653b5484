"""Deadlines and the watchdog, on a clock of their own."""

from __future__ import annotations

import pytest

from engine.telemetry.provider import Reader, ReaderSet, Unreadable, following
from engine.telemetry.sampler import REPEAT_STALLED_S, Sampler, Watchdog
from engine.telemetry.samples import Line, Stalled
from engine.values import Missing


class _Provider:
    name = "made"
    device = "D"
    doing = "a call"

    def fast(self) -> dict[str, float]:
        return {}

    slow = fast

    def sources(self) -> dict[str, str]:
        return {}

    missing = sources


@pytest.mark.parametrize(
    ("deadline", "now", "expected"),
    [(10.0, 10.0, 10.1), (10.0, 10.05, 10.1), (10.0, 9.0, 10.1), (10.0, 10.35, 10.4), (10.0, 11.0, 11.1)],
)
def test_late_round_skips_the_deadlines_it_ran_over_and_shifts_none(
    deadline: float, now: float, expected: float
) -> None:
    assert following(deadline, now, 0.1) == pytest.approx(expected)


def test_stalled_provider_is_said_once_then_seldom_then_that_it_is_back() -> None:
    lines: list[Line] = []
    sampler = Sampler(_Provider(), 0.1, lines.append)
    watchdog = Watchdog([sampler], 2.0, lines.append)
    sampler.busy_since = 100.0
    for now in (101.0, 102.5, 103.0, 104.0, 102.5 + REPEAT_STALLED_S, 113.0):
        watchdog.check(now)
    sampler.busy_since = None
    watchdog.check(114.0)
    watchdog.check(115.0)
    assert lines == [
        Stalled(102.5, "D", "made", 2.5, "a call"),
        Stalled(112.5, "D", "made", 12.5, "a call"),
        Stalled(114.0, "D", "made", 0.0),
    ]


def _reader(source: str, *answers: float | Missing | Exception) -> Reader:
    remaining = list(answers)

    def read() -> list[float | Missing]:
        answer = remaining.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [answer]

    return Reader(("x",), source, read)


def test_first_reader_that_answers_is_the_source_and_the_next_stands_by() -> None:
    readers = ReaderSet([_reader("first", Missing("busy"), 1.0), _reader("second", 2.0)])
    assert readers.read() == {"x": 2.0}
    assert (readers.sources, readers.missing) == ({"x": "second"}, {})
    assert readers.read() == {"x": 1.0}
    assert readers.sources == {"x": "first"}


def test_costly_reader_is_asked_at_its_own_pace_and_stays_described() -> None:
    now = 0.0
    costly = Reader(("x",), "costly", lambda: [now], period_s=0.25)
    readers = ReaderSet([costly, Reader(("y",), "cheap", lambda: [1.0])], clock=lambda: now)
    asked = []
    for tick in range(11):
        now = tick / 10
        asked += [now] if "x" in readers.read() else []
        assert readers.sources == {"x": "costly", "y": "cheap"}
    assert asked == [0.0, 0.3, 0.5, 0.8, 1.0]


def test_unsupported_reader_rests_a_minute_and_is_asked_again() -> None:
    now = 0.0
    readers = ReaderSet([_reader("only", Unreadable("no", lasting=True), 5.0)], clock=lambda: now)
    assert [readers.read(), readers.read()] == [{}, {}]
    assert readers.missing == {"x": "no"}
    now = 60.5
    assert readers.read() == {"x": 5.0}


def test_reader_that_raises_anything_costs_its_own_quantities_only() -> None:
    other = Reader(("y",), "other", lambda: [3.0])
    readers = ReaderSet([_reader("broken", KeyError("libamd_smi.so\x1b[2J")), other])
    assert readers.read() == {"y": 3.0}
    assert readers.missing["x"].startswith("the reader failed: KeyError")
    assert "\x1b" not in readers.missing["x"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_reading_that_is_no_finite_number_is_missing(value: float) -> None:
    readers = ReaderSet([_reader("odd", value)])
    assert readers.read() == {}
    assert "no number" in readers.missing["x"]
