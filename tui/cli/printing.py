"""The one way to a person's terminal: every line of the command line, whatever it quotes, is clean and is one line."""

from __future__ import annotations

import io
import sys
from typing import TextIO

from engine.text import clean

LINE_LIMIT = 16_384
"""Characters of a line: room for two of the longest paths."""


def say(text: str, stream: TextIO | None = None) -> None:
    """Print one clean line on stdout, or on `stream` at once; a newline in `text` becomes visible like any other."""
    print(clean(text, LINE_LIMIT), file=stream, flush=stream is not None)


def protect_streams() -> None:
    """Have what the terminal's encoding lacks written as an escape such as \\xb7, not raised in the middle of a run.

    Also where Python chose "surrogateescape" (LANG=C), which would hand the raw bytes of a file name on.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
