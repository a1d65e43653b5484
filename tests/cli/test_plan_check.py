"""plan check says what run would do, from the same places and with the same refusals; and what help tells."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.program import Program
from tui.cli.topics import TOPICS

PLAN = 'schema = 1\n[repetition]\nrepeat = 1\n[[scenario]]\nid = "floor"\n'


def with_input(program: Program, data: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    program.home.mkdir(exist_ok=True)
    command = program.command(*arguments)
    return subprocess.run(
        command, input=data, cwd=program.home, env=program.environment, capture_output=True, timeout=60
    )


def test_plan_on_standard_input_is_checked(program: Program) -> None:
    done = with_input(program, PLAN.encode(), "plan", "check", "-")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"standard input: 1 trial, about ")


@pytest.mark.parametrize("command", [["plan", "check", "-"], ["run", "--plan", "-"]])
def test_input_that_is_no_text_is_one_line(program: Program, command: list[str]) -> None:
    done = with_input(program, b"\xff\xfe\x00", *command)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"aibench-tui: standard input is not UTF-8 text; save the plan as UTF-8\n"


@pytest.mark.parametrize(
    ("kind", "path", "words"),
    [
        ("docker", "", "docker"),
        ("podman", "/nowhere", "podman is not installed"),
        ("nerdctl", "/nowhere", "nerdctl is not installed"),
    ],
)
def test_arm_that_cannot_run_here_is_refused_as_by_run(program: Program, kind: str, path: str, words: str) -> None:
    program.home.mkdir(exist_ok=True)
    plan: Path = program.home / "plan.toml"
    plan.write_text(f'{PLAN}[[environment]]\nkind = "{kind}"\n')
    program.extra_env = {"PATH": path} if path else None
    checked = program.call("plan", "check", str(plan))
    ran = program.call("run", "--plan", str(plan), "--out", str(program.sessions))
    assert (checked.returncode, ran.returncode) == (2, 2)
    assert words in checked.stderr
    assert checked.stdout == ""
    assert checked.stderr == ran.stderr.splitlines(keepends=True)[-1]


@pytest.mark.parametrize("command", [["show"], ["run", "--preset", "floor", "--out"], ["run", "--resume"]])
def test_unknown_user_in_a_path_is_one_line(program: Program, command: list[str]) -> None:
    done = program.call(*command, "~nosuchuser/x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("aibench-tui: ~nosuchuser/x")
    assert done.stderr.count("\n") == 1


def test_help_without_a_topic_lists_them(program: Program) -> None:
    done = program.call("help")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(TOPICS)
    for topic in TOPICS:
        assert program.call("help", topic).returncode == 0
        assert topic in program.call("--help").stdout


def test_help_explains_every_column_of_the_figures(program: Program) -> None:
    told = program.call("help", "figures").stdout
    for word in ("median", "best", "p95", "cv", "n ", "10x605", "no steady state", "medians of the trials"):
        assert word in told
