"""`export`: a whole archive in a new file, or nothing."""

from __future__ import annotations

import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.cli.test_list import write_run
from tests.program import Program

NAME = "20260101-000000-quick-00000a"


@pytest.fixture
def run(program: Program) -> Path:
    folder = program.sessions / NAME
    write_run(folder)
    (folder / "logs").mkdir()
    (folder / "logs" / "t0001.log").write_text("said")
    (folder / "scratch" / "t0001").mkdir(parents=True)
    return folder


def names_in(archive: Path) -> list[str]:
    with tarfile.open(archive) as opened:
        return opened.getnames()


CONTENTS = [f"{NAME}/journal.jsonl", f"{NAME}/logs/t0001.log"]


@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "pipe", "device", "folder"])
def test_what_is_there_is_never_replaced(program: Program, run: Path, kind: str) -> None:
    target, precious = program.home / "target", program.home / "precious"
    precious.write_text("keep")
    if kind == "file":
        target.write_text("keep")
    elif kind == "pipe":
        os.mkfifo(target)
    elif kind == "folder":
        target.mkdir()
    elif kind == "device":
        if os.geteuid() != 0:
            pytest.skip("making a device file needs root")
        os.mknod(target, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    else:
        target.symlink_to(precious if kind == "link" else program.home / "nowhere")
    before = target.lstat()
    done = program.call("export", str(run), "--output", str(target), timeout=30)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"cannot write {target}: " in done.stderr
    assert target.lstat() == before
    assert precious.read_text() == "keep"
    assert sorted(path.name for path in program.home.glob("*.tmp")) == []


def test_an_archive_of_before_is_not_replaced(program: Program, run: Path) -> None:
    assert program.call("export", str(run)).returncode == 0
    before = (program.home / f"{NAME}.tar.gz").read_bytes()
    done = program.call("export", str(run))
    assert done.returncode == 2
    assert "it is there already; name another file or remove it" in done.stderr
    assert (program.home / f"{NAME}.tar.gz").read_bytes() == before


@pytest.mark.parametrize("target", ["missing/x.tar.gz", "file/x.tar.gz", "/proc/x.tar.gz", "n" * 300])
def test_a_target_that_cannot_be_written_is_wrong_usage(program: Program, run: Path, target: str) -> None:
    (program.home / "file").touch()
    done = program.call("export", str(run), "--output", target)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot write" in done.stderr


@pytest.mark.parametrize(("inside", "named"), [("", "."), ("logs", "..")])
def test_a_run_folder_named_by_dots_gives_its_name_to_the_archive(
    program: Program, run: Path, inside: str, named: str
) -> None:
    for output in ((), ("--output", "../again.tar.gz" if not inside else "../../again.tar.gz")):
        command = program.command("export", named, *output)
        subprocess.run(command, env=program.environment, cwd=run / inside, check=True, timeout=60)
    assert names_in(run / inside / f"{NAME}.tar.gz") == CONTENTS
    if not inside:  # the archive of before lies in the folder and is none of the run's files
        assert names_in(program.sessions / "again.tar.gz") == CONTENTS


def test_links_and_pipes_in_a_run_folder_stay_out(program: Program, run: Path) -> None:
    os.mkfifo(run / "logs" / "pipe")
    (run / "logs" / "link").symlink_to("/proc/version")
    (run / "series").symlink_to("/proc/self")
    assert program.call("export", str(run), timeout=30).returncode == 0
    assert names_in(program.home / f"{NAME}.tar.gz") == CONTENTS
