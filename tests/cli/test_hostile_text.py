"""Whatever a session, a file name or an argument holds, a terminal gets no control sequence of it.

Every command runs as a process on a terminal of its own, and its raw bytes are looked at.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import termios
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import runfolder
from tests.cli.hostile_runs import EVERYTHING, FILE_NAME, file_names, plan_texts, write_hostile_run
from tests.program import Program

UNSAFE = ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")
OWN_SEQUENCE = "\r\x1b[K"
"""Takes the line of progress away; the only sequence that the program has."""

SHOWN = "shown-20260101-000000"
DEAD = "dead-20260101-000000"
ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}


class Asking(Program):
    """The program as a shell's completion starts it."""

    def command(self, *arguments: str) -> list[str]:
        return ["bash", "-c", 'exec 8>&1; exec "$@" 9>&2', "bash", *super().command(*arguments)]


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A program whose sessions all came from strangers: two long ones, and many with a hostile name."""
    program = Program(tmp_path_factory.mktemp("home"), extra_env={"TERM": "xterm-256color", "FORCE_COLOR": "1"})
    sessions = program.home / "data" / "aibench-tui" / "sessions"
    write_hostile_run(sessions / SHOWN, 40)
    write_hostile_run(sessions / DEAD, 3, ends=False)
    for name in file_names():
        write_hostile_run(sessions / name, 1, ends=False)
    (sessions / FILE_NAME).mkdir()
    (sessions / FILE_NAME / runfolder.JOURNAL).write_text('{"event":"run_started","schema":99}\n')
    return program


def on_terminal(program: Program, *arguments: str) -> tuple[int, str]:
    """A command's exit code and all that reached its terminal, as text that is surely UTF-8."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with program.start(*arguments, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        data = b"".join(_chunks(ours))
        code = process.wait(60)
    return code, data.decode()


def _chunks(terminal: int) -> Iterator[bytes]:
    with os.fdopen(terminal, "rb", buffering=0) as stream:
        while True:
            try:
                data = stream.read(65_536)
            except OSError:  # how Linux says that nobody has the other end any more
                return
            yield data


def assert_harmless(text: str) -> None:
    assert "Traceback" not in text
    assert "internal error" not in text
    rest = text.replace(OWN_SEQUENCE, "").replace("\r\n", "\n")
    dangerous = {f"U+{ord(char):04X}" for char in rest if unicodedata.category(char) in UNSAFE and char != "\n"}
    assert dangerous == set()


def check(program: Program, *arguments: str, code: int) -> str:
    found, text = on_terminal(program, *arguments)
    assert_harmless(text)
    assert found == code, text[-2000:]
    return text


def folder_of(program: Program, name: str) -> str:
    return str(program.home / "data" / "aibench-tui" / "sessions" / name)


def test_list(strangers: Program) -> None:
    text = check(strangers, "list", code=0)
    assert "␛]0;owned␇" in text.replace("\r\n", "").replace(" ", "")
    assert "��-000" in text


def test_what_goes_into_a_pipe_is_as_harmless(strangers: Program) -> None:
    for arguments in (("list",), ("show", SHOWN), ("clean", "--dry-run")):
        done = strangers.call(*arguments)
        assert_harmless(done.stdout)
        assert "owned" in done.stdout
        assert (done.returncode, done.stderr) == (0, "")


def test_list_for_programs(strangers: Program) -> None:
    rows = json.loads(check(strangers, "list", "--json", code=0))["sessions"]
    assert len(rows) == 205
    strangers_own = {os.fsencode(name).decode(errors="replace") for name in file_names()}
    assert strangers_own < {row["session"] for row in rows}


@pytest.mark.parametrize("name", [SHOWN, DEAD, f"{SHOWN}/session.toml", FILE_NAME, "../nowhere" + FILE_NAME])
def test_show(strangers: Program, name: str) -> None:
    text = check(strangers, "show", folder_of(strangers, name), code=2 if FILE_NAME in name else 0)
    assert "owned" in text


@pytest.mark.parametrize("name", [SHOWN, DEAD, f"{SHOWN}/session.toml"])
def test_show_for_programs(strangers: Program, name: str) -> None:
    document = json.loads(check(strangers, "show", folder_of(strangers, name), "--json", code=0))
    assert document["folder"] == folder_of(strangers, name)
    assert "\x1b" not in str(document["trials"])


@pytest.mark.parametrize("name", [EVERYTHING.replace("/", ""), "~" + EVERYTHING, EVERYTHING, "-0", "\udcff"])
def test_a_session_that_is_not_there(strangers: Program, name: str) -> None:
    for command in ("show", "export", "recover"):
        assert len(check(strangers, command, name, code=2).splitlines()) == 1


def test_export_and_recover(strangers: Program) -> None:
    first = next(file_names())
    assert "�" in check(strangers, "recover", first, code=0)
    assert check(strangers, "export", first, code=0).strip() == f"{'�' * 2}-000.tar.gz"
    assert (strangers.home / f"{first}.tar.gz").is_file()
    target = str(strangers.home / FILE_NAME)
    assert "␛]0;owned␇" in check(strangers, "export", SHOWN, "--output", target, code=0)
    assert Path(target).is_file()
    check(strangers, "export", SHOWN, "--output", str(strangers.home / "no" / FILE_NAME), code=2)


def test_clean_names_what_would_go(strangers: Program) -> None:
    text = check(strangers, "clean", "--dry-run", code=0)
    assert text.count("left alone: trial files of") == 204
    assert "��-000" in text


def test_doctor(strangers: Program) -> None:
    text = check(strangers, "doctor", "--folder", str(strangers.home / FILE_NAME), "--python", EVERYTHING, code=4)
    assert "␛]0;owned␇" in text
    check(strangers, "doctor", "--need", "torch", "--python", EVERYTHING, code=4)


def test_where_the_users_own_folder_has_a_hostile_name(strangers: Program) -> None:
    program = Program(strangers.home, extra_env={"XDG_DATA_HOME": str(strangers.home / "data2" / FILE_NAME)})
    for arguments in (("list",), ("help", "files")):
        assert "␛]0;owned␇" in check(program, *arguments, code=0)
    check(program, "show", code=2)
    check(program, "run", "--preset", "floor", code=2)  # a runner is told its folder in JSON, which has only UTF-8


@pytest.mark.parametrize("text", list(plan_texts()))
def test_plan_check_of_a_hostile_plan(strangers: Program, text: str) -> None:
    path = strangers.home / f"{FILE_NAME}.toml"
    path.write_text(text)
    assert len(check(strangers, "plan", "check", str(path), code=2).splitlines()) == 1


def test_plan_files_with_hostile_names(strangers: Program) -> None:
    target = str(strangers.home / f"plan{FILE_NAME}")
    assert "␛]0;owned␇" in check(strangers, "plan", "init", target, "--preset", "floor", code=0)
    assert "3 trials" in check(strangers, "plan", "check", target, code=0)
    check(strangers, "plan", "init", target, code=2)
    check(strangers, "plan", "check", target + "no", code=2)


@pytest.mark.parametrize(
    "arguments",
    [
        (EVERYTHING,),
        ("--" + EVERYTHING,),
        ("help", EVERYTHING),
        ("completion", EVERYTHING),
        ("plan", "init", "x", "--preset", EVERYTHING),
        ("run", "--preset", EVERYTHING),
        ("run", "--scenario", EVERYTHING),
        ("run", "--devices", EVERYTHING),
        ("run", "--devices", "GPU-" + "x" * 100),
        ("run", "--env", EVERYTHING),
        ("run", "--env", "podman," + EVERYTHING),
        ("run", "--env", "bare,name=" + EVERYTHING),
        ("run", "--plan", FILE_NAME + "no"),
        ("run", "--out", FILE_NAME, "--preset", "floor"),
        ("run", "--python", EVERYTHING),
        ("run", "--seconds", EVERYTHING),
        ("run", "--resume", EVERYTHING),
        ("run", "--resume", SHOWN),
        ("run", "--resume", "\udcff\udcfe-000"),
    ],
    ids=lambda arguments: " ".join(arguments)[:16].encode("ascii", "replace").decode(),
)
def test_arguments(strangers: Program, arguments: tuple[str, ...]) -> None:
    assert check(strangers, *arguments, code=2).splitlines()[-1].startswith("aibench-tui: ")


def test_completion_offers_no_name_that_is_not_what_it_shows(strangers: Program) -> None:
    asking = {"_ARGCOMPLETE": "1", "COMP_LINE": "aibench-tui show ", "COMP_POINT": "17", "_ARGCOMPLETE_IFS": "\n"}
    program = Asking(strangers.home, extra_env={**asking, "_ARGCOMPLETE_COMP_WORDBREAKS": " "})
    assert "dead-20260101-000000" in check(program, code=0)


def test_a_terminal_that_knows_ascii_alone(strangers: Program) -> None:
    program = Program(strangers.home, extra_env=ASCII)
    assert "\\u241b" in check(program, "list", code=0)
    assert "\\ufffd" in check(program, "show", "\udcff\udcfe-000", code=0)
    assert "\\u241b" in check(program, "show", "\x1b", code=2)
