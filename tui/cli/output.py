"""What commands print on stdout: tables for people, one JSON document for programs."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.session import Measurement, Session, Trial
from engine.text import clean
from tui.cli.numbers import figure, percent, readable_unit, span
from tui.cli.printing import say
from tui.cli.progress import short_device

FIGURES = frozenset({"median", "best", "p95", "cv", "n"})
PIPE_WIDTH = 1000
CELL_LIMIT = 1000


def print_json(document: Any) -> None:
    """One JSON document and nothing else; all of it is ASCII, and what is dangerous in a string is an escape."""
    text = json.dumps(document, ensure_ascii=True, indent=2, allow_nan=False)
    sys.stdout.write(text + "\n")


def document(session: Session, folder: Path) -> dict[str, Any]:
    """A session as JSON, with the folder that holds it."""
    return {"folder": name_text(folder), **msgspec.to_builtins(session)}


def name_text(path: Path) -> str:
    """A path for other programs: the path itself, and U+FFFD for bytes that are not UTF-8, which JSON cannot carry."""
    return os.fsencode(path).decode("utf-8", "replace")


def print_session(session: Session) -> None:
    """The measurements as a table, then each trial that has none, with its reason."""
    devices = ", ".join(f"{device.name} ({short_device(device.device)})" for device in session.devices)
    say(f"{session.name} · {session.started} · {devices}")
    say(f"outcome: {session.outcome}" + (f" · {session.reason}" if session.reason else ""))
    _print_measurements(session)
    _print_rest(trial for trial in session.trials if trial.outcome != "completed")
    for notice in session.notices:
        say(f"note: {notice}")


def _print_measurements(session: Session) -> None:
    several_devices = len(session.devices) > 1
    header = ["scenario", "variant", "metric", "env", *(["device"] if several_devices else [])]
    rows = [_row(each, several_devices=several_devices) for each in session.measurements]
    if rows:
        print_table([*header, "median", "unit", "best", "p95", "cv", "n", "steady"], rows, numbers=FIGURES)


def _row(each: Measurement, *, several_devices: bool) -> list[str]:
    factor, unit = readable_unit(each.median, each.unit)
    return [
        each.scenario,
        each.variant,
        each.metric,
        f"{each.environment} #{each.repeat}" if each.repeat > 1 else each.environment,
        *([short_device(each.device)] if several_devices else []),
        figure(each.median * factor),
        unit,
        figure(each.best * factor),
        figure(each.p95 * factor),
        percent(each.cv),
        str(each.n),
        "yes" if each.steady == "yes" else "no",
    ]


def _print_rest(trials: Iterable[Trial]) -> None:
    for trial in trials:
        took = "" if not isinstance(trial.seconds, float) else f" ({span(trial.seconds)})"
        say(f"{trial.outcome}: {trial.scenario} {trial.variant} · {trial.environment}: {trial.reason}{took}")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Container[str] = ()) -> None:
    """A table with the columns of `numbers` to the right; as wide as it needs where no terminal sets a width."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        table.add_column(Text(name), justify="right" if name in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(clean(cell, CELL_LIMIT)) for cell in row))
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    # rendered first and written by us: Rich would turn a closed pipe into exit code 1
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as rendered:
        console.print(table)
    for line in rendered.get().split("\n")[:-1]:
        say(line.rstrip())
