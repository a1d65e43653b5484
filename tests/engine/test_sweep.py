"""What is left of dead runs: found and ended by their marks, and nothing else touched. Real processes and files."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine import locks, runfolder
from engine.children import python_command
from engine.control import socket_path
from engine.errors import AibenchError
from engine.kill import kill_trial
from engine.launch import containers
from engine.run_state import held_over
from engine.sweep import Leftover, clean_up, leftovers, look
from tests.engine.launch.podman import configure, containers_of, podman, sleeper
from tests.worker.keeping import marks, wait_until

NAP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A run of our own with a runtime folder of its own; no real containers."""
    with tempfile.TemporaryDirectory() as parent:
        monkeypatch.setenv("AIBENCH_RUNTIME_DIR", f"{parent}/r")
        monkeypatch.setattr("engine.sweep.RUNTIMES", ())
        yield new_run()


def new_run() -> str:
    """A run id that nothing else has."""
    return f"20260101-000000-{secrets.token_hex(3)}"


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes to be ended, come what may."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def folder_of(parent: Path, run: str) -> Path:
    """What is left of a run that is over, as far as that matters here."""
    folder = parent / run
    (folder / runfolder.SCRATCH / "t0001").mkdir(parents=True)
    (folder / runfolder.LOCK).touch()
    (folder / runfolder.JOURNAL).write_text(start_of(run))
    return folder


def start_of(run: str) -> str:
    return json.dumps({"event": "run_started", "t": 1.0, "run": run, "trials": []}) + "\n"


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
    assert found.detail == f"process {processes[0].pid} (python) of {run}".replace("python", comm(processes[0].pid))
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
        stale = Leftover("process", run, str(processes[0].pid), "seen before it was resumed", str(folder))
        assert clean_up([stale]) == [stale]
    assert processes[0].poll() is None


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))


def link_to_it(folder: Path) -> None:
    rename(folder)
    folder.symlink_to(folder.with_name("moved"))


def plant(name: str, kind: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        if kind == "pipe":
            os.mkfifo(folder / name)
        elif kind == "link":
            (folder / name).symlink_to("/proc/version")
        elif kind != "nothing":
            (folder / name).write_text(kind)

    return spoil


DOUBTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "moved": (rename, "folder is not there"),
    "link": (link_to_it, "folder is a link"),
    "no lock": (plant(runfolder.LOCK, "nothing"), "run.lock is not there"),
    "pipe as lock": (plant(runfolder.LOCK, "pipe"), "run.lock cannot be read: it is not a plain file"),
    "link as lock": (plant(runfolder.LOCK, "link"), "run.lock is a link"),
    "no journal": (plant(runfolder.JOURNAL, "nothing"), "journal is not there"),
    "pipe as journal": (plant(runfolder.JOURNAL, "pipe"), "journal cannot be read: is no plain file"),
    "link as journal": (plant(runfolder.JOURNAL, "link"), "journal is a link"),
    "another run": (plant(runfolder.JOURNAL, start_of("20250101-000000-abcdef")), "folder is another run's"),
    "another program": (plant(runfolder.JOURNAL, '{"event": "boot", "run": "1"}\n'), "journal is not a run's"),
    "foreign run": (plant(runfolder.JOURNAL, start_of("nightly")), "journal is not a run's"),
    "late start": (plant(runfolder.JOURNAL, "{}\n" + start_of("20250101-000000-abcdef")), "journal is not a run's"),
    "nested": (plant(runfolder.JOURNAL, "[" * 100_000 + "\n"), "journal is not a run's"),
    "endless line": (plant(runfolder.JOURNAL, " " * 5_000_000), "journal is not a run's"),
}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_a_process_is_left_alone_where_its_run_may_not_be_over(
    tmp_path: Path, run: str, processes: list[subprocess.Popen[bytes]], doubt: str
) -> None:
    folder, (spoil, why) = folder_of(tmp_path, run), DOUBTS[doubt]
    processes.append(subprocess.Popen(NAP, env=with_folder(run, "t0001", folder)))
    wait_until(lambda: marked(run, "t0001") != [])
    (before,) = leftovers(run=run)
    spoil(folder)
    assert leftovers(run=run) == []
    (found,) = [each for each in look() if each.run == run]
    assert found.why == why
    assert clean_up([before, found]) == [before, found]
    assert processes[0].poll() is None


def test_a_run_that_cannot_be_looked_at_is_left_alone(
    tmp_path: Path, run: str, processes: list[subprocess.Popen[bytes]]
) -> None:
    """With all descriptors in use (EMFILE), and as another user."""
    folder = folder_of(tmp_path, run)
    script = (
        "import os, resource\n"
        "from pathlib import Path\n"
        "from engine.run_state import NotOver, Running, held_over\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "{how}\n"
        "try:\n"
        f"    held_over(Path({run!r}), {run!r}).__enter__()\n"
        "except NotOver as error:\n"
        "    print(type(error).__name__, error.why)\n"
    )
    folder.chmod(0o700)
    cases = {"resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))": "NotOver folder cannot be read: Too many open files"}
    if os.geteuid() == 0:
        cases["os.setuid(65534)"] = "NotOver folder is closed to us"
    for how, said in cases.items():
        command = [sys.executable, "-c", script.replace("{how}", how)]
        assert subprocess.run(command, capture_output=True, text=True).stdout.strip() == said


def test_a_bystander_with_the_mark_of_a_dead_run_is_left_alone(
    tmp_path: Path, run: str, processes: list[subprocess.Popen[bytes]]
) -> None:
    """The run's id alone, or with a folder that is not there, or is no full path, says nothing."""
    folder = folder_of(tmp_path, run)
    elsewhere = ["", "/nonexistent", os.path.relpath(folder), str(tmp_path)]
    bystanders = [
        subprocess.Popen(NAP, env=marks(run, "t0001") | ({"AIBENCH_RUN_FOLDER": where} if where else {}))
        for where in elsewhere
    ]
    ours = subprocess.Popen(NAP, env=with_folder(run, "t0001", folder))
    processes += [ours, *bystanders]
    wait_until(lambda: len(marked(run, "t0001")) == 5)
    assert clean_up(leftovers(run=run)) == []
    assert ours.wait(20) == -signal.SIGKILL
    assert [bystander.poll() for bystander in bystanders] == [None] * 4


def test_the_guard_of_a_dead_run_is_none_of_its_leftovers(
    tmp_path: Path, run: str, processes: list[subprocess.Popen[bytes]]
) -> None:
    folder = folder_of(tmp_path, run)
    environment = os.environ | with_folder(run, "t0001", folder)
    command = python_command("engine.guard", str(folder), run)
    guard = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)
    ours = subprocess.Popen(NAP, env=with_folder(run, "t0001", folder))
    processes += [guard, ours]
    wait_until(lambda: len(marked(run, "t0001")) == 2)
    found = leftovers(run=run)
    assert [each.name for each in found] == [str(ours.pid)]
    assert clean_up(found) == []
    assert guard.poll() is None
    guard.communicate(b"done\n")


def test_a_run_cannot_be_resumed_while_its_remains_are_removed(tmp_path: Path, run: str) -> None:
    folder = folder_of(tmp_path, run)
    with held_over(folder, run) as over:
        assert over.run == run
        assert not locks.is_running(folder)
        with pytest.raises(AibenchError), locks.lock_run_folder(folder):
            pass


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
    stale, alive, foreign = socket_path(run), socket_path(new_run()), socket_path("agent")
    planted = socket_path(new_run())
    planted.write_text("no socket")
    for path in (stale, foreign):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(alive))
        living.listen()
        found = leftovers()
        assert [(each.kind, each.name) for each in found if each.kind == "socket"] == [("socket", str(stale))]
        assert clean_up(found) == []
        assert not stale.exists()
        assert alive.exists()
        assert planted.exists()
        assert foreign.exists()


def test_trial_files_of_a_dead_run_go_and_its_results_stay(tmp_path: Path, run: str) -> None:
    folder = folder_of(tmp_path, run)
    (folder / runfolder.SCRATCH / "t0001" / "cache").write_text("large")
    with locks.lock_run_folder(folder):
        assert leftovers([folder]) == []
    (found,) = leftovers([folder])
    assert (found.kind, found.name) == ("scratch", str(folder / runfolder.SCRATCH))
    assert clean_up([found]) == []
    assert list((folder / runfolder.SCRATCH).iterdir()) == []
    assert (folder / runfolder.JOURNAL).exists()
    assert leftovers([folder]) == []


@pytest.mark.parametrize("doubt", [doubt for doubt in DOUBTS if doubt != "another run"])
def test_trial_files_are_left_alone_where_their_run_may_not_be_over(tmp_path: Path, run: str, doubt: str) -> None:
    folder, (spoil, why) = folder_of(tmp_path, run), DOUBTS[doubt]
    (before,) = leftovers([folder])
    spoil(folder)
    found = [each for each in look([folder]) if each.kind == "scratch"]
    assert [each.why for each in found] == ([] if doubt == "moved" else [why])
    assert clean_up([before, *found]) == [before, *found]
    assert [path.name for path in tmp_path.glob(f"*/{runfolder.SCRATCH}/*")].count("t0001") >= 1


def test_what_is_no_trial_folder_stays_in_the_scratch_folder(tmp_path: Path, run: str) -> None:
    folder = folder_of(tmp_path, run)
    scratch, precious = folder / runfolder.SCRATCH, tmp_path / "precious"
    (precious / "deep").mkdir(parents=True)
    for name in ("results", "t1", "t0001x", "t0002\n", "t\u0660\u0660\u0660\u0662"):
        (scratch / name).mkdir()
    (scratch / "t0003").symlink_to(precious)
    (scratch / "t0004").write_text("a file")
    assert clean_up(leftovers([folder])) == []
    assert not (scratch / "t0001").exists()
    assert len(list(scratch.iterdir())) == 7
    assert (precious / "deep").is_dir()


def test_a_scratch_folder_that_is_a_link_is_not_followed(tmp_path: Path, run: str) -> None:
    folder = folder_of(tmp_path, run)
    (folder / runfolder.SCRATCH).rename(tmp_path / "precious")
    (folder / runfolder.SCRATCH).symlink_to(tmp_path / "precious")
    found = leftovers([folder])
    assert clean_up(found) == found
    assert (tmp_path / "precious" / "t0001").is_dir()


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
    moved = str(folder_of(tmp_path, new_run()))
    cases: dict[str, dict[str, str | int | Path]] = {
        "dead": {"run": run, "trial": "t0001", "folder": folder, "expires": now + 600},
        "expired": {"run": run, "trial": "t0001", "folder": "/on/another/machine", "expires": now - 1},
        "elsewhere": {"run": run, "trial": "t0001", "folder": "/on/another/machine", "expires": now + 600},
        "foreign": {"run": run, "trial": "t0001", "folder": moved, "expires": now + 600},
        "unlabelled": {"run": run},
        "no-expiry": {"run": run, "trial": "t0001", "folder": folder},
        "no-trial": {"run": run, "folder": folder, "expires": now - 1},
    }
    try:
        for name, labels in cases.items():
            sleeper(f"{run}-{name}", *(f"--label=aibench.{label}={value}" for label, value in labels.items()))
        with locks.lock_run_folder(folder):
            assert [each.name for each in leftovers(run=run)] == [f"podman:{run}-expired"]
        seen = {each.name.removeprefix(f"podman:{run}-"): each for each in look() if each.run == run}
        lacking = "it lacks labels that ours have"
        assert {name: each.why for name, each in seen.items()} == {
            "dead": "",
            "expired": "",
            "elsewhere": "folder is not there",
            "foreign": "folder is another run's",
            **dict.fromkeys(("unlabelled", "no-expiry", "no-trial"), lacking),
        }
        with locks.lock_run_folder(folder):
            assert clean_up([seen["dead"]]) == [seen["dead"]]
        assert clean_up([seen["dead"], seen["expired"]]) == []
        assert set(containers_of(run)) == {f"{run}-{name}" for name in cases if seen[name].why}
    finally:
        podman("rm", "--force", "--time=0", *containers_of(run))
