"""`aibench-tui list`: the sessions of a folder, newest last, a damaged one with its reason."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from engine import exits, sessions
from engine.errors import AibenchError
from engine.text import clean
from tui.cli import output
from tui.cli.printing import say

HEADER = ("session", "outcome", "done", "reason")
GAP = "  "

PIPE_WIDTH = 1000
CELL_LIMIT = 1000


def main(arguments: argparse.Namespace) -> int:
    """List them."""
    parent = arguments.folder or sessions.default_folder()
    rows = [_row(folder) for folder in sessions.folders(parent)]
    if arguments.json:
        output.print_json({"folder": output.name_text(parent), "sessions": rows})
    elif rows:
        _print_rows([_cells(row, parent) for row in rows])
    else:
        say(f"no sessions in {parent}; `aibench-tui run` makes one")
    return exits.DONE


def _row(folder: Path) -> dict[str, Any]:
    name = output.name_text(folder.name)
    try:
        session = sessions.load(folder)
    except (AibenchError, OSError) as error:
        return {"session": name, "outcome": "damaged", "completed": 0, "trials": 0, "reason": clean(str(error))}
    completed = sum(trial.outcome == "completed" for trial in session.trials)
    return {
        "session": name,
        "outcome": session.outcome,
        "completed": completed,
        "trials": len(session.trials),
        "reason": session.reason,
    }


def _cells(row: dict[str, Any], parent: Path) -> tuple[str, str, str, str]:
    """What a person sees: a reason need not name the folder, whose name stands in the same line."""
    name = clean(row["session"], CELL_LIMIT)
    reason = str(row["reason"]).replace(f"{clean(str(parent))}/{name}/", "")
    return name, str(row["outcome"]), f"{row['completed']}/{row['trials']}", clean(reason, CELL_LIMIT)


def _print_rows(rows: list[tuple[str, str, str, str]]) -> None:
    """Names are whole, so that they can be copied; the reasons get what is left of the terminal's width."""
    from rich.cells import cell_len
    from rich.text import Text

    lines = [HEADER, *rows]
    widths = [max(cell_len(line[column]) for line in lines) for column in range(3)]
    total = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH
    rest = total - sum(widths) - 3 * len(GAP)
    for *whole, reason in lines:
        cells = [cell + " " * (width - cell_len(cell)) for cell, width in zip(whole, widths, strict=True)]
        text = Text(reason if rest > 0 else "")
        text.truncate(max(rest, 1), overflow="ellipsis")
        say(GAP.join([*cells, text.plain]).rstrip())
