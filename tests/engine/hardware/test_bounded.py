"""A bounded child: how it ends, what it sees, and that it does not outlive whoever asked for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.hardware.bounded import OUTPUT_LIMIT, run_bounded
from tests.worker.keeping import is_alive, wait_until

SLEEPERS = "sleep 600 & echo $! > helper; echo $$ > command; echo $PPID > lifeline; mv lifeline started; wait"


def pid(path: Path) -> int:
    return int(path.read_text())


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the middle of run_bounded, on a thread of its own: its command and what that started sleep."""
    code = (
        "import sys, threading; from engine.hardware.bounded import run_bounded\n"
        "threading.Thread(target=run_bounded, args=(sys.argv[1:-1], 600.0), kwargs={'cwd': sys.argv[-1]}).start()\n"
    )
    command = [sys.executable, "-c", code, "/bin/sh", "-c", SLEEPERS, str(tmp_path)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3]) as process:
        try:
            wait_until((tmp_path / "started").exists)
            yield process
        finally:
            process.kill()


def test_a_killed_starter_leaves_nothing(tmp_path: Path, starter: subprocess.Popen[bytes]) -> None:
    assert is_alive(pid(tmp_path / "command"))
    starter.kill()
    wait_until(lambda: not any(is_alive(pid(tmp_path / name)) for name in ("command", "helper", "started")))


def test_a_killed_lifeline_takes_the_command_with_it(tmp_path: Path, starter: subprocess.Popen[bytes]) -> None:
    os.kill(pid(tmp_path / "started"), signal.SIGKILL)
    wait_until(lambda: not is_alive(pid(tmp_path / "command")))
    os.kill(pid(tmp_path / "helper"), signal.SIGKILL)  # it still holds the pipes that are waited for
    assert starter.wait(20) == 0


@pytest.mark.parametrize(
    ("script", "ended"),
    [
        ("exit 0", ""),
        ("exit 3", "exit code 3"),
        ("kill -SEGV $$", "signal 11 (SIGSEGV)"),
        ("kill -KILL $$", "signal 9 (SIGKILL)"),
        ("kill -INT $$", "signal 2 (SIGINT)"),
        ("kill -PIPE $$", "signal 13 (SIGPIPE)"),
    ],
)
def test_it_ends_as_its_command_ended(script: str, ended: str) -> None:
    finished = run_bounded(["/bin/sh", "-c", script], 30.0)
    assert (finished.ended, finished.cut_off) == (ended, False)


@pytest.mark.parametrize(
    ("script", "ended"),
    [("sleep 600", "no end within 0.5 s"), ("yes", f"more than {OUTPUT_LIMIT} bytes of output")],
)
def test_one_that_goes_on_is_cut_off(script: str, ended: str) -> None:
    finished = run_bounded(["/bin/sh", "-c", script], 0.5)
    assert finished.cut_off
    assert finished.ended in (ended, "no end within 0.5 s")  # a slow machine may not print enough in that time


def test_a_command_that_is_not_there_is_named() -> None:
    finished = run_bounded(["/nowhere/python"], 30.0)
    assert finished.error_tail == b"/nowhere/python cannot be started: No such file or directory\n"
    assert finished.ended == "exit code 127"


def test_the_command_sees_the_environment_that_it_is_given_and_the_marks_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Our own Python may need variables that the command must not have: LD_LIBRARY_PATH, where a module set it."""
    for name, value in {"HF_TOKEN": "x", "LD_LIBRARY_PATH": "/nowhere", "AIBENCH_RUN_ID": "r"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIBENCH_RUN_FOLDER", "/r")
    finished = run_bounded(["/usr/bin/env", "-0"], 30.0, environment={"A": "ä=\n", "EMPTY": ""})
    seen = dict(entry.split("=", 1) for entry in finished.output.decode().split("\0") if entry)
    seen.pop("LC_CTYPE", None)  # Python sets it where the locale is C
    assert seen == {"A": "ä=\n", "EMPTY": "", "AIBENCH_RUN_ID": "r", "AIBENCH_RUN_FOLDER": "/r"}


def test_the_command_has_an_empty_stdin() -> None:
    assert run_bounded(["/bin/cat"], 30.0).ended == ""
