"""A week of running in fast-forward: `python -m tests.benchmarks.soak [--days 7]`. Memory and disk must stay bounded.

What is fed is what a runner feeds, on a clock moved by hand, with one device of 25 quantities:
- every 5 minutes a trial of 60 s (20 % of the time) with samples at 10 Hz, kept raw and in windows;
- between trials samples at 1 Hz (a runner passes on 10 Hz; windows make the same of both);
- for each trial the usual events, 2000 durations in lines of 400, telemetry of two devices, and a real fdatasync;
- the journal is read back as a live viewer does, by polling, into one Fold that lives for the whole week;
- at the end the session is written, in the size that every reader takes.

Prints, for each day, the resident memory above that of the first hour and what the series and the journal take.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from engine import runfolder
from engine.events import AnyEvent, Iterations, RunEnded, TelemetrySummary, TrialEnded, TrialTelemetry
from engine.journal import JournalReader, JournalWriter
from engine.series import SeriesWriter
from engine.session import Fold, Session
from engine.session_file import write_session
from engine.telemetry.samples import Sample
from tests.engine.journal_cases import planned, result, run_started, started

PERIOD_S = 300
TRIAL_S = 60
QUANTITIES = tuple(f"quantity_{number}_w" for number in range(25))
DURATIONS = 2000

MOST_RSS_MB = 48.0
"""Over the whole week; the figures of 2016 trials are most of it."""

MOST_SERIES_MB = 26.0
MOST_SERIES_MB_A_DAY = 0.12
"""The formula of engine.series for one device of 25 quantities at 10 Hz."""

MOST_JOURNAL_KB_A_TRIAL = 40.0
"""2000 durations of 20 bytes, two telemetry summaries of 25 quantities, and the events around them."""


class Week:
    """The run, its clock and everything that writes or reads it."""

    def __init__(self, folder: Path, trials: int) -> None:
        self.now = 1000.0
        self.folder = folder
        (folder / runfolder.SERIES).mkdir()
        self.series = SeriesWriter(folder / runfolder.SERIES, lambda: self.now, lambda: 1.7e9 + self.now)
        self.journal = JournalWriter(folder)
        self.reader = JournalReader(folder / runfolder.JOURNAL)
        self.fold = Fold()
        self.journal.append(run_started(trials))

    def period(self, number: int) -> None:
        """One trial, and the quiet after it."""
        begin = self.now
        trial = planned(number).trial
        self.journal.append(started(trial, self.now))
        self._samples(begin, TRIAL_S, 10, in_trial=True)
        for event in _said(trial, begin, self.now):
            self.journal.append(event)
        self.journal.sync()
        self._samples(begin + TRIAL_S, PERIOD_S - TRIAL_S, 1, in_trial=False)
        self._look()

    def end(self) -> Session:
        """Close everything; the session that the fold came to."""
        self.series.close()
        self.journal.append(RunEnded(t=self.now, outcome="completed", reason="", exit_code=0))
        self.journal.close()
        self._look()
        self.reader.close()
        return self.fold.session()

    def _samples(self, begin: float, seconds: int, hz: int, *, in_trial: bool) -> None:
        for number in range(seconds * hz):
            self.now = begin + number / hz
            values = {name: 500.0 + (number * 7919 + place) % 20_011 / 100 for place, name in enumerate(QUANTITIES)}
            problem = self.series.add(Sample(t=self.now, device="GPU-1", provider="nvml", values=values), in_trial)
            assert not problem, problem
        self.now = begin + seconds

    def _look(self) -> None:
        while events := self.reader.poll():
            for event in events:
                self.fold.add(event)


def _said(trial: str, begin: float, end: float) -> Iterator[AnyEvent]:
    for first in range(0, DURATIONS, 400):
        durations = tuple(0.002 + (first + number) % 37 * 1e-7 for number in range(400))
        yield Iterations(t=end, trial=trial, rank=0, metric="rate", group=1, durations_s=durations)
    yield result(trial)
    for device in ("GPU-1", "host"):
        summary = TelemetrySummary(
            n=600, mean=512.345678, min=500.0, max=700.11, delta=0.25, source="nvml", span_s=59.9
        )
        yield TrialTelemetry(
            t=end, trial=trial, device=device, begin_s=begin, end_s=end, summaries=dict.fromkeys(QUANTITIES, summary)
        )
    yield TrialEnded(t=end, trial=trial, outcome="completed", reason="", seconds=float(TRIAL_S))


def rss_mb() -> float:
    """Resident memory of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def size_mb(path: Path) -> float:
    """Megabytes of a file, or of the files in a folder."""
    files = path.iterdir() if path.is_dir() else [path]
    return sum(each.stat().st_size for each in files) / 1e6


def soak(folder: Path, days: float) -> None:
    """Run, print a line for each day, and check the bounds."""
    trials = max(round(days * 86_400 / PERIOD_S), 12)
    a_day = 86_400 // PERIOD_S
    week = Week(folder, trials)
    base = most = 0.0
    for number in range(1, trials + 1):
        week.period(number)
        if number == 12:
            base = rss_mb()
        if number % a_day == 0 or number == trials:
            most = max(most, rss_mb() - base)
            series, journal = size_mb(folder / runfolder.SERIES), size_mb(folder / runfolder.JOURNAL)
            print(
                f"day {number / a_day:4.1f}: memory +{most:5.1f} MB, series {series:5.1f} MB, journal {journal:6.1f} MB"
            )
            assert series <= MOST_SERIES_MB + MOST_SERIES_MB_A_DAY * number / a_day
            assert journal * 1000 <= MOST_JOURNAL_KB_A_TRIAL * number + 1000
            assert most <= MOST_RSS_MB
    session = week.end()
    assert [trial.outcome for trial in session.trials] == ["completed"] * trials
    assert len(session.measurements) == trials
    write_session(folder / runfolder.SESSION, session)
    print(f"session {size_mb(folder / runfolder.SESSION):.1f} MB")


def main() -> None:
    """Parse, run, say how long it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=7.0)
    days = parser.parse_args().days
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="aibench-soak-") as folder:
        soak(Path(folder), days)
    print(f"{days:g} days in {time.monotonic() - begin:.0f} s: memory and disk within their bounds")


if __name__ == "__main__":
    main()
