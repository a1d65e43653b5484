"""`list`, and how a session is found: in folders that many share, by part of a name, on a narrow terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from engine.events import RunEnded
from tests.engine.journal_cases import ended, journal_bytes, run_started, trial_events
from tests.program import Program

CLOSED = "20260103-000000-theirs-abcdef"
OWN = "20260101-000000-acceptance-of-node-17-00000a", "20260102-000000-quick-00000b"


def write_run(folder: Path, reason: str = "") -> None:
    folder.mkdir(parents=True)
    events = (run_started(2), *trial_events("t0001"), ended("t0002", "failed", reason))
    end = RunEnded(t=200.0, outcome="failed", reason=reason, exit_code=1)
    (folder / "journal.jsonl").write_bytes(journal_bytes(*events, end))


@pytest.fixture
def shared(program: Program) -> Program:
    """A sessions folder with two runs of ours and one that another user keeps to himself."""
    for name in OWN:
        write_run(program.sessions / name, reason="the disk is full " * 20)
    write_run(program.sessions / CLOSED)
    return program


def call_as_stranger(program: Program, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The program as a user to whom one run folder is closed, inside the sessions folder, since its parents are too."""
    if os.geteuid() != 0:
        pytest.skip("acting as another user needs root")
    (program.sessions / CLOSED).chmod(0o700)
    (program.sessions / "lost+found").mkdir(mode=0o700)
    program.sessions.chmod(0o755)
    start = (
        "import os, sys\n"  # imported as root, whose interpreter need not be open to others
        "import rich.cells, rich.console, rich.table, rich.text\n"
        "import tui.cli.clean, tui.cli.export, tui.cli.list, tui.cli.main, tui.cli.recover, tui.cli.run, tui.cli.show\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "sys.exit(tui.cli.main.main(sys.argv[1:]))\n"
    )
    return subprocess.run(
        [program.command()[0], "-c", start, *arguments],
        env=program.environment | {"PYTHONPATH": str(program.root)},
        cwd=program.sessions,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_closed_run_folder_does_not_hide_the_others(shared: Program) -> None:
    for name in OWN:
        for path in (shared.sessions / name, shared.sessions / name / "journal.jsonl"):
            path.chmod(0o755)
    done = call_as_stranger(shared, "list", "--json", "--folder", ".")
    assert done.returncode == 0, done.stderr
    rows = {row["session"]: row for row in json.loads(done.stdout)["sessions"]}
    assert set(rows) == {*OWN, CLOSED}
    assert rows[CLOSED]["outcome"] == "damaged"
    assert "Permission denied; read it as its owner or as root" in rows[CLOSED]["reason"]
    assert {rows[name]["outcome"] for name in OWN} == {"failed"}


@pytest.mark.parametrize(
    "arguments",
    [("show", "theirs"), ("show", f"./{CLOSED}"), ("recover", "theirs"), ("export", "theirs"), ("recover", CLOSED)],
    ids=" ".join,
)
def test_a_closed_run_folder_is_refused_with_what_helps(shared: Program, arguments: tuple[str, ...]) -> None:
    done = call_as_stranger(shared, *arguments, "--folder", ".")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Permission denied; read it as its owner or as root" in done.stderr


def test_a_closed_run_folder_is_not_resumed(shared: Program) -> None:
    done = call_as_stranger(shared, "run", "--resume", "theirs", "--out", ".")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Permission denied; read it as its owner or as root" in done.stderr


def test_a_closed_run_folder_is_not_the_latest(shared: Program) -> None:
    for path in (shared.sessions / OWN[1], shared.sessions / OWN[1] / "journal.jsonl"):
        path.chmod(0o755)
    done = call_as_stranger(shared, "show", "latest", "--json", "--folder", ".")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["folder"].endswith(OWN[1])


def test_clean_works_beside_a_closed_run_folder(shared: Program) -> None:
    done = call_as_stranger(shared, "clean", "--dry-run", "--folder", ".")
    assert done.returncode == 0, done.stderr
    assert "nothing is left" in done.stdout


@pytest.mark.parametrize("command", ["list", "show", "recover", "clean", "export"])
def test_a_sessions_folder_that_is_closed(shared: Program, command: str) -> None:
    (shared.sessions / "closed").mkdir(mode=0o700)
    done = call_as_stranger(shared, command, "--folder", "closed")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Permission denied; read it as its owner or as root" in done.stderr


@pytest.mark.parametrize("command", ["list", "show", "recover", "clean", "export"])
def test_a_name_that_is_too_long(program: Program, command: str) -> None:
    done = program.call(command, "--folder", "n" * 5000)
    assert done.returncode == 2
    assert "File name too long; name a shorter path" in done.stderr
    assert len(done.stderr) < 1000


@pytest.mark.parametrize("name", ["n" * 5000, "./" + "n" * 5000])
def test_a_session_whose_name_is_too_long(shared: Program, name: str) -> None:
    for command in (("show", name), ("run", "--resume", name)):
        done = shared.call(*command, *(("--folder", str(shared.sessions)) if command[0] == "show" else ()))
        assert done.returncode == 2
        assert len(done.stderr) < 1000


def test_a_pipe_in_the_place_of_a_lock_holds_nobody_up(shared: Program) -> None:
    folder = shared.sessions / OWN[0]
    os.mkfifo(folder / "run.lock")
    assert shared.call("list", "--folder", str(shared.sessions), timeout=30).returncode == 0
    assert shared.call("show", str(folder), timeout=30).returncode == 0
    for command in (("recover", str(folder)), ("run", "--resume", str(folder))):
        done = shared.call(*command, timeout=30)
        assert done.returncode == 2
        assert "run.lock cannot be used: it is not a plain file" in done.stderr


def test_sessions_that_match_are_named(shared: Program) -> None:
    for number in range(2):
        write_run(shared.sessions / f"20260104-00000{number}-more-00000{number}")
    done = shared.call("show", "2026", "--folder", str(shared.sessions))
    assert done.returncode == 2
    assert f"5 sessions match '2026': {OWN[0]}, {OWN[1]}, {CLOSED}, 2 more; name" in done.stderr
    done = shared.call("show", "00000a", "--folder", str(shared.sessions))
    assert done.returncode == 0
    done = shared.call("show", "20260104", "--folder", str(shared.sessions))
    assert "-00000" in done.stderr
    assert "more;" not in done.stderr


def test_a_narrow_terminal_cuts_no_names(shared: Program) -> None:
    lines = on_terminal(shared, 80, "list", "--folder", str(shared.sessions))
    assert lines[0].split() == ["session", "outcome", "done", "reason"]
    assert [line.split()[0] for line in lines[1:]] == [*OWN, CLOSED]
    assert [line.split()[1:3] for line in lines[1:]] == [["failed", "1/2"]] * 3
    assert {len(line) for line in lines[1:3]} <= {79, 80}
    assert all(line.endswith("…") for line in lines[1:3])


def test_a_terminal_without_room_for_reasons_has_whole_names(shared: Program) -> None:
    lines = on_terminal(shared, 20, "list", "--folder", str(shared.sessions))
    assert [line.split() for line in lines[1:]] == [[name, "failed", "1/2"] for name in (*OWN, CLOSED)]


def on_terminal(program: Program, columns: int, *arguments: str) -> list[str]:
    """What a command prints on a real terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    with program.start(*arguments, stdout=theirs) as process:
        os.close(theirs)
        data = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while piece := os.read(ours, 65536):
                data += piece
        assert process.wait(30) == 0
    os.close(ours)
    return data.decode().replace("\r\n", "\n").splitlines()


def test_json_keeps_numbers_apart(shared: Program) -> None:
    done = shared.call("list", "--json", "--folder", str(shared.sessions))
    for row in json.loads(done.stdout)["sessions"]:
        assert (row["completed"], row["trials"]) == (1, 2)
