"""A stranger's run folder that is resumed reaches nothing outside itself, whatever its journal and its links say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from engine import runfolder
from tests.program import Program

Change = Callable[[Path, Path], None]
"""Makes a run folder hostile to a victim, another folder."""


@pytest.fixture(scope="module")
def half_done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real run that died in its second trial of three."""
    program = Program(tmp_path_factory.mktemp("half"))
    code, document, complaint = program.run_json("--preset", "floor", "--seconds", "0.01")
    assert code == 0, complaint
    folder = Path(document["folder"])
    lines = (folder / runfolder.JOURNAL).read_bytes().splitlines(keepends=True)
    second = next(place for place, line in enumerate(lines) if json.loads(line).get("trial") == "t0002")
    (folder / runfolder.JOURNAL).write_bytes(b"".join(lines[: second + 1]))
    (folder / runfolder.SESSION).unlink()
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder with what a user would miss."""
    folder = tmp_path / "victim"
    (folder / "t0002").mkdir(parents=True)
    for name in ("thesis.tex", "t0002/data", "t0002.log", "trial.json"):
        (folder / name).write_text("dear to somebody\n")
    return folder


def state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything below a folder: mode, time of change and content."""
    return {
        str(path.relative_to(folder)): (
            status.st_mode,
            status.st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in (folder, *folder.rglob("*"))
        for status in (path.lstat(),)
    }


def resume(program: Program, half_done: Path, change: Change, victim: Path) -> tuple[int, list[str]]:
    """Resume a copy that was changed; returns the exit code and the lines on stderr."""
    folder = program.home / "stranger" / half_done.name
    shutil.copytree(half_done, folder, symlinks=True)
    change(folder, victim)
    done = program.call("run", "--resume", str(folder))
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.splitlines()


def started_with(**fields: object) -> Change:
    """The second trial as the journal plans it, with other fields; {victim} stands for the victim's path."""

    def change(folder: Path, victim: Path) -> None:
        first, *rest = (folder / runfolder.JOURNAL).read_bytes().splitlines()
        start = json.loads(first)
        fitting = {
            name: value.format(victim=victim) if isinstance(value, str) else value for name, value in fields.items()
        }
        start.update({name: fitting.pop(name) for name in ("run", "plan") if name in fitting})
        start["trials"][1].update(fitting)
        (folder / runfolder.JOURNAL).write_bytes(b"\n".join([json.dumps(start).encode(), *rest, b""]))

    return change


def linked(name: str, target: str = "") -> Change:
    """A part of the run folder that is a link to the victim, or to something in it."""

    def change(folder: Path, victim: Path) -> None:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        path.symlink_to(victim / target)

    return change


def test_the_copy_that_is_left_as_it_is_can_be_resumed(program: Program, half_done: Path, victim: Path) -> None:
    code, lines = resume(program, half_done, lambda folder, victim: None, victim)
    assert code == 0, lines


@pytest.mark.parametrize(
    "change",
    [
        started_with(trial="{victim}"),
        started_with(trial="../../../victim"),
        started_with(trial="../../victim/t0002"),
        started_with(trial="t0001/../.."),
        started_with(trial="t0001"),
        started_with(trial=".."),
        started_with(trial=""),
        started_with(trial="t0002\n"),
        started_with(trial="t0002\u0000"),
        started_with(trial="t\u0660\u0660\u0660\u0662"),
        started_with(run="../../victim"),
        started_with(run="{victim}"),
        started_with(run="20260101-000000-abcdef\n"),
        started_with(run=""),
        started_with(scenario="../../victim/thesis"),
        started_with(scenario="hostile/../../victim"),
        started_with(framework="torch"),
        started_with(framework="../victim"),
        started_with(environment="podman"),
        started_with(device="../victim"),
        started_with(plan={"name": "../../victim"}),
        linked(runfolder.SCRATCH),
        linked(runfolder.LOGS),
        linked(runfolder.SERIES),
        linked(runfolder.STAGE),
        linked(f"{runfolder.SCRATCH}/t0002"),
        linked(runfolder.JOURNAL, "thesis.tex"),
    ],
)
def test_what_names_a_place_outside_is_refused(program: Program, half_done: Path, victim: Path, change: Change) -> None:
    before = state(victim)
    code, lines = resume(program, half_done, change, victim)
    assert state(victim) == before
    assert code == 2, lines
    assert [line for line in lines if line.startswith("aibench-tui: ")] == lines[-1:]
    assert len(lines) <= 2


@pytest.mark.parametrize(
    "name",
    [
        f"{runfolder.LOGS}/t0002.log",
        f"{runfolder.LOGS}/t0003.log",
        f"{runfolder.SERIES}/001.jsonl",
        runfolder.LOCK,
        runfolder.SESSION,
        runfolder.RUNNER_LOG,
        runfolder.RESERVE,
        f"{runfolder.STAGE}/scenarios/harness/floor.py",
    ],
)
def test_a_file_that_is_a_link_is_never_written_through(
    program: Program, half_done: Path, victim: Path, name: str
) -> None:
    before = state(victim)
    code, lines = resume(program, half_done, linked(name, "thesis.tex"), victim)
    assert state(victim) == before
    assert code in (0, 2, 3), lines
