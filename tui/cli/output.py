"""What commands print on stdout: tables for people, one JSON document for programs."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from engine.session import Session
from engine.text import clean
from tui.cli.printing import say

PIPE_WIDTH = 1000
CELL_LIMIT = 1000


def print_json(document: Any) -> None:
    """One JSON document and nothing else; all of it is ASCII, and what is dangerous in a string is an escape."""
    text = json.dumps(document, ensure_ascii=True, indent=2, allow_nan=False)
    sys.stdout.write(text + "\n")


def document(session: Session, folder: Path) -> dict[str, Any]:
    """A session as JSON, with the folder that holds it."""
    return {"folder": name_text(folder), **msgspec.to_builtins(session)}


def name_text(path: Path | str) -> str:
    """A path for other programs: the path itself, and U+FFFD for bytes that are not UTF-8, which JSON cannot carry."""
    return os.fsencode(path).decode("utf-8", "replace")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Container[str] = ()) -> None:
    """A table with the columns of `numbers` to the right; as wide as it needs where no terminal sets a width."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for place, name in enumerate(header):
        justify: Literal["left", "right"] = "right" if name in numbers else "left"
        # the first column names what a row is: it has to be there whole, to be copied
        table.add_column(Text(name), justify=justify, no_wrap=place == 0, overflow="fold", min_width=0)
    for row in rows:
        table.add_row(*(Text(clean(cell, CELL_LIMIT)) for cell in row))
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    # rendered first and written by us: Rich would turn a closed pipe into exit code 1
    console = Console(file=io.StringIO(), width=width, force_terminal=False, highlight=False, markup=False)
    with console.capture() as rendered:
        console.print(table)
    for line in rendered.get().split("\n")[:-1]:
        say(line.rstrip())
