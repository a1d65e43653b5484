"""Streams that are closed, full or of a narrow encoding, and the limits that a shell sets: one line, no traceback."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from engine import exits, owner
from engine.errors import AibenchError
from engine.owner import NotWanted, Request, start_runner
from tests.program import Program, processes, wait_for

RUN = "run --preset floor --out ."
NO_SPACE = "aibench-tui: standard output: No space left on device\n"

LITTLE_MEMORY = """
import resource, sys
import aibench_tui, tui.cli.main
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, ((pages << 12) + (1 << 20),) * 2)
sys.argv = ["aibench-tui", "run", "--preset", "floor"]
sys.exit(aibench_tui.main())
"""
"""The program, loaded, with a mebibyte left to go on with."""

NARROW = [
    {"PYTHONIOENCODING": "ascii:strict"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
]


def shell(program: Program, line: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """`line` in a shell in the program's home; the program is `aibench` there."""
    program.home.mkdir(exist_ok=True)
    function = f'aibench() {{ {shlex.join(program.command())} "$@"; }}'
    return subprocess.run(
        ["bash", "-c", f"{function}\n{line}"],
        cwd=program.home,
        env={**program.environment, **extra},
        capture_output=True,
        text=True,
        timeout=60,
    )


def outcomes(program: Program) -> list[str]:
    done = program.call("list", "--folder", str(program.home), "--json")
    return [word for word in done.stdout.split('"') if word in ("completed", "failed", "aborted", "damaged")]


@pytest.mark.parametrize("closed", ["<&- >&-", "2>&-"])
def test_run_with_closed_streams_completes(program: Program, closed: str) -> None:
    done = shell(program, f"aibench {RUN} {closed}")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert "completed" in outcomes(program)


@pytest.mark.parametrize("arguments", ["list --folder .", "help files", "--help", "--version", "plan init p.toml"])
def test_command_without_a_stdout_is_as_one_into_nothing(program: Program, arguments: str) -> None:
    done = shell(program, f"aibench {arguments} >&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments", ["list --folder .", "help files", "--help", "run --help", "--version", "completion bash"]
)
def test_full_stdout_is_one_line(program: Program, arguments: str, unbuffered: str) -> None:
    done = shell(program, f"aibench {arguments} >/dev/full", PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (exits.INCOMPLETE, NO_SPACE)


def test_full_stdout_and_stderr_are_an_exit_code(program: Program) -> None:
    for arguments in ("--version", "--help", "list --folder ."):
        assert shell(program, f"aibench {arguments} >/dev/full 2>&1").returncode == exits.INCOMPLETE


@pytest.mark.parametrize("where", ["2>/dev/full", "2> >(true)"])
def test_stderr_that_takes_nothing_does_not_stop_a_run(program: Program, where: str) -> None:
    done = shell(program, f"aibench {RUN} {where}")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("session: ")


def test_result_that_cannot_be_printed_is_named_with_where_it_is_kept(program: Program) -> None:
    done = shell(program, f"aibench {RUN} >/dev/full")
    assert done.returncode == exits.INCOMPLETE
    last = done.stderr.splitlines()[-1]
    assert "the result could not be printed: No space left on device; it is kept in " in last
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("encoding", NARROW, ids=lambda encoding: " ".join(encoding.values()))
def test_encoding_without_our_characters(program: Program, encoding: dict[str, str]) -> None:
    ran = shell(program, f"aibench {RUN} && aibench show --folder . && aibench help figures", **encoding)
    assert ran.returncode == 0, ran.stderr
    assert "\\xb7 bare \\xb7" in ran.stderr
    assert "call_overhead" in ran.stdout
    wrong = shell(program, "aibench run --scenario gëmm", **encoding)
    assert wrong.returncode == exits.USAGE
    assert wrong.stderr.startswith("aibench-tui: ") and wrong.stderr.count("\n") == 1


@pytest.mark.parametrize("limit", [8, 15, 63])
def test_too_few_open_files_are_refused_before_a_run(program: Program, limit: int) -> None:
    done = shell(program, f"ulimit -n {limit}; aibench {RUN}")
    assert done.returncode == exits.NOT_READY
    assert "raise the limit of open files (ulimit -n)" in done.stderr.splitlines()[-1]
    assert outcomes(program) == []


def test_least_number_of_open_files_is_enough(program: Program) -> None:
    done = shell(program, f"ulimit -n {owner.LEAST_OPEN_FILES}; aibench {RUN}")
    assert done.returncode == 0, done.stderr


def test_small_files_only_are_refused_with_the_limit_to_raise(program: Program) -> None:
    for limit in (1, 8, 100):
        done = shell(program, f"ulimit -f {limit}; aibench {RUN}")
        assert done.returncode in (exits.USAGE, exits.INCOMPLETE)
        assert done.stderr.splitlines()[-1].endswith("raise the limit of file sizes (ulimit -f)")
    assert outcomes(program) == []


def test_other_command_without_a_descriptor_left_is_one_line(program: Program) -> None:
    done = shell(program, "aibench plan init p.toml --preset floor; ulimit -n 8; aibench plan check p.toml")
    assert done.returncode == exits.INCOMPLETE
    assert done.stderr == (
        "aibench-tui: cannot finish the command: Too many open files; raise the limit of open files (ulimit -n)\n"
    )


def test_no_memory_left_is_one_line(program: Program) -> None:
    program.home.mkdir(exist_ok=True)
    command = [sys.executable, "-c", LITTLE_MEMORY]
    done = subprocess.run(
        command, cwd=program.root, env=program.environment, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == exits.INCOMPLETE
    assert done.stderr.startswith("aibench-tui: out of memory; raise the limits of memory (ulimit -v)")
    assert done.stderr.count("\n") == 1


def runs_instead(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """The runner's process runs `code`."""
    monkeypatch.setattr(owner, "python_command", lambda *_: [sys.executable, "-I", "-c", code])


@pytest.mark.parametrize(
    ("code", "words", "do"),
    [
        ("raise MemoryError", "start: MemoryError;", "ulimit -v"),
        ("import sys; sys.exit('\\x1b]0;owned\\x07Too many open files')", "␛]0;owned␇Too many", "ulimit -n"),
        ("import os; os.kill(os.getpid(), 9)", "signal 9 (Killed)", "doctor"),
        ("import os; os._exit(5)", "exit code 5", "doctor"),
        ("import os; os.write(2, b'x' * 200_000 + b'\\nlast'); os._exit(5)", "start: ", "doctor"),
    ],
)
def test_runner_that_dies_before_it_can_answer_is_quoted(
    monkeypatch: pytest.MonkeyPatch, code: str, words: str, do: str
) -> None:
    runs_instead(monkeypatch, code)
    with pytest.raises(AibenchError) as caught:
        start_runner(Request(folder="/nowhere"))
    assert caught.value.code == exits.INCOMPLETE
    assert words in caught.value.what + ";"
    assert do in caught.value.do


def test_runner_that_takes_no_request_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is larger than what a socket holds, so that it cannot be sent."""
    runs_instead(monkeypatch, "import time; time.sleep(300)  # takes nothing")
    with pytest.raises(NotWanted):
        start_runner(Request(folder="/nowhere", plan="#" * 2_000_000), give_up=lambda: True)
    wait_for(lambda: not any("takes nothing" in each.command for each in processes()), what="the end of the runner")
