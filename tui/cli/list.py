"""`aibench-tui list`: the sessions of a folder, newest last, a damaged one with its reason."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from engine import exits, sessions
from engine.errors import AibenchError
from engine.text import clean
from tui.cli import output
from tui.cli.printing import say


def main(arguments: argparse.Namespace) -> int:
    """List them."""
    parent = arguments.folder or sessions.default_folder()
    rows = [_row(folder) for folder in sessions.folders(parent)]
    if arguments.json:
        output.print_json({"folder": output.name_text(parent), "sessions": rows})
    elif rows:
        output.print_table(list(rows[0]), [[str(value) for value in row.values()] for row in rows])
    else:
        say(f"no sessions in {parent}; `aibench-tui run` makes one")
    return exits.DONE


def _row(folder: Path) -> dict[str, Any]:
    name = output.name_text(folder.name)
    try:
        session = sessions.load(folder)
    except AibenchError as error:
        return {"session": name, "outcome": "damaged", "completed": 0, "trials": 0, "reason": clean(str(error))}
    completed = sum(trial.outcome == "completed" for trial in session.trials)
    return {
        "session": name,
        "outcome": session.outcome,
        "completed": completed,
        "trials": len(session.trials),
        "reason": session.reason,
    }
