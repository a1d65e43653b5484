"""What a trial started in sessions of its own is gone two seconds after kill -9, whoever of the chain was killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path

import pytest

from engine import sessions
from engine.session import Session
from engine.worker.keeper import living
from tests.engine.launch.podman import configure, containers_of
from tests.program import Program, processes, processes_with, wait_for, write_plan

GONE_S = 2.0


class Scene:
    """A run whose first trial misbehaves until something is killed; a good trial follows."""

    def __init__(self, program: Program, how: str, env: str = "bare") -> None:
        self.program = program
        plan = write_plan(program, how, env=env, trial_timeout_s=90)
        self.process = program.start("run", "--plan", str(plan), "--out", str(program.sessions))
        wait_for(lambda: b'"name":"setup"' in self._journal(), 30, "the misbehaving trial")
        self.run = program.run_ids()[0]

    def _journal(self) -> bytes:
        return b"".join(path.read_bytes() for path in self.program.sessions.glob("*/journal.jsonl"))

    def pid(self, module: str) -> int:
        """The one process of the run that runs a module."""
        marks = (f"AIBENCH_RUNTIME_DIR={self.program.runtime}", f"AIBENCH_RUN_ID={self.run}")
        (pid,) = [
            pid
            for pid, command in processes_with(*marks)
            if module in (argv := command.split(" ")) or "".join(argv[2:3]).endswith(f"/{module}")
        ]
        return pid

    def of_trials(self) -> list[str]:
        """The command lines of all that carries a trial's id."""
        mark = f"AIBENCH_RUN_ID={self.run}"
        return [
            each.command
            for each in processes()
            if each.has(mark) and any(entry.startswith("AIBENCH_TRIAL_ID=") for entry in each.environment)
        ]

    def await_kids(self) -> None:
        wait_for(lambda: self.of_trials().count("sleep 600") == 3, what="the children")

    def log_says(self, pattern: str) -> int:
        """A number that the worker printed."""
        text = ""

        def found() -> bool:
            nonlocal text
            text = "".join(path.read_text() for path in self.program.sessions.glob("*/logs/t0001.log"))
            return bool(re.search(pattern, text))

        wait_for(found, what=pattern)
        match = re.search(pattern, text)
        assert match is not None
        return int(match.group(1))

    def end(self) -> Session:
        self.process.communicate(timeout=60)
        return sessions.load(self.program.folders()[0])


def kill(*pids: int, number: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        assert pid > 1
        os.kill(pid, number)


def test_children_of_a_killed_keeper(hostile: Program) -> None:
    scene = Scene(hostile, "kids")
    scene.await_kids()
    kill(scene.pid("keeper.py"))
    time.sleep(GONE_S)
    assert "sleep 600" not in scene.of_trials()
    session = scene.end()
    assert [trial.outcome for trial in session.trials] == ["failed", "completed"]
    assert session.trials[0].reason.startswith("its keeper was killed in phase setup")


def test_children_of_a_runner_and_a_keeper_killed_at_once(hostile: Program) -> None:
    scene = Scene(hostile, "kids")
    scene.await_kids()
    kill(scene.pid("engine.runner_main"), scene.pid("keeper.py"))
    time.sleep(GONE_S)
    assert scene.of_trials() == []
    assert [trial.outcome for trial in scene.end().trials] == ["aborted", "not_run"]


def test_a_stopped_keeper_and_stopped_children_of_a_killed_runner(hostile: Program) -> None:
    scene = Scene(hostile, "kids")
    scene.await_kids()
    mark = f"AIBENCH_RUN_ID={scene.run}"
    kids = [pid for pid, command in processes_with(mark) if command == "sleep 600"]
    kill(scene.pid("keeper.py"), *kids, number=signal.SIGSTOP)
    kill(scene.pid("engine.runner_main"))
    time.sleep(GONE_S)
    assert scene.of_trials() == []
    scene.end()


def test_a_child_with_nothing_to_tell_it_by_of_a_killed_keeper(hostile: Program) -> None:
    """Its environment is empty, its session is its own, and it has none of our pipes."""
    scene = Scene(hostile, "nameless")
    child = scene.log_says(r"nameless (\d+)\n")
    assert child in living()
    kill(scene.pid("keeper.py"))
    time.sleep(GONE_S)
    assert child not in living()
    session = scene.end()
    assert [trial.outcome for trial in session.trials] == ["failed", "completed"]
    assert "its keeper was killed" in session.trials[0].reason
    assert session.notices == (), "telemetry and guard are children of the runner too, and stay"


def test_no_process_table_entry_of_a_killed_keepers_trial_stays(hostile: Program) -> None:
    scene = Scene(hostile, "kids")
    scene.await_kids()
    runner = scene.pid("engine.runner_main")
    kill(runner, number=signal.SIGSTOP)  # so that it looks only once all are dead
    kill(scene.pid("keeper.py"))
    kill(runner, number=signal.SIGCONT)
    wait_for(lambda: _zombies(runner) == [], 10, "the runner to reap what it was handed")
    assert [trial.outcome for trial in scene.end().trials] == ["failed", "completed"]


def _zombies(parent: int) -> list[str]:
    """What /proc shows of ended children that `parent` has not asked after."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, ppid = path.read_text().rpartition(")")[2].split()[:2]
            if state == "Z" and int(ppid) == parent:
                found.append(path.parent.name)
    return found


def test_a_killed_guard_is_replaced_and_the_run_says_so(hostile: Program) -> None:
    scene = Scene(hostile, "kids")
    scene.await_kids()
    first = scene.pid("engine.guard")
    kill(first)
    wait_for(lambda: any("engine.guard" in command for _, command in _guards(scene)), what="another guard")
    time.sleep(1.0)  # it ignores signals once it is ready
    runner = scene.pid("engine.runner_main")
    os.killpg(runner, signal.SIGKILL)
    kill(scene.pid("keeper.py"))
    time.sleep(GONE_S)
    assert scene.of_trials() == []
    assert any("guard process was killed by signal 9; restarted" in notice for notice in scene.end().notices)


def _guards(scene: Scene) -> list[tuple[int, str]]:
    return [each for each in processes_with(f"AIBENCH_RUN_ID={scene.run}") if "engine.guard" in each[1]]


def test_the_guard_holds_no_lock_and_sleeps(hostile: Program) -> None:
    scene = Scene(hostile, "kids")
    scene.await_kids()
    guard = scene.pid("engine.guard")
    before = _cpu_ticks(guard)
    time.sleep(1.0)
    assert before == _cpu_ticks(guard)
    held = sorted(int(path.name) for path in Path(f"/proc/{guard}/fd").iterdir())
    assert held == [0, 1, 2]
    assert os.getsid(guard) == guard
    scene.process.terminate()
    scene.end()
    assert guard not in living()


def _cpu_ticks(pid: int) -> list[str]:
    """Of user and system time."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]


@pytest.mark.timeout(180)
def test_a_container_whose_monitor_is_killed(hostile: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes end, but its client is not told."""
    configure(tmp_path, monkeypatch)
    hostile.extra_env = {"CONTAINERS_CONF": os.environ["CONTAINERS_CONF"]}
    scene = Scene(hostile, "hang", env="podman")
    (name,) = containers_of(scene.run)
    (monitor,) = [each.pid for each in processes() if "conmon" in each.command.split(" ")[0] and name in each.command]
    kill(monitor)
    session = scene.end()
    assert [trial.outcome for trial in session.trials] == ["failed", "completed"]
    assert session.trials[0].reason == "its container is gone and its client hangs"
    assert containers_of(scene.run) == []
