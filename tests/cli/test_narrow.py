"""Terminals of any width: no figure is lost, and the line that shows progress never wraps."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Sequence

import pytest
from rich.cells import cell_len

from engine.events import TrialStarted
from tests.program import Program
from tui.cli.progress import Progress

WIDTHS = [1, 10, 20, 40, 500]
WIPE = "\r\x1b[K"


def on_terminal(program: Program, arguments: Sequence[str], columns: int) -> str:
    """What the program writes to a terminal of this width."""
    program.home.mkdir(exist_ok=True)
    master, slave = terminal(columns)
    with subprocess.Popen(
        program.command(*arguments), cwd=program.home, env=program.environment, stdin=slave, stdout=slave, stderr=slave
    ) as process:
        os.close(slave)
        written = read(master)
        process.wait(timeout=30)
    os.close(master)
    return written.replace("\r\n", "\n")


def terminal(columns: int) -> tuple[int, int]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    return master, slave


def read(master: int) -> str:
    """All that is written until nobody has the terminal open, which Linux tells as an I/O error."""
    written = b""
    with contextlib.suppress(OSError):
        while data := os.read(master, 65536):
            written += data
    return written.decode()


def test_line_of_progress_is_never_wider_than_the_terminal(program: Program) -> None:
    for columns in (10, 40):
        written = on_terminal(program, ["run", "--preset", "floor", "--out", "."], columns)
        # what was wiped again was the status; the rest are lines that stay
        statuses = [text for text in written.split(WIPE)[:-1] if "\n" not in text]
        assert statuses
        assert max(map(cell_len, statuses)) <= columns - 1
        assert len(re.findall(r"^.*\[[123]/3\] harness/floor.*ns$", written, re.MULTILINE)) == 3


@pytest.mark.parametrize("columns", [0, 1, 2, 10, 21, 40, 500])
def test_wide_characters_are_counted_by_their_cells(columns: int) -> None:
    master, slave = terminal(columns)
    with os.fdopen(slave, "w") as stream:
        progress = Progress(stream)
        progress._tell(TrialStarted(t=0.0, trial="測定" * 100, python="", deadline_s=1.0, counts={}))
        progress._paint()
    painted = read(master).removeprefix(WIPE)
    os.close(master)
    assert cell_len(painted) <= (columns or 80) - 1
    assert cell_len(painted) >= min((columns or 80) - 2, 400)


def test_figures_are_the_same_on_every_terminal(program: Program) -> None:
    program.run_json("--preset", "floor")
    arguments = ["show", "--folder", str(program.sessions)]
    piped = program.call(*arguments).stdout
    assert "call_overhead" in piped
    for columns in WIDTHS:
        assert on_terminal(program, arguments, columns) == piped


def test_list_and_doctor_are_there_on_a_narrow_terminal(program: Program) -> None:
    """What names a session and how it ended is whole, to be copied; a reason, cut there, is whole in `show`."""
    damaged = program.sessions / "20200101-000000-damaged-abcdef"
    damaged.mkdir(parents=True)
    (damaged / "journal.jsonl").write_bytes(b'{"event":"run_started","schema":99}\n')
    for columns in (1, 10, 20, 40):
        written = on_terminal(program, ["list", "--folder", str(program.sessions)], columns)
        assert written.splitlines()[1].split()[:3] == [damaged.name, "damaged", "0/0"]
    checks = program.call("doctor").stdout
    assert on_terminal(program, ["doctor"], 10).count("\n") == checks.count("\n")


def test_progress_without_a_terminal_is_lines_alone() -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress._tell(TrialStarted(t=0.0, trial="t0001", python="", deadline_s=1.0, counts={}))
    progress._paint()
    progress.say("one\ntwo")
    progress.close()
    assert stream.getvalue() == "one␊two\n"
