"""Progress of a run on stderr, from the journal alone: a line for each trial, and time left where a person looks."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TextIO

from engine import runfolder
from engine.events import AnyEvent, Notice, RunResumed, RunStarted, TrialEnded, TrialStarted, WorkerPhase
from engine.journal import JournalReader
from engine.plan import PlannedTrial
from engine.session import Fold, Measurement
from engine.text import clean
from tui.cli.numbers import figure, readable_unit, span


class Progress:
    """Writes to `stream`; on a terminal the last line shows the current trial, its phase and the time left."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._on_terminal = stream.isatty()
        self._reader: JournalReader | None = None
        self._fold = Fold()
        self._planned: dict[str, PlannedTrial] = {}
        self._places: dict[str, int] = {}
        self._took: dict[str, float] = {}
        self._status = ""

    def open(self, folder: Path) -> None:
        """Follow the run in `folder`; asking again changes nothing."""
        if self._reader is None:
            self._reader = JournalReader(folder / runfolder.JOURNAL)

    def update(self) -> None:
        """Tell what the journal has since the last look; of a run that is taken up again, only what is new."""
        while self._reader is not None and (events := self._reader.poll()):
            resumed = max((place for place, event in enumerate(events) if isinstance(event, RunResumed)), default=-1)
            for place, event in enumerate(events):
                self._fold.add(event)
                self._learn(event)
                if place > resumed:
                    self._tell(event)
        self._paint()

    def say(self, text: str) -> None:
        """A line of its own, clean whatever it quotes."""
        self._wipe()
        print(clean(text), file=self._stream, flush=True)

    def close(self) -> None:
        """Take the status line away."""
        self._wipe()
        self._status = ""

    def _learn(self, event: AnyEvent) -> None:
        if isinstance(event, RunStarted):
            self._planned = {trial.trial: trial for trial in event.trials}
            self._places = {trial.trial: place for place, trial in enumerate(event.trials, 1)}
        elif isinstance(event, TrialEnded):
            self._took[event.trial] = event.seconds
            self._status = ""
        elif isinstance(event, TrialStarted):
            self._took.pop(event.trial, None)

    def _tell(self, event: AnyEvent) -> None:
        if isinstance(event, TrialStarted):
            self._status = self._label(event.trial)
        elif isinstance(event, WorkerPhase):
            self._status = f"{self._label(event.trial)} · {event.name}"
        elif isinstance(event, TrialEnded):
            found = self._fold.measurements(event.trial)
            what = " ".join(_short(each, alone=len(found) == 1) for each in found)
            self.say(f"{self._label(event.trial)} · {what or f'{event.outcome}: {event.reason}'}")
        elif isinstance(event, Notice) and (event.level != "info" or event.source == "workers"):
            self.say(f"{event.source}: {event.text}" if event.level == "info" else f"{event.level}: {event.text}")

    def _label(self, trial: str) -> str:
        planned = self._planned.get(trial)
        if planned is None:
            return trial
        place = f"[{self._places[trial]}/{len(self._places)}]"
        return f"{place} {planned.scenario} {planned.variant} · {planned.environment} · {short_device(planned.device)}"

    def _paint(self) -> None:
        if not self._on_terminal or not self._status:
            return
        left = len(self._places) - len(self._took)
        rest = f"{span(left * sum(self._took.values()) / len(self._took))} left · " if self._took and left else ""
        self._wipe()
        self._stream.write(_fitting(rest + self._status, self._columns()))
        self._stream.flush()

    def _columns(self) -> int:
        """The terminal's own width, whatever COLUMNS says: a longer line would wrap and could not be wiped."""
        with contextlib.suppress(OSError):
            if columns := os.get_terminal_size(self._stream.fileno()).columns:
                return columns
        return shutil.get_terminal_size().columns

    def _wipe(self) -> None:
        if self._on_terminal:
            self._stream.write("\r\x1b[K")


def _fitting(text: str, columns: int) -> str:
    """`text`, cut to what leaves the last column free. A terminal counts cells, of which a wide character takes two."""
    from rich.cells import cell_len, set_cell_size

    most = max(columns - 1, 0)
    return text if cell_len(text) <= most else set_cell_size(text, most)


def short_device(device: str) -> str:
    """A device's name in a narrow column."""
    return device if len(device) <= 12 else device[:12] + "…"


def _short(measurement: Measurement, *, alone: bool) -> str:
    factor, unit = readable_unit(measurement.median, measurement.unit)
    value = f"{figure(measurement.median * factor)} {unit}"
    return value if alone else f"{measurement.metric.split('_')[0]} {value}"
