"""`aibench-tui run` as a person or a script uses it: flags, outcomes, one clear line for each mistake."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.program import Program, processes_with, wait_for


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.strip().splitlines()[-1]


def test_a_run_ends_with_a_table_and_the_path_of_its_session(program: Program) -> None:
    done = program.call("run", "--preset", "floor", "--out", str(program.sessions))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert "harness/floor no-op" in lines
    assert any(re.match(r"  call_overhead +bare +[0-9.]+ ns .* 3x\d+$", line) for line in lines)
    assert lines[-1].startswith("session: ")
    assert Path(lines[-1].removeprefix("session: ")).is_file()
    assert "[3/3] harness/floor" in done.stderr


def test_json_is_one_document_and_nothing_else(program: Program) -> None:
    code, document, _ = program.run_json("--preset", "floor", "--repeat", "2")
    assert code == 0
    assert document["outcome"] == "completed"
    assert [trial["outcome"] for trial in document["trials"]] == ["completed", "completed"]
    first, second = document["measurements"]
    assert first["n"] > 0 and first["median"] > 0
    assert first["facts"]["framework"] == "python"
    assert second["repeat"] == 2


def test_every_arm_does_the_same_count_of_work(program: Program) -> None:
    _, document, _ = program.run_json("--preset", "floor", "--repeat", "3")
    counts = {each["n"] + each["warmup_n"] for each in document["measurements"]}
    assert len(document["measurements"]) == 3
    assert len(counts) == 1


def test_gemm_by_its_last_name_with_the_torch_that_is_there(program: Program) -> None:
    pytest.importorskip("torch", reason="cannot here: no torch in the tests' interpreter")
    plan = program.home / "small.toml"
    plan.write_text(
        'schema = 1\n[[scenario]]\nid = "gemm"\n[scenario.parameters]\n'
        'dtypes = ["fp32", "tf32"]\nshapes = ["64x48x32"]\n[repetition]\nseconds = 0.1\n'
    )
    code, document, err = program.run_json("--plan", str(plan), "--python", sys.executable, "--devices", "cpu")
    assert code == 0, err
    (measurement,) = document["measurements"]
    assert measurement["scenario"] == "compute/gemm"
    assert measurement["variant"] == "fp32 64x48x32"
    assert measurement["unit"] == "TFLOP/s"
    assert measurement["work"] == 2 * 64 * 48 * 32
    outcomes = {trial["variant"]: (trial["outcome"], trial["reason"]) for trial in document["trials"]}
    assert outcomes["tf32 64x48x32"][0] == "unsupported"
    assert "not supported by device" in outcomes["tf32 64x48x32"][1]
    assert re.search(rf"^workers: torch \S+ for cpu at {re.escape(sys.executable)}", err, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--scenario", "gem"], ["gem", "gemm"]),
        (["run", "--preset", "quik"], ["quik", "quick"]),
        (["run", "--preset", "floor", "--devices", "97"], ["97"]),
        (["run", "--preset", "floor", "--env", "bare,cpus=2"], ["cpus"]),
        (["run", "--preset", "floor", "--env", "chroot"], ["chroot", "podman"]),
        (["run", "--preset", "floor", "--repeat", "0"], ["repeat"]),
        (["run", "--preset", "floor", "--seconds", "nan"], ["seconds"]),
        (["run", "--plan", "not-there.toml"], ["not-there.toml"]),
        (["run", "--resume", "./not-there"], ["not-there"]),
        (["run", "--scenario", "gemm", "--python", "/not/there"], ["/not/there"]),
        (["run", "--scenario", "gemm", "--framework", "tensorflow"], ["tensorflow", "torch"]),
        (["run", "--preset", "floor", "--out", "/proc/nowhere"], ["/proc/nowhere"]),
        (["frobnicate"], ["frobnicate", "run"]),
        (["show", "not-there"], ["no sessions", "run"]),
        (["show", "./not-there"], ["not-there", "list"]),
        (["plan", "check", "/dev/null/plan"], ["/dev/null/plan"]),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(program: Program, arguments: list[str], words: list[str]) -> None:
    done = program.call(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert last_line(done).startswith("aibench-tui: ")
    for word in words:
        assert word in last_line(done)
    assert "Traceback" not in done.stderr
    assert program.folders() == []


def test_a_wrong_key_names_the_nearest_one(program: Program) -> None:
    plan = program.home / "plan.toml"
    plan.write_text('schema = 1\n[repetition]\nrepeats = 3\n[[scenario]]\nid = "harness/floor"\n')
    done = program.call("run", "--plan", str(plan))
    assert done.returncode == 2
    assert "repeats" in last_line(done) and "'repeat'" in last_line(done)


def test_a_relative_interpreter_is_meant_from_here(program: Program) -> None:
    (program.home / "py").symlink_to("/bin/false")
    done = program.call("run", "--scenario", "gemm", "--python", "./py", "--out", str(program.sessions))
    assert done.returncode == 2
    assert str(program.home / "py") in last_line(done)
    assert "is not there" not in last_line(done)


def test_no_arguments_and_no_terminal_gives_help_and_exit_2(program: Program) -> None:
    done = program.call()
    assert done.returncode == 2
    assert done.stdout == ""
    assert "usage: aibench-tui" in done.stderr


def test_a_second_run_on_the_same_device_names_the_holder(hostile: Program) -> None:
    plan = hostile.home / "hang.toml"
    plan.write_text(
        'schema = 1\n[target]\ndevices = ["cpu"]\n[[scenario]]\nid = "misbehave"\n'
        '[scenario.parameters]\nhow = ["hang"]\n'
    )
    first = hostile.start("run", "--plan", str(plan), "--out", str(hostile.sessions))
    try:
        wait_for(hostile.folders, what="the first run")
        (run,) = hostile.run_ids()
        second = hostile.call("run", "--preset", "floor", "--devices", "cpu", "--out", str(hostile.sessions))
        assert second.returncode == 4
        assert run in last_line(second) and "cpu" in last_line(second)
    finally:
        first.send_signal(signal.SIGINT)
        _, err = first.communicate(timeout=30)
    assert first.returncode == 130, err
    assert list(processes_with(f"AIBENCH_RUN_ID={run}")) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_stops_the_run_and_keeps_what_is_finished(hostile: Program, number: signal.Signals, code: int) -> None:
    plan = hostile.home / "hang.toml"
    plan.write_text(
        'schema = 1\n[target]\ndevices = ["cpu"]\n[repetition]\nseconds = 0.05\n[[scenario]]\nid = "floor"\n'
        '[[scenario]]\nid = "misbehave"\n[scenario.parameters]\nhow = ["hang"]\n'
    )
    process = hostile.start("run", "--plan", str(plan), "--json", "--out", str(hostile.sessions))
    wait_for(lambda: hostile.folders() and _hangs(hostile), what="the hanging trial")
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    document = json.loads(out)
    assert document["outcome"] == "aborted"
    assert [trial["outcome"] for trial in document["trials"]] == ["completed", "aborted"]
    assert len(document["measurements"]) == 1


def test_a_signal_before_the_start_leaves_nothing(program: Program) -> None:
    slow = program.home / "slow-python"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    process = program.start("run", "--scenario", "gemm", "--python", str(slow), "--out", str(program.sessions))
    marks = f"AIBENCH_RUNTIME_DIR={program.runtime}"
    wait_for(lambda: any("engine.runner" in command for _, command in processes_with(marks)), what="the runner")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 143, err
    assert err.splitlines()[-1] == b"stopped before it started"
    wait_for(lambda: not list(processes_with(marks)), 5, "the end of the runner and of what it asked")
    assert program.folders() == []


def _hangs(program: Program) -> bool:
    """Whether the second trial, the one that hangs, has started."""
    journal = program.folders()[0] / "journal.jsonl"
    done, ended, rest = journal.read_bytes().partition(b'"trial_ended"') if journal.exists() else (b"", b"", b"")
    return bool(done and ended) and b'"trial_started"' in rest


def test_resume_goes_on_where_a_stop_left_off(hostile: Program) -> None:
    test_a_signal_stops_the_run_and_keeps_what_is_finished(hostile, signal.SIGTERM, 143)
    (folder,) = hostile.folders()
    before = json.loads(hostile.call("show", str(folder), "--json").stdout)
    process = hostile.start("run", "--resume", str(folder), "--json")
    wait_for(lambda: b'"trial_started"' in _after_resume(folder), what="the trial of the resumed run")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    after = json.loads(out)
    assert after["measurements"] == before["measurements"]
    assert [trial["outcome"] for trial in after["trials"]] == ["completed", "aborted"]
    assert b"[2/2]" in err
    assert b"[1/2]" not in err, "what was told before the stop is not told again"


def _after_resume(folder: Path) -> bytes:
    return (folder / "journal.jsonl").read_bytes().partition(b'"run_resumed"')[2]


def test_resume_of_a_completed_run_runs_nothing_again(program: Program) -> None:
    program.run_json("--preset", "floor", "--repeat", "2")
    (folder,) = program.folders()
    before = json.loads(program.call("show", str(folder), "--json").stdout)
    done = program.call("run", "--resume", str(folder), "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["measurements"] == before["measurements"]


def test_flags_that_resume_cannot_follow_are_refused(program: Program) -> None:
    program.run_json("--preset", "floor")
    done = program.call("run", "--resume", str(program.folders()[0]), "--seconds", "3")
    assert done.returncode == 2
    assert "--seconds" in last_line(done)


def test_a_closed_pipe_ends_quietly(program: Program) -> None:
    program.run_json("--preset", "floor")
    folder = program.folders()[0]
    reader, writer = os.pipe()
    os.close(reader)
    done = program.call("show", str(folder), stdout=writer)
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == ""


def test_a_full_standard_output_is_one_line(program: Program) -> None:
    program.run_json("--preset", "floor")
    with open("/dev/full", "wb") as full:
        done = program.call("show", str(program.folders()[0]), stdout=full)
    assert done.returncode == 3
    assert last_line(done).startswith("aibench-tui: ") and "No space left" in last_line(done)
    assert "Traceback" not in done.stderr


def test_export_packs_the_session_and_nothing_that_is_not_its_own(program: Program) -> None:
    program.run_json("--preset", "floor")
    (folder,) = program.folders()
    (folder / "link").symlink_to("/etc/passwd")
    target = program.home / "one.tar.gz"
    done = program.call("export", str(folder), "--output", str(target))
    assert done.returncode == 0, done.stderr
    assert target.stat().st_mode & 0o777 == 0o600
    with tarfile.open(target) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"journal.jsonl", "session.toml", "plan.toml"} <= names
    assert not any("stage" in name or "link" in name or "lock" in name for name in names)
    again = program.home / "two.tar.gz"
    program.call("export", str(folder), "--output", str(again))
    assert target.read_bytes() == again.read_bytes()


def test_recover_writes_the_session_of_a_run_that_died(hostile: Program) -> None:
    plan = hostile.home / "hang.toml"
    plan.write_text(
        'schema = 1\n[target]\ndevices = ["cpu"]\n[repetition]\nseconds = 0.05\n[[scenario]]\nid = "floor"\n'
        '[[scenario]]\nid = "misbehave"\n[scenario.parameters]\nhow = ["hang"]\n'
    )
    process = hostile.start("run", "--plan", str(plan), "--out", str(hostile.sessions))
    wait_for(lambda: hostile.folders() and _hangs(hostile), what="the hanging trial")
    (folder,) = hostile.folders()
    refused = hostile.call("recover", str(folder))
    assert refused.returncode == 4, refused.stderr
    process.kill()
    process.wait()
    wait_for(lambda: not list(processes_with(f"AIBENCH_RUN_ID={hostile.run_ids()[0]}")), what="its end")
    (folder / "session.toml").unlink(missing_ok=True)
    done = hostile.call("recover", str(folder))
    assert done.returncode == 0, done.stderr
    assert (folder / "session.toml").is_file()
    shown = json.loads(hostile.call("show", str(folder / "session.toml"), "--json").stdout)
    assert shown["outcome"] == "aborted"
    assert [trial["outcome"] for trial in shown["trials"]] == ["completed", "aborted"]
