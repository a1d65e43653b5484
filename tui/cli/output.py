"""What commands print on stdout for programs: one JSON document."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from engine.session import Session


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
