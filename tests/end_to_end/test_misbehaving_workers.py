"""A worker that misbehaves fails its own trial with a clear reason, and the run goes on."""

from __future__ import annotations

import pytest

from tests.program import Program, processes_with, run_of

PLAN = """
schema = 1
name = "hostile"
[target]
devices = ["cpu"]
[repetition]
seconds = 0.05
trial_timeout_s = {timeout}
[[scenario]]
id = "hostile/misbehave"
[scenario.parameters]
how = [{how}]
[[scenario]]
id = "harness/floor"
"""

REASONS = {
    "exit": "exit code 7 in phase setup",
    "kill": "killed by SIGKILL in phase setup",
    "segfault": "killed by SIGSEGV in phase setup",
    "hang": "no end within",
    "garbage": "without a result",
    "endless line": "without a result",
    "forged lines": "without a result",
    "flood": "flooded its log",
    "memory": "out of memory",
    "raises": "RuntimeError: bad",
    "escape codes": "its last words:",
}


def run_plan(program: Program, *how: str, timeout: float = 5.0) -> tuple[int, dict[str, dict[str, str]]]:
    """Run the behaviours and a good trial after them; returns the exit code and the trials by variant."""
    plan = program.home / "hostile.toml"
    plan.write_text(PLAN.format(timeout=timeout, how=", ".join(f'"{each}"' for each in how)))
    code, document, err = program.run_json("--plan", str(plan))
    assert "trials" in document, err
    return code, {trial["variant"]: trial for trial in document["trials"]}


@pytest.mark.parametrize("how", REASONS)
def test_misbehaviour_fails_its_trial_alone(hostile: Program, how: str) -> None:
    code, trials = run_plan(hostile, how, timeout=4.0 if how == "hang" else 30.0)
    bad = trials.pop(how)
    (good,) = trials.values()
    assert bad["outcome"] == "failed"
    assert REASONS[how] in bad["reason"], bad["reason"]
    assert "\n" not in bad["reason"] and "\x1b" not in bad["reason"]
    assert good["outcome"] == "completed", good["reason"]
    assert code == 1
    run = run_of(hostile.folders()[0])
    assert list(processes_with(f"AIBENCH_RUN_ID={run}")) == []


def test_a_daemon_that_left_its_worker_is_ended_with_the_trial(hostile: Program) -> None:
    code, trials = run_plan(hostile, "escape")
    assert trials["escape"]["outcome"] == "completed", trials["escape"]["reason"]
    assert code == 0
    run = run_of(hostile.folders()[0])
    assert list(processes_with(f"AIBENCH_RUN_ID={run}")) == []


def test_a_flood_keeps_head_and_tail_and_says_what_was_dropped(hostile: Program) -> None:
    run_plan(hostile, "flood", timeout=30.0)
    (log,) = hostile.folders()[0].glob("logs/t0001.log")
    assert log.stat().st_size < 17 * 1024**2
    assert b"bytes were not kept" in log.read_bytes()


def test_planned_is_reported_even_when_nothing_completes(hostile: Program) -> None:
    code, trials = run_plan(hostile, "exit", "raises", "nothing")
    assert sorted(trial["outcome"] for trial in trials.values()) == ["completed", "completed", "failed", "failed"]
    assert all(trial["reason"] for trial in trials.values() if trial["outcome"] != "completed")
    assert code == 1
