"""What is left of dead runs: found and ended by their marks, and nothing else touched. Real processes and files."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import locks, runfolder
from engine.control import socket_path
from engine.launch import containers
from engine.sweep import Leftover, clean_up, kill_trial, leftovers
from tests.engine.launch.podman import configure, containers_of, new_run, podman, sleeper
from tests.worker.keeping import marks, wait_until

NAP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A run of our own with a runtime folder of its own; no real containers."""
    with tempfile.TemporaryDirectory() as parent:
        monkeypatch.setenv("AIBENCH_RUNTIME_DIR", f"{parent}/r")
        monkeypatch.setattr("engine.sweep.RUNTIMES", ())
        yield new_run()


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes to be ended, come what may."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def folder_of(parent: Path, run: str) -> Path:
    folder = parent / run
    (folder / runfolder.SCRATCH / "t0001").mkdir(parents=True)
    return folder


def with_folder(run: str, trial: str, folder: Path) -> dict[str, str]:
    return marks(run, trial) | {"AIBENCH_RUN_FOLDER": str(folder)}


def test_a_trial_is_ended_with_all_its_processes_and_no_other(
    run: str, processes: list[subprocess.Popen[bytes]]
) -> None:
    tree = [sys.executable, "-c", "import os, time\nfor _ in range(3): os.fork() or os.setsid()\ntime.sleep(600)"]
    ours = subprocess.Popen(tree, env=marks(run, "t0001"))
    others = [marks(run, "t0002"), marks("another", "t0001"), {"AIBENCH_RUN_ID": run}, {"AIBENCH_TRIAL_ID": "t0001"}]
    bystanders = [subprocess.Popen(NAP, env=environment) for environment in others]
    processes += [ours, *bystanders]
    wait_until(lambda: len(marked(run, "t0001")) == 8)
    assert kill_trial(run, "t0001") == []
    assert marked(run, "t0001") == []
    assert ours.wait(20) == -signal.SIGKILL
    assert [bystander.poll() for bystander in bystanders] == [None] * 4
    assert kill_trial(run, "t0001") == []


def marked(run: str, trial: str) -> list[str]:
    """Living processes with both ids, by a look of the test's own."""
    wanted = {f"{name}={value}".encode() for name, value in marks(run, trial).items()}
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                found.append(entry.name)
        except OSError:
            continue
    return found


def test_a_process_of_a_dead_run_is_found_and_ended(
    tmp_path: Path, run: str, processes: list[subprocess.Popen[bytes]]
) -> None:
    folder = folder_of(tmp_path, run)
    processes.append(subprocess.Popen(NAP, env=with_folder(run, "t0001", folder)))
    wait_until(lambda: marked(run, "t0001") != [])
    (found,) = leftovers(run=run)
    assert (found.kind, found.run, found.name) == ("process", run, str(processes[0].pid))
    assert "whose runner is gone" in found.detail
    assert clean_up([found]) == []
    assert processes[0].wait(20) == -signal.SIGKILL


def test_a_process_of_a_living_run_is_left_alone(
    tmp_path: Path, run: str, processes: list[subprocess.Popen[bytes]]
) -> None:
    folder = folder_of(tmp_path, run)
    processes.append(subprocess.Popen(NAP, env=with_folder(run, "t0001", folder)))
    wait_until(lambda: marked(run, "t0001") != [])
    with locks.lock_run_folder(folder):
        assert leftovers([folder], run) == []
        stale = Leftover("process", run, str(processes[0].pid), "seen before the run was resumed")
        assert clean_up([stale]) == [stale]
    assert processes[0].poll() is None


def test_a_process_number_that_another_program_has_now(run: str, processes: list[subprocess.Popen[bytes]]) -> None:
    processes.append(subprocess.Popen(NAP))
    assert clean_up([Leftover("process", run, str(processes[0].pid), "")]) == []
    assert processes[0].poll() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as another user needs root")
def test_a_process_of_another_user_is_theirs_to_clean(
    tmp_path: Path, run: str, processes: list[subprocess.Popen[bytes]]
) -> None:
    folder = folder_of(tmp_path, run)
    processes.append(subprocess.Popen(["/bin/sleep", "600"], env=with_folder(run, "t0001", folder), user=65534))
    wait_until(lambda: marked(run, "t0001") != [])
    assert leftovers(run=run) == []


def test_a_stale_control_socket_goes_and_a_living_one_stays(run: str) -> None:
    stale, alive = socket_path(run), socket_path("living-run")
    planted = locks.runtime_folder() / "planted.sock"
    planted.write_text("no socket")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(stale))
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(alive))
        living.listen()
        found = leftovers()
        assert [(each.kind, each.name) for each in found if each.kind == "socket"] == [("socket", str(stale))]
        assert clean_up(found) == []
        assert not stale.exists()
        assert alive.exists()
        assert planted.exists()


def test_trial_files_of_a_dead_run_go_and_its_results_stay(tmp_path: Path, run: str) -> None:
    folder = folder_of(tmp_path, run)
    (folder / runfolder.SCRATCH / "t0001" / "cache").write_text("large")
    (folder / runfolder.JOURNAL).write_text("{}\n")
    with locks.lock_run_folder(folder):
        assert leftovers([folder]) == []
    (found,) = leftovers([folder])
    assert (found.kind, found.name) == ("scratch", str(folder / runfolder.SCRATCH))
    assert clean_up([found]) == []
    assert list((folder / runfolder.SCRATCH).iterdir()) == []
    assert (folder / runfolder.JOURNAL).exists()
    assert leftovers([folder]) == []


def test_a_link_out_of_the_scratch_folder_is_not_followed(tmp_path: Path, run: str) -> None:
    folder, precious = folder_of(tmp_path, run), tmp_path / "precious"
    precious.mkdir()
    (precious / "kept").touch()
    (folder / runfolder.SCRATCH / "t0001" / "link").symlink_to(precious)
    clean_up(leftovers([folder]))
    assert (precious / "kept").exists()


def test_containers_of_dead_and_expired_runs_go_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    configure(tmp_path, monkeypatch)
    monkeypatch.setattr("engine.sweep.RUNTIMES", containers.RUNTIMES)
    now, folder = int(time.time()), folder_of(tmp_path, run)
    living = folder_of(tmp_path, f"{run}-living")
    cases = {
        "dead": (folder, now + 600),
        "living": (living, now + 600),
        "expired": ("/on/another/machine", now - 1),
        "elsewhere": ("/on/another/machine", now + 600),
    }
    try:
        for name, (where, expires) in cases.items():
            sleeper(
                f"{run}-{name}",
                f"--label=aibench.run={run}",
                f"--label=aibench.folder={where}",
                f"--label=aibench.expires={expires}",
            )
        with locks.lock_run_folder(living):
            found = [each for each in leftovers(run=run) if each.kind == "container"]
            assert {each.name for each in found} == {f"podman:{run}-dead", f"podman:{run}-expired"}
            assert clean_up(found) == []
        assert set(containers_of(run)) == {f"{run}-living", f"{run}-elsewhere"}
    finally:
        podman("rm", "--force", "--time=0", *containers_of(run))
