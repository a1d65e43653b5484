"""The commands beside run: help, versions, plans, lists, doctor, completion."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess

import pytest

from engine import exits
from engine.series import SeriesWriter
from engine.telemetry.samples import Sample
from engine.version import VERSION
from tests.program import Program


def test_version(program: Program) -> None:
    done = program.call("--version")
    assert (done.returncode, done.stdout) == (0, f"aibench-tui {VERSION}\n")


def test_help_names_every_command(program: Program) -> None:
    done = program.call("--help")
    assert done.returncode == 0
    for command in ("run", "show", "list", "export", "recover", "clean", "doctor", "plan", "completion"):
        assert command in done.stdout


@pytest.mark.parametrize("topic", ["exit-codes", "environment", "files"])
def test_help_topics(program: Program, topic: str) -> None:
    done = program.call("help", topic)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) >= 4


def test_exit_codes_are_told_from_the_table_that_is_used(program: Program) -> None:
    told = program.call("help", "exit-codes").stdout
    assert all(meaning in told for meaning in exits.MEANINGS.values())


def test_plan_init_writes_a_plan_that_plan_check_takes(program: Program) -> None:
    target = program.home / "plan.toml"
    done = program.call("plan", "init", str(target), "--preset", "floor")
    assert done.returncode == 0, done.stderr
    checked = program.call("plan", "check", str(target))
    assert checked.returncode == 0, checked.stderr
    assert "3 trials" in checked.stdout
    again = program.call("plan", "init", str(target))
    assert again.returncode == 2
    assert "is there already" in again.stderr


def test_a_plan_on_standard_input(program: Program) -> None:
    with program.start(
        "run", "--plan", "-", "--json", "--out", str(program.sessions), stdin=subprocess.PIPE
    ) as process:
        out, err = process.communicate(b'schema = 1\nname = "piped"\n[[scenario]]\nid = "floor"\n', timeout=60)
    assert process.returncode == 0, err
    assert json.loads(out)["name"] == "piped"


def test_list_shows_a_damaged_session_with_its_reason(program: Program) -> None:
    assert "no sessions" in program.call("list", "--folder", str(program.sessions)).stdout
    program.run_json("--preset", "floor")
    damaged = program.sessions / "20200101-000000-damaged-abcdef"
    damaged.mkdir()
    (damaged / "journal.jsonl").write_bytes(b'{"event":"run_started","schema":99}\n')
    done = program.call("list", "--folder", str(program.sessions), "--json")
    rows = {row["session"]: row for row in json.loads(done.stdout)["sessions"]}
    assert rows[damaged.name]["outcome"] == "damaged"
    assert "99" in rows[damaged.name]["reason"]
    assert sorted(row["outcome"] for row in rows.values()) == ["completed", "damaged"]


def test_show_finds_a_session_by_a_part_of_its_name(program: Program) -> None:
    program.run_json("--preset", "floor")
    name = program.folders()[0].name
    for wanted in ("latest", name, name[-6:]):
        done = program.call("show", wanted, "--folder", str(program.sessions))
        assert done.returncode == 0, done.stderr
        assert "harness/floor" in done.stdout


def test_the_series_are_csv(program: Program) -> None:
    program.run_json("--preset", "floor")
    series = program.folders()[0] / "series"
    shutil.rmtree(series)
    series.mkdir()
    writer = SeriesWriter(series, clock=lambda: 10.0, wall=lambda: 1_800_000_000.0)
    for t, used in ((10.0, 4e9), (11.0, 6e9)):
        writer.add(Sample(t=t, device="host", provider="host", values={"memory_used_bytes": used}), in_trial=True)
    writer.close()
    done = program.call("show", "latest", "--folder", str(program.sessions), "--series")
    assert done.returncode == 0, done.stderr
    (row,) = [each for each in csv.DictReader(io.StringIO(done.stdout)) if each["window_s"] == "5"]
    assert (row["device"], row["quantity"], row["n"]) == ("host", "memory_used_bytes", "2")
    assert [float(row[name]) for name in ("min", "mean", "max")] == [4e9, 5e9, 6e9]
    assert row["time_utc"].startswith("2027-01-15T08:00:00")
    alone = program.folders()[0] / "session.toml"
    refused = program.call("show", str(alone), "--series")
    assert refused.returncode == 2
    assert "no telemetry series" in refused.stderr


def test_doctor_says_what_it_found(program: Program) -> None:
    done = program.call("doctor", "--json", "--folder", str(program.sessions))
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert {"program", "device", "sessions folder", "runtime folder", "device locks", "left-overs"} <= set(checks)
    problems = [check for check in checks.values() if check["state"] == "problem"]
    assert done.returncode == (exits.NOT_READY if problems else exits.DONE)


def test_doctor_says_where_sessions_cannot_be_written(program: Program) -> None:
    done = program.call("doctor", "--folder", "/proc/nowhere")
    assert done.returncode == 4
    assert "/proc/nowhere" in done.stdout


def test_doctor_without_the_needed_framework_is_not_ready(program: Program) -> None:
    done = program.call("doctor", "--need", "torch", "--python", "/bin/false")
    assert done.returncode == 4
    assert "/bin/false" in done.stderr


def test_clean_says_that_nothing_is_left(program: Program) -> None:
    program.run_json("--preset", "floor")
    done = program.call("clean", "--folder", str(program.sessions))
    assert done.returncode == 0, done.stderr
    assert "nothing" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_code(program: Program, shell: str) -> None:
    done = program.call("completion", shell)
    assert done.returncode == 0
    assert "aibench-tui" in done.stdout


def test_bash_completes_commands_scenarios_and_sessions(program: Program) -> None:
    program.run_json("--preset", "floor")
    for line, expected in (("aibench-tui ru", "run"), ("aibench-tui run --scenario compute/", "compute/gemm")):
        environment = {
            **program.environment,
            "_ARGCOMPLETE": "1",
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
            "_ARGCOMPLETE_COMP_WORDBREAKS": " ",
            "IFS": "\n",
        }
        done = subprocess.run(
            ["bash", "-c", 'exec 8>&1; exec "$@" 9>&2', "bash", *program.command()],
            env=environment,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert expected in done.stdout.decode(), done.stderr
