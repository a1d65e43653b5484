"""The n-th write, rename, truncate, allocation or sync fails, for every n: no finished trial is lost."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import files, runfolder
from engine.errors import AibenchError
from engine.events import Notice
from engine.journal import JournalWriter, read_events
from engine.session import fold
from engine.session_file import read_session, write_session
from tests.engine.journal_cases import run_ended, run_events, run_started, setting, trial_events
from tests.faults import build_shim, fault_environment

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


def drive(shim: Path, folder: Path, error: int, *, sticky: bool) -> list[dict[str, Any]]:
    environment = {**os.environ, **fault_environment(shim, folder), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.engine.fault_driver", str(folder.resolve()), str(error), str(int(sticky))]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "from then on"])
def test_the_nth_call_fails_and_no_finished_trial_is_lost(shim: Path, tmp_path: Path, error: int, sticky: bool) -> None:
    reports = drive(shim, tmp_path, error, sticky=sticky)
    assert len(reports) > 10  # the loop went through every call of the run
    for report in reports:
        promised = [name for name in report["promised"] if name.startswith("t")]
        assert set(promised) <= set(report["completed"]), report
        assert report["medians"] == [1000.0] * len(report["completed"]), report
        assert not [name for name in report["left"] if name.endswith(".tmp")], report
        if report["promised"][-1:] == ["session"]:
            assert (report["session"], report["error"]) == (True, ""), report
        else:
            assert report["error"].startswith("3 cannot "), report
            assert os.strerror(error) in report["error"], report
            assert report["session"] is not False, report
    assert reports[-1]["promised"] == ["t0001", "t0002", "t0003", "end", "session"]
    assert reports[-1]["left"] == [runfolder.JOURNAL, runfolder.SESSION]


def test_a_fault_that_passes_costs_no_trial_at_all(shim: Path, tmp_path: Path) -> None:
    begun = [report for report in drive(shim, tmp_path, errno.ENOSPC, sticky=False) if report["trials"]]
    assert len(begun) > 5
    assert all(len(report["completed"]) == 3 for report in begun)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("cannot here: mounting a small file system takes root")
    command = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot here: mount: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Take every byte that is left."""
    with (folder / "filler").open("ab", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(1024))
    assert os.statvfs(folder).f_bavail == 0


def test_on_a_full_disk_the_end_is_written_from_the_reserve(small_disk: Path) -> None:
    writer = JournalWriter(small_disk, reserve_bytes=64 * 1024)
    for event in (run_started(2), *setting(), *trial_events("t0001")):
        writer.append(event)
    writer.sync()
    assert writer.problem == ""
    fill(small_disk)
    while not writer.problem:  # until the last page of the journal is full too
        writer.append(Notice(t=107.0, level="info", source="test", text="x" * 500))
        writer.sync()
    assert "No space left on device; make room there" in writer.problem
    fill(small_disk)
    for event in (*trial_events("t0002"), run_ended()):
        writer.append(event)
    writer.close()
    session = fold(read_events(small_disk / runfolder.JOURNAL))
    assert [trial.outcome for trial in session.trials] == ["completed", "completed"]
    assert session.outcome == "completed"
    write_session(small_disk / runfolder.SESSION, session)
    assert read_session(small_disk / runfolder.SESSION) == session


def test_a_disk_without_room_for_the_reserve_is_refused_at_the_start(small_disk: Path) -> None:
    with pytest.raises(AibenchError, match=r"cannot reserve disk space in .*: No space left on device; make room"):
        JournalWriter(small_disk)


def test_a_session_that_does_not_fit_leaves_the_old_one(small_disk: Path) -> None:
    path = small_disk / runfolder.SESSION
    old = fold(run_events(1))
    write_session(path, old)
    fill(small_disk)
    with pytest.raises(AibenchError, match=r"cannot write .*session\.toml: No space left on device") as caught:
        write_session(path, fold(run_events(100)))
    assert caught.value.code == 3
    assert read_session(path) == old
    assert sorted(each.name for each in small_disk.iterdir()) == ["filler", runfolder.SESSION]


def test_a_disk_that_stays_full_surfaces_at_sync_and_heals_when_room_is_made(small_disk: Path) -> None:
    writer = JournalWriter(small_disk, reserve_bytes=8192)
    writer.append(run_started(1))
    writer.sync()
    note = Notice(t=107.0, level="info", source="test", text="x" * 5000)
    fill(small_disk)

    def write_on() -> None:
        for _ in range(20):
            writer.append(note)
            writer.sync()
            fill(small_disk)

    with pytest.raises(AibenchError, match="No space left on device") as caught:
        write_on()
    assert caught.value.code == 3
    (small_disk / "filler").unlink()
    for event in trial_events("t0001"):
        writer.append(event)
    writer.close()
    assert [trial.outcome for trial in fold(read_events(small_disk / runfolder.JOURNAL)).trials] == ["completed"]


def test_a_read_only_file_system_is_named(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(AibenchError, match="it is mounted read-only: name another folder with --out"):
        files.probe_writable(small_disk / "runs")
    with pytest.raises(AibenchError, match="it is mounted read-only"):
        files.atomic_write(small_disk / "x", b"x")
