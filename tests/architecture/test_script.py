"""The console script: what it loads, how it ends, and what it says to an old Python."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import aibench_tui
from tests.architecture.sources import ROOT

SCRIPT = [sys.executable, str(ROOT / "aibench_tui.py")]
NOTHING_TO_OPEN_WITH = (
    "import aibench_tui, os, resource, sys; sys.argv = ['x', '--help']\n"
    "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)); sys.exit(aibench_tui.main())"
)
HEAVY = {"jax", "msgspec", "numpy", "psutil", "pynvml", "rich", "textual", "torch"}


def loaded(*arguments: str) -> set[str]:
    """The modules that a fresh process has loaded once the script is done."""
    code = (
        "import sys; before = set(sys.modules); import contextlib, io, json, aibench_tui\n"
        f"sys.argv[1:] = {list(arguments)!r}\n"
        "with contextlib.redirect_stdout(io.StringIO()): aibench_tui.main()\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    environment = {**os.environ, "PYTHONPATH": ""}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(result.stdout))


def test_help_loads_neither_the_screen_nor_a_framework_nor_a_vendor_library() -> None:
    modules = loaded("--help")
    assert "tui.cli.main" in modules
    assert {name.partition(".")[0] for name in modules} & (HEAVY - {"msgspec"}) == set()


def test_version_loads_next_to_nothing() -> None:
    modules = loaded("--version")
    assert "engine.version" in modules
    assert modules & {"argparse", "tui", *HEAVY} == set()


@pytest.mark.parametrize("arguments", [["--version"], ["--help"]])
def test_a_closed_pipe_is_quiet(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}  # unbuffered, argparse itself passes over the error
    result = subprocess.run([*SCRIPT, *arguments], env=environment, stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert (result.returncode, result.stderr) == (141, b"")


def test_version_that_cannot_be_printed_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        result = subprocess.run([*SCRIPT, "--version"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (3, "aibench-tui: standard output: No space left on device\n")


def test_missing_streams_are_opened_so_that_nothing_else_gets_their_numbers() -> None:
    code = (
        "import os, sys; os.closerange(0, 3); sys.stdin = sys.stdout = sys.stderr = None; import aibench_tui\n"
        "aibench_tui._fill_descriptors(); print('lost'); print('lost', file=sys.stderr)\n"
        "same = [os.path.sameopenfile(number, os.open(os.devnull, os.O_RDWR)) for number in range(3)]\n"
        "sys.exit(40 + sum(same) if sys.stdin.read() == '' and all(map(os.get_inheritable, range(3))) else 1)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 43


def test_a_signal_that_comes_while_the_program_starts_again_is_answered_in_a_line(tmp_path: Path) -> None:
    """PYTHONPATH makes it start again; there Python's own start would answer with a traceback."""
    code = (
        "import os, signal, aibench_tui\n"
        "start = os.execv\n"
        "os.execv = lambda *command: (os.kill(os.getpid(), signal.SIGINT), start(*command))\n"
        "aibench_tui.main()"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", code, "--help"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "aibench-tui: interrupted\n")


def test_a_program_that_cannot_be_loaded_says_so_in_a_line() -> None:
    """There is no descriptor left to open its files with."""
    command = [sys.executable, "-c", NOTHING_TO_OPEN_WITH]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 3
    assert result.stderr.startswith("aibench-tui: the program cannot be loaded: ")
    assert "Too many open files" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_deleted_current_folder_is_no_trouble(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    command = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", *SCRIPT, "--help"]
    result = subprocess.run(command, cwd=gone, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


def test_pythonpath_is_kept_for_the_workers_but_not_used(tmp_path: Path) -> None:
    for name in ("json", "signal"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hostile')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run([*SCRIPT, "--help"], env=environment, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


def test_own_path_puts_the_program_first_and_drops_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path)
    assert aibench_tui.own_path([here, "/usr/lib/python3", ""]) == [aibench_tui.ROOT, "/usr/lib/python3"]
    assert aibench_tui.own_path(["/usr/bin", here, aibench_tui.ROOT]) == [aibench_tui.ROOT, "/usr/bin", here]


def test_an_old_python_can_read_the_script() -> None:
    ast.parse((ROOT / "aibench_tui.py").read_text(), feature_version=(3, 8))


def test_an_old_python_gets_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    assert aibench_tui.main() == 4
    said = capsys.readouterr().err
    assert said.startswith("aibench-tui needs Python 3.10 or later")
    assert said.count("\n") == 1
    assert " is 3.9;" in said
