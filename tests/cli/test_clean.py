"""`clean`: a short line for each thing, what goes and what is left alone."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.program import Program, wait_for

RUN = "20260101-000000-abcdef"
NAME = "20260101-000000-quick-abcdef"


def write_dead_run(folder: Path) -> None:
    (folder / "scratch" / "t0001").mkdir(parents=True)
    (folder / "run.lock").touch()
    (folder / "journal.jsonl").write_text(json.dumps({"event": "run_started", "run": RUN}) + "\n")


@pytest.fixture
def orphan(program: Program) -> Iterator[subprocess.Popen[bytes]]:
    """A process that a dead run left."""
    folder = program.sessions / NAME
    write_dead_run(folder)
    marks = {"AIBENCH_RUN_ID": RUN, "AIBENCH_RUN_FOLDER": str(folder)}
    with subprocess.Popen(["sleep", "600"], env=marks) as process:
        wait_for(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
        yield process
        process.kill()


def lines_of(program: Program, *arguments: str, code: int = 0) -> list[str]:
    """The lines about this run; other users of the machine may have their own."""
    done = program.call("clean", "--folder", str(program.sessions), *arguments)
    assert done.returncode == code, done.stderr
    return [line for line in done.stdout.splitlines() if "abcdef" in line]


def test_each_thing_has_a_short_line(program: Program, orphan: subprocess.Popen[bytes]) -> None:
    what = [f"process {orphan.pid} (sleep) of {RUN}", f"trial files of {NAME}"]
    assert lines_of(program, "--dry-run") == [f"would go: {thing}" for thing in what]
    assert orphan.poll() is None
    assert lines_of(program) == [f"gone: {thing}" for thing in what]
    assert orphan.wait(20) == -9
    assert lines_of(program) == []


def test_what_may_be_of_a_living_run_is_left_alone_and_named(program: Program, orphan: subprocess.Popen[bytes]) -> None:
    (program.sessions / NAME).rename(program.sessions / "moved")
    (program.sessions / "moved" / "run.lock").unlink()
    said = f"left alone: process {orphan.pid} (sleep) of {RUN}: folder is not there"
    assert said in lines_of(program)
    assert len(said) <= 80
    done = program.call("clean", "--folder", str(program.sessions))
    assert "left alone: trial files of moved: run.lock is not there" in done.stdout.splitlines()
    assert orphan.poll() is None
    assert (program.sessions / "moved" / "scratch" / "t0001").is_dir()


def test_a_project_that_only_looks_like_a_run_is_left_alone(program: Program) -> None:
    project = program.sessions / "project-abcdef"
    (project / "scratch" / "t0001").mkdir(parents=True)
    (project / "scratch" / "thesis").mkdir()
    for name, text in (("journal.jsonl", '{"event": "boot"}\n'), ("run.lock", "")):
        (project / name).write_text(text)
    write_dead_run(program.home / "elsewhere")
    (program.sessions / "link-abcdef").symlink_to(program.home / "elsewhere")
    assert lines_of(program) == [
        "left alone: trial files of link-abcdef: folder is a link",
        "left alone: trial files of project-abcdef: journal is not a run's",
    ]
    assert len(list((project / "scratch").iterdir())) == 2
    assert (program.home / "elsewhere" / "scratch" / "t0001").is_dir()
