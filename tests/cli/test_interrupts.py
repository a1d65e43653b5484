"""Ctrl-C at every moment and as often as one likes: an exit code of its own, a line, never a traceback."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import sessions
from tests.program import REPOSITORY, Program, processes, wait_for, write_plan

LINE = "aibench-tui: interrupted\n"
CODES = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]

SHORT_LIMIT = (
    "import sys, aibench_tui, tui.cli.run; tui.cli.run.STOP_LIMIT_S = 1.0; "
    "sys.argv[:] = ['aibench-tui', *sys.argv[1:]]; sys.exit(aibench_tui.main())"
)
"""The program, which waits for the end of a run for a second only."""

IN_A_DESTRUCTOR = """
import os, signal
from tui.cli import interrupts
class Thing:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
interrupts.quiet_where_python_cannot_raise("aibench-tui: interrupted")
with interrupts.unwinding("aibench-tui: interrupted"):
    thing = Thing()
    del thing
"""


def listens(process: subprocess.Popen[bytes]) -> bool:
    """Whether the program answers signals by now, which Python itself does not for SIGTERM."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt")), 0)
    return bool(caught & 1 << (signal.SIGTERM - 1))


def storm(process: subprocess.Popen[bytes], number: signal.Signals, pause_s: float) -> tuple[str, str]:
    """Send the signal over and over until the process has ended; what it had printed."""
    over = threading.Event()

    def send() -> None:
        while not over.wait(pause_s):
            process.send_signal(number)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        out, err = process.communicate(timeout=30)
    finally:
        over.set()
        thread.join()
    return out.decode(), err.decode()


def read_until(process: subprocess.Popen[bytes], text: bytes) -> None:
    """Read stderr up to the line that has `text`."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"the program ended before it said {text!r}")


def runners(program: Program) -> list[int]:
    mark = f"AIBENCH_RUNTIME_DIR={program.runtime}"
    return [each.pid for each in processes() if each.has(mark) and "engine.runner" in each.command]


@pytest.mark.parametrize(("number", "code"), CODES)
def test_signals_that_come_all_the_time_end_a_command_with_one_line(
    program: Program, number: signal.Signals, code: int
) -> None:
    process = program.start("plan", "check", "-", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    wait_for(lambda: listens(process), what="the program's own handlers")
    assert storm(process, number, 0.002) == ("", LINE)
    assert process.returncode == code


@pytest.mark.parametrize("pause_s", [0.005, 0.1])
@pytest.mark.parametrize(("moment", "least"), [(b"looking for", 0), (b"[1/3]", 1), (b"[3/3]", 3)])
def test_signals_that_come_all_the_time_end_a_run(program: Program, moment: bytes, least: int, pause_s: float) -> None:
    """From each moment on; what had been measured by then is kept."""
    process = program.start("run", "--preset", "floor", "--out", str(program.sessions), bufsize=0)
    read_until(process, moment)
    out, err = storm(process, signal.SIGINT, pause_s)
    if moment == b"[3/3]" and process.returncode == 0:  # it had ended by the first of them
        assert out.splitlines()[-1].startswith("session: ")
        return
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "internal error" not in err
    assert err.splitlines()[-1].startswith(("aibench-tui: ", "stopped before it started"))
    wait_for(lambda: not runners(program), what="the end of the runner")
    found = [sessions.load(folder) for folder in sessions.folders(program.sessions)]
    assert {session.outcome for session in found} <= {"aborted", "completed"}
    assert sum(len(session.measurements) for session in found) >= least


def test_signal_in_a_destructor_where_python_cannot_raise_ends_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_DESTRUCTOR], cwd=REPOSITORY, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (143, LINE)


def test_hangup_does_not_end_a_run_that_nohup_started(program: Program) -> None:
    program.home.mkdir(exist_ok=True)
    ignoring = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    command = [*ignoring, *program.command("run", "--preset", "floor", "--out", str(program.sessions))]
    with subprocess.Popen(
        command, env=program.environment, cwd=program.home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as process:
        read_until(process, b"[1/3]")
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=30)
    assert process.returncode == 0


def test_interrupted_export_leaves_no_part_of_an_archive(program: Program) -> None:
    program.run_json("--preset", "floor")
    (folder,) = program.folders()
    with open(folder / "logs" / "t0001.log", "wb") as log:
        log.truncate(400 << 20)
    process = program.start("export", str(folder), "--output", "archive.tar.gz")
    wait_for(lambda: list(program.home.glob(".archive.tar.gz.*")), what="the archive's first bytes", pause_s=0.005)
    _, err = storm(process, signal.SIGINT, 0.005)
    assert (process.returncode, err) == (130, LINE)
    assert list(program.home.glob("*archive*")) == []


@contextlib.contextmanager
def stopped_runner(hostile: Program) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A run whose runner stands still while its trial hangs, and that was asked to stop."""
    plan = write_plan(hostile, "hang", floor="first")
    command = [sys.executable, "-c", SHORT_LIMIT, "run", "--plan", str(plan), "--out", str(hostile.sessions)]
    environment = {**hostile.environment, "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command, env=environment, cwd=hostile.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    read_until(process, b"[1/2]")
    (runner,) = runners(hostile)
    os.kill(runner, signal.SIGSTOP)
    try:
        process.send_signal(signal.SIGINT)
        read_until(process, b"stopping")
        yield process, runner
    finally:
        os.kill(runner, signal.SIGCONT)


def ends_as_asked(hostile: Program) -> bool:
    """Whether a runner that goes on ends its run."""
    wait_for(lambda: not runners(hostile), what="the end of the runner")
    session = sessions.load(hostile.folders()[0])
    return session.outcome == "aborted" and "SIGINT" in session.reason and len(session.measurements) == 1


def test_runner_that_stands_still_is_named_with_what_to_do(hostile: Program) -> None:
    with stopped_runner(hostile) as (process, runner):
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"")
    (line,) = err.decode().splitlines()
    assert "does not answer" in line
    assert f"kill -CONT {runner}" in line
    assert ends_as_asked(hostile)


def test_second_signal_leaves_at_once(hostile: Program) -> None:
    with stopped_runner(hostile) as (process, _):
        time.sleep(0.6)  # what comes sooner is taken for the same
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"")
    (line,) = err.decode().splitlines()
    assert line.startswith("aibench-tui: left;")
    assert "running" not in line
    assert ends_as_asked(hostile)
