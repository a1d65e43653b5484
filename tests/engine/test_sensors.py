"""A telemetry process that fails costs readings, never the run."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from engine import sensors
from engine.events import Event, Notice, TelemetrySources
from engine.sensors import Sensors
from engine.series import SeriesWriter


async def watch(folder: Path, seconds: float) -> list[Event]:
    """What the journal would get of so many seconds of telemetry."""
    recorded: list[Event] = []
    watched = Sensors(("cpu",), SeriesWriter(folder), recorded.append)
    watched.start()
    watched.trial_begins()
    watched.window_begins(0.0)
    await asyncio.sleep(seconds)
    recorded += watched.trial_ends("t0001", "cpu")
    await watched.stop()
    return recorded


def notices(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


def test_the_host_is_read(tmp_path: Path) -> None:
    events = asyncio.run(watch(tmp_path, 2.0))
    assert notices(events) == []
    assert {event.device for event in events if isinstance(event, TelemetrySources)} == {"host"}
    assert (tmp_path / "001.jsonl").stat().st_size > 0


def test_a_process_that_cannot_be_started_is_a_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the system has no process or descriptor left (EAGAIN, EMFILE)."""
    monkeypatch.setattr(sensors, "python_command", lambda *_: ["/not/there"])
    monkeypatch.setattr(sensors, "RESTART_PAUSE_S", 0.01)
    told = notices(asyncio.run(watch(tmp_path, 1.0)))
    assert len(told) == sensors.RESTARTS + 1
    assert all("could not be started: No such file" in text for text in told)
    assert told[-1].endswith("telemetry is missing from here on")


def test_a_process_that_dies_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sensors, "python_command", lambda *_: [sys.executable, "-c", "print('garbage'); raise SystemExit(7)"]
    )
    monkeypatch.setattr(sensors, "RESTART_PAUSE_S", 0.01)
    told = notices(asyncio.run(watch(tmp_path, 0.5)))
    assert "exit code 7" in told[0]
    assert "restarted" in told[0]


def test_a_process_that_ignores_its_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    monkeypatch.setattr(sensors, "python_command", lambda *_: [sys.executable, "-c", code])
    assert notices(asyncio.run(watch(tmp_path, 0.3))) == []
