"""How the program starts processes of its own: the same interpreter, isolated, with this very import path."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TypeVar

Pipe = TypeVar("Pipe")

ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds `engine`, `scenarios` and `tui`."""

_BOOT = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def python_command(module: str, *arguments: str) -> list[str]:
    """The argv that runs `module` of this program in a process of its own.

    -I keeps PYTHONPATH, the user's site and the current folder out; the path of this process is handed on instead,
    so that the child finds the same packages however the program was installed.
    """
    path = [str(ROOT), *(entry for entry in sys.path if entry and entry != str(ROOT))]
    return [sys.executable, "-I", "-c", _BOOT, json.dumps(path), module, *arguments]


def pipe(end: Pipe | None) -> Pipe:
    """An end of a pipe that the process was started with, which asyncio types as optional."""
    if end is None:
        raise RuntimeError("the process was started without this pipe")
    return end
