"""Bare metal beside a real podman container, out of one plan."""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
from pathlib import Path

import pytest

from engine import sessions
from tests.engine.launch.podman import configure, containers_of
from tests.program import Program, processes_with, run_of, wait_for

HANG = """schema = 1
[target]
devices = ["cpu"]
[[environment]]
kind = "podman"
[[scenario]]
id = "misbehave"
[scenario.parameters]
how = ["hang"]
"""


@pytest.fixture(autouse=True)
def podman(hostile: Program, program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that works on this machine, for the program as for the test."""
    configure(tmp_path, monkeypatch)
    for each in (hostile, program):
        each.extra_env = {"CONTAINERS_CONF": os.environ["CONTAINERS_CONF"]}


def test_two_arms_in_balanced_blocks_do_the_same_work(program: Program) -> None:
    code, document, err = program.run_json(
        "--preset", "floor", "--env", "bare", "--env", "podman,cpus=0.5,name=half", "--repeat", "4", "--seconds", "0.05"
    )
    assert code == 0, err
    order = [trial["environment"] for trial in document["trials"]]
    assert len(order) == 8
    assert [trial["outcome"] for trial in document["trials"]] == ["completed"] * 8
    for first, second in itertools.pairwise(range(0, 8, 2)):
        pair = order[first : first + 2]
        assert sorted(pair) == ["bare", "half"]
        if first % 4 == 0:
            assert order[second : second + 2] == pair[::-1]
    counts = {each["n"] + each["warmup_n"] for each in document["measurements"]}
    assert len(counts) == 1
    assert containers_of(document["run"]) == []
    facts = document["fingerprint"]
    assert facts["arm_bare_runtime"] == "none"
    assert facts["arm_half_limit_cpus"] == "0.5"
    assert "podman" in facts["arm_half_runtime"]


def test_the_cost_of_the_container_is_printed_with_its_interval(program: Program) -> None:
    done = program.call(
        "run", "--preset", "floor", "--env", "bare", "--env", "podman", "--repeat", "6", "--seconds", "0.05",
        "--out", str(program.sessions),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "harness/floor no-op: podman against bare" in done.stdout
    assert re.search(r"call_overhead .* ns +[+-][0-9.]+ % \[[+-][0-9.]+, [+-][0-9.]+\] +6\n", done.stdout), done.stdout


def test_a_runtime_that_is_not_installed_is_refused_before_any_load(program: Program) -> None:
    done = program.call("run", "--preset", "floor", "--env", "nerdctl,image=x", "--out", str(program.sessions))
    assert done.returncode == 2
    assert "nerdctl" in done.stderr.splitlines()[-1]
    assert program.folders() == []


def test_a_killed_runner_leaves_no_container(hostile: Program) -> None:
    plan = hostile.home / "plan.toml"
    plan.write_text(HANG)
    process = hostile.start("run", "--plan", str(plan), "--out", str(hostile.sessions))
    wait_for(lambda: hostile.run_ids() and containers_of(hostile.run_ids()[0]), what="the container")
    run = run_of(hostile.folders()[0])
    marks = (f"AIBENCH_RUNTIME_DIR={hostile.runtime}", f"AIBENCH_RUN_ID={run}")
    (runner,) = [pid for pid, command in processes_with(*marks) if "engine.runner" in command]
    os.kill(runner, signal.SIGKILL)
    time.sleep(2.0)
    assert containers_of(run) == []
    assert [command for _, command in processes_with(*marks) if "worker/main.py" in command] == []
    process.wait(timeout=30)
    assert [trial.outcome for trial in sessions.load(hostile.folders()[0]).trials] == ["aborted"]


def test_a_killed_container_fails_its_trial_alone(hostile: Program) -> None:
    plan = hostile.home / "plan.toml"
    plan.write_text(HANG + '[[scenario]]\nid = "floor"\n')
    process = hostile.start("run", "--plan", str(plan), "--out", str(hostile.sessions))
    wait_for(lambda: hostile.run_ids() and containers_of(hostile.run_ids()[0]), what="the container")
    run = run_of(hostile.folders()[0])
    wait_for(lambda: _workers(run), what="the worker")
    os.kill(_workers(run)[0], signal.SIGKILL)
    process.communicate(timeout=60)
    trials = sessions.load(hostile.folders()[0]).trials
    assert [trial.outcome for trial in trials] == ["failed", "completed"]
    assert "SIGKILL" in trials[0].reason
    assert containers_of(run) == []


def _workers(run: str) -> list[int]:
    found = processes_with(f"AIBENCH_RUN_ID={run}")
    return [pid for pid, command in found if "worker/main.py" in command and "keeper.py" not in command]
