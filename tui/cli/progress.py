"""Progress of a run on stderr, from the journal alone: a line for each trial, and time left where a person looks."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from engine import runfolder
from engine.events import AnyEvent, Notice, RunStarted, TrialEnded, TrialStarted, WorkerPhase
from engine.journal import JournalReader
from engine.plan import PlannedTrial
from engine.session import Fold, Measurement
from tui.cli.numbers import figure, readable_unit, span


class Progress:
    """Writes to `stream`; on a terminal the last line shows the current trial, its phase and the time left."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._on_terminal = stream.isatty()
        self._reader: JournalReader | None = None
        self._fold = Fold()
        self._planned: dict[str, PlannedTrial] = {}
        self._order: list[str] = []
        self._done = 0
        self._seconds = 0.0
        self._status = ""

    def open(self, folder: Path) -> None:
        """Follow the run in `folder`; asking again changes nothing."""
        if self._reader is None:
            self._reader = JournalReader(folder / runfolder.JOURNAL)

    def update(self) -> None:
        """Tell what the journal has since the last look."""
        if self._reader is not None:
            for event in self._reader.poll():
                self._fold.add(event)
                self._tell(event)
        self._paint()

    def say(self, text: str) -> None:
        """A line of its own."""
        self._wipe()
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Take the status line away."""
        self._wipe()
        self._status = ""

    def _tell(self, event: AnyEvent) -> None:
        if isinstance(event, RunStarted):
            self._planned = {trial.trial: trial for trial in event.trials}
            self._order = [trial.trial for trial in event.trials]
        elif isinstance(event, TrialStarted):
            self._status = self._label(event.trial)
        elif isinstance(event, WorkerPhase):
            self._status = f"{self._label(event.trial)} · {event.name}"
        elif isinstance(event, TrialEnded):
            self._end(event)
        elif isinstance(event, Notice) and event.level != "info":
            self.say(f"{event.level}: {event.source}: {event.text}")

    def _end(self, event: TrialEnded) -> None:
        self._done += 1
        self._seconds += event.seconds
        self._status = ""
        found = self._fold.measurements(event.trial)
        what = " ".join(_short(each, alone=len(found) == 1) for each in found) or f"{event.outcome}: {event.reason}"
        self.say(f"{self._label(event.trial)} · {what}")

    def _label(self, trial: str) -> str:
        planned = self._planned.get(trial)
        if planned is None:
            return trial
        place = f"[{self._order.index(trial) + 1}/{len(self._order)}]"
        return f"{place} {planned.scenario} {planned.variant} · {planned.environment} · {short_device(planned.device)}"

    def _paint(self) -> None:
        if not self._on_terminal or not self._status:
            return
        left = len(self._order) - self._done
        rest = f" · about {span(left * self._seconds / self._done)} left" if self._done and left else ""
        self._wipe()
        self._stream.write((self._status + rest)[:79])
        self._stream.flush()

    def _wipe(self) -> None:
        if self._on_terminal:
            self._stream.write("\r\x1b[K")


def short_device(device: str) -> str:
    """A device's name in a narrow column."""
    return device if len(device) <= 12 else device[:12] + "…"


def _short(measurement: Measurement, *, alone: bool) -> str:
    factor, unit = readable_unit(measurement.median, measurement.unit)
    value = f"{figure(measurement.median * factor)} {unit}"
    return value if alone else f"{measurement.metric.split('_')[0]} {value}"
