"""The guard with real runner processes and real containers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from engine import guard, locks, runfolder
from engine.children import python_command
from engine.events import Event, HandleClosed, HandleOpened
from engine.guard import Guard
from tests.engine.launch.podman import configure, containers_of, new_run, podman, sleeper
from tests.worker.keeping import is_alive, marks, wait_until


def write_journal(folder: Path, *events: Event, tail: bytes = b"") -> None:
    lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
    (folder / runfolder.JOURNAL).write_bytes(lines + tail)


def opened(name: str) -> HandleOpened:
    return HandleOpened(t=1.0, trial="t0001", runtime="podman", name=name)


def closed(name: str) -> HandleClosed:
    return HandleClosed(t=2.0, trial="t0001", name=name)


def guarding(folder: Path, run: str) -> subprocess.Popen[bytes]:
    command = python_command("engine.guard", str(folder), run)
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    configure(tmp_path, monkeypatch)
    run = new_run()
    yield run
    names = podman("ps", "--all", "--filter", f"name={run}", "--format", "{{.Names}}").split()
    for name in names:
        podman("rm", "--force", "--time=0", name)


def test_handles_that_are_open_at_the_end_of_a_torn_journal(tmp_path: Path) -> None:
    write_journal(tmp_path, opened("a"), closed("a"), opened("b"), opened("c"), tail=b'{"event": "handle_clo')
    assert [handle.name for handle in guard.open_handles(tmp_path / runfolder.JOURNAL)] == ["b", "c"]


def test_no_journal_is_nothing_to_guard(tmp_path: Path) -> None:
    assert guard.end_run(tmp_path, "run1")


def test_processes_of_trials_of_a_dead_run_are_ended_and_no_other(tmp_path: Path) -> None:
    """Also one that is stopped; a helper of the runner ends by itself, and another run's trial is none of ours."""
    ours, stopped, helper, other = (
        subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True)
        for environment in (
            marks("run1", "t0001"),
            marks("run1", "t0002"),
            {"AIBENCH_RUN_ID": "run1"},
            marks("run2", "t0001"),
        )
    )
    try:
        stopped.send_signal(signal.SIGSTOP)
        process = guarding(tmp_path, "run1")
        process.communicate()
        assert process.returncode == 0
        assert [each.wait(5) for each in (ours, stopped)] == [-signal.SIGKILL] * 2
        assert [each.poll() for each in (helper, other)] == [None] * 2
    finally:
        for each in (ours, stopped, helper, other):
            each.kill()
            each.wait()


def test_a_run_that_was_resumed_meanwhile_is_its_new_runners(tmp_path: Path) -> None:
    resumed = subprocess.Popen(["sleep", "600"], env=marks("run1", "t0001"))
    try:
        with locks.lock_run_folder(tmp_path):
            process = guarding(tmp_path, "run1")
            process.communicate()
        assert process.returncode == 0
        assert resumed.poll() is None
    finally:
        resumed.kill()
        resumed.wait()


def test_a_killed_runner_leaves_no_container_and_foreign_ones_stay(tmp_path: Path, run: str) -> None:
    ours, twin, finished = (f"aibench-{run}-t000{number}" for number in (1, 2, 3))
    sleeper(ours, f"--label=aibench.run={run}")
    sleeper(twin)
    sleeper(finished, f"--label=aibench.run={run}")
    write_journal(tmp_path, opened(finished), closed(finished), opened(ours), opened(twin))
    runner = (
        "import subprocess, sys, time\n"
        f"command = {python_command('engine.guard', str(tmp_path), run)!r}\n"
        "subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)\n"
        "print('guarded', flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", runner], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    wait_until(lambda: containers_of(run) == [finished])
    names = podman("ps", "--filter", f"name={run}", "--format", "{{.Names}}").split()
    assert set(names) == {twin, finished}


def test_a_container_that_is_still_being_started_when_the_runner_dies(
    tmp_path: Path, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"aibench-{run}-t0001"
    write_journal(tmp_path, opened(name))
    process = guarding(tmp_path, run)
    assert process.stdin is not None
    process.stdin.close()
    sleeper(name, f"--label=aibench.run={run}")
    assert process.wait(30) == 0
    assert containers_of(run) == []


def test_done_ends_the_guard_and_nothing_else(tmp_path: Path, run: str) -> None:
    name = f"aibench-{run}-t0001"
    sleeper(name, f"--label=aibench.run={run}")
    write_journal(tmp_path, opened(name))
    process = guarding(tmp_path, run)
    process.communicate(b"done\n")
    assert process.returncode == 0
    assert containers_of(run) == [name]


def test_the_runners_signals_do_not_end_the_guard(tmp_path: Path) -> None:
    process = guarding(tmp_path, "run1")
    wait_until(lambda: ignores_signals(process.pid))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        process.send_signal(number)
    assert process.poll() is None
    process.communicate(b"done\n")
    assert process.returncode == 0


def ignores_signals(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = int(status.split("SigIgn:")[1].split()[0], 16)
    return all(ignored >> (number - 1) & 1 for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))


def test_a_runner_keeps_a_guard_that_sleeps_before_the_first_trial(tmp_path: Path) -> None:
    warnings: list[str] = []

    async def scene() -> int:
        async with Guard(tmp_path, "run1", warnings.append) as guarding_it:
            assert guarding_it.pid is not None
            assert is_alive(guarding_it.pid)
            assert ignores_signals(guarding_it.pid)
            return guarding_it.pid

    assert not is_alive(asyncio.run(scene()))
    assert warnings == []


def test_a_guard_that_was_killed_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "RESTART_PAUSE_S", 0.01)
    warnings: list[str] = []

    async def scene() -> None:
        async with Guard(tmp_path, "run1", warnings.append) as guarding_it:
            first = guarding_it.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            while guarding_it.pid in (first, None):
                await asyncio.sleep(0.01)

    asyncio.run(scene())
    assert warnings == ["the guard process was killed by signal 9; restarted"]


def test_a_guard_that_was_killed_last_does_not_hold_up_the_runner(tmp_path: Path) -> None:
    async def scene() -> bool:
        async with Guard(tmp_path, "run1", lambda _: None) as guarding_it:
            assert guarding_it.pid is not None
            os.kill(guarding_it.pid, signal.SIGKILL)
        return True

    assert asyncio.run(scene())


def test_a_guard_that_cannot_be_started_is_told_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the system has no process or descriptor left (EAGAIN, EMFILE)."""
    monkeypatch.setattr(guard, "python_command", lambda *_: ["/not/there"])
    monkeypatch.setattr(guard, "RESTART_PAUSE_S", 0.0)
    warnings: list[str] = []

    async def scene() -> None:
        async with Guard(tmp_path, "run1", warnings.append):
            while len(warnings) <= guard.RESTARTS:
                await asyncio.sleep(0.01)

    asyncio.run(scene())
    assert all("could not be started: No such file" in warning for warning in warnings)
    assert "given up" in warnings[-1]
