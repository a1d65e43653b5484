"""Run folders in which every string that a person may see is hostile: what a stranger's session could hold."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from engine import runfolder
from engine.events import (
    Control,
    DeviceSeen,
    Event,
    Fingerprint,
    HandleOpened,
    Notice,
    RunEnded,
    RunStarted,
    TelemetrySources,
    TelemetrySummary,
    TrialTelemetry,
    WorkerHello,
    WorkerPhase,
    WorkerResult,
)
from engine.session import fold
from engine.session_file import dump_session
from engine.values import Missing, Scalar
from tests.engine.journal_cases import METRIC, anchor, ended, iterations, journal_bytes, planned, started

NASTY = (
    *("\x1b]0;owned\x07", "\x1b[2J\x1b[H", "\x1b]52;c;cm0gLXJm\x1b\\", "\x1bP1;1|q\x1b\\", "\x1b[?1049h", "\x1bc"),
    *("\x9b31m", "\x9d0;owned\x9c", "\x90q\x9c", "\x85", "\x7f", "\x08\x08", "\r", "\n", "\t", "\x0b\x0c", "\x05\x0e"),
    *("\u202e", "\u2066", "\u2069", "\u200e", "\u061c", "\u2028", "\u2029", "\u200b", "\u200d", "\u2060", "\ufeff"),
    *("\xad", "\u034f", "\u115f", "\u3164", "\ufe0f", "\U000e0041", "\U000e0101", "\u180e", "\u0600", "\U000110bd"),
    *("\ue000", "\U0010fffd", "\ufffe", "\U0001ffff", "\U0001d173", "\U0001bca0", "\ufff9", "a" + 300 * "\u0301"),
    *("日本語", "👩\u200d🚀", "한국어", "[bold red]", "[link=http://x]y[/link]", "%s%n", "{0}", "`id`", "$(id)", "'"),
    *('"', "\\", "../..", "-rf", ":smile:", "x" * 70, " "),
)
EVERYTHING = "".join(NASTY)

RANDOM = random.Random(20_26)
STRINGS = ["".join(RANDOM.choices(NASTY, k=RANDOM.randint(1, 6))) for _ in range(200)]
"""What the run folders are filled with, the same in each run of the tests."""

FILE_NAME = os.fsdecode(
    "".join(text for text in NASTY if "/" not in text and len(text) < 70).encode()[:180] + b"\xff\xfe"
)
"""A name that a file system takes and a terminal should not."""


def file_names() -> Iterator[str]:
    """Names for folders, each with one of the strings and a number, the first ones not even UTF-8."""
    for number, text in enumerate(["\udcff\udcfe", "\udc9b31m", *STRINGS]):
        short = text.replace("/", "").encode("utf-8", "surrogateescape")[:200]
        yield f"{os.fsdecode(short)}-{number:03}"


def write_hostile_run(folder: Path, trials: int, *, ends: bool = True) -> None:
    """A run folder with a journal, a session file and trial files that say hostile things everywhere."""
    (folder / runfolder.SCRATCH / "t0001").mkdir(parents=True)
    events = list(hostile_events(trials, ends=ends))
    (folder / runfolder.JOURNAL).write_text(_spoiled(journal_bytes(*events).decode()))
    (folder / runfolder.SESSION).write_text(_spoiled(dump_session(fold(events))))  # type: ignore[arg-type]


def hostile_events(trials: int, *, ends: bool = True) -> Iterator[Event]:
    """A run's events with a placeholder in each field that is a text; an even trial fails, an odd one completes."""
    name = (f"<{number}>" for number in itertools.count()).__next__
    yield RunStarted(
        t=100.0,
        run=name(),
        version=name(),
        anchor=anchor(boot_id=name()),
        plan={"name": name(), name(): name()},
        trials=tuple(
            replace(
                planned(number),
                scenario=name(),
                variant=name(),
                environment=name(),
                device=name(),
                framework=name(),
                parameters={name(): name()},
            )
            for number in range(1, trials + 1)
        ),
    )
    for index in range(2):
        facts: dict[str, Scalar | Missing] = {name(): name(), name(): Missing(name(), name())}
        yield DeviceSeen(t=100.0, device=name(), index=index, kind=name(), name=name(), facts=facts)
    yield Fingerprint(t=100.0, facts={name(): name(), name(): Missing(name(), name())})
    yield TelemetrySources(t=100.0, device=name(), provider=name(), sources={name(): name()}, missing={name(): name()})
    yield Notice(t=100.0, level="warning", source=name(), text=name())
    yield Control(t=100.0, command=name(), by=name(), accepted=False, reason=name())
    for number in range(1, trials + 1):
        yield from _trial(f"t{number:04}", number % 2 == 1, name)
    if ends:
        yield RunEnded(t=200.0, outcome="failed", reason=name(), exit_code=1)


def _trial(trial: str, completes: bool, name: Callable[[], str]) -> Iterator[Event]:
    yield replace(started(trial), python=name(), counts={name(): 1})
    yield HandleOpened(t=101.0, trial=trial, runtime=name(), name=name())
    yield WorkerHello(t=101.5, trial=trial, rank=0, pid=7, python=name(), clock_offset_s=0.0, clock_uncertainty_s=1e-4)
    yield WorkerPhase(t=102.0, trial=trial, rank=0, name=name())
    metric = replace(METRIC, metric=name(), unit=name(), work_unit=name(), timer=name())
    yield replace(iterations(trial), metric=metric.metric)
    yield WorkerResult(t=104.0, trial=trial, rank=0, metrics=(metric,), facts={name(): name()})
    summary = TelemetrySummary(n=1, mean=1.0, min=1.0, max=1.0, delta=0.0, source=name())
    summaries: dict[str, TelemetrySummary | Missing] = {name(): summary, name(): Missing(name(), name())}
    yield TrialTelemetry(t=105.0, trial=trial, device=name(), begin_s=102.0, end_s=103.0, summaries=summaries)
    yield ended(trial, "completed" if completes else "failed", name())


def _spoiled(text: str) -> str:
    """The hostile strings in place of the placeholders, escaped so that JSON and TOML take them."""
    return re.sub(r"<(\d+)>", lambda match: _escaped(STRINGS[int(match[1]) % len(STRINGS)]), text)


def _escaped(text: str) -> str:
    return re.sub(r'[\x00-\x1f\x7f"\\]', lambda match: f"\\u{ord(match.group()):04x}", text)


def plan_texts() -> Iterator[str]:
    """Plans that are refused, each for one hostile place."""
    quoted = json.dumps("\x1b]0;owned\x07\u202e" + 300 * "\u0301", ensure_ascii=False)
    yield f"name = {quoted}\n"
    yield f"{quoted} = 1\n"
    yield f"[[scenario]]\nid = {quoted}\n"
    yield f'[[scenario]]\nid = "floor"\n[scenario.parameters]\n{quoted} = {quoted}\n'
    yield f"[[environment]]\nkind = {quoted}\n"
    yield 'name = "\x1b]0;owned\x07\x9b31m'
    yield f"a.{EVERYTHING}"
