"""The one way to a person's terminal: every line of the command line, whatever it quotes, is clean and is one line."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

from engine.text import clean

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LINE_LIMIT = 16_384
"""Characters of a line: room for two of the longest paths."""

STDOUT = "standard output"


def say(text: str, stream: TextIO | None = None) -> None:
    """Print one clean line on stdout, or on `stream` at once; a newline in `text` becomes visible like any other."""
    print(clean(text, LINE_LIMIT), file=stream, flush=stream is not None)


class _Output(io.FileIO):
    """stdout, whose failures name it, so that they are told from those of any other file."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, STDOUT) from None


class _Errors(io.FileIO):
    """stderr, which never fails: where a full disk or a gone reader cannot be told anything, the command goes on."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def protect_streams() -> None:
    """Have the two streams fail as this program can bear, and what their encoding lacks become an escape such as \\xb7.

    That also where Python chose "surrogateescape" (LANG=C), which would hand the raw bytes of a file name on.
    """
    sys.stdout = _over(sys.stdout, _Output)
    sys.stderr = _over(sys.stderr, _Errors)


def _over(stream: TextIO, raw: type[io.FileIO]) -> TextIO:
    if not isinstance(stream, io.TextIOWrapper):  # a test's
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
    )


def give_stdout_up() -> None:
    """What is still in stdout's buffer cannot be written, and Python must not try again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
