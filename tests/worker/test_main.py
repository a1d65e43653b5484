"""Real workers, started by path as a keeper starts them."""

from __future__ import annotations

import ast
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.driving import AHEAD_S, ROOT, a_spec, drive, staged


def test_a_trial_says_everything_in_order() -> None:
    ended = drive(a_spec())
    assert ended.code == 0
    assert ended.stderr == ""
    assert ended.phases == ["import", "setup", "warmup", "calibrate", "measure", "check"]
    kinds = [line["kind"] for line in ended.lines]
    assert kinds[:4] == ["ping", "ping", "ping", "hello"]
    assert kinds[-2:] == ["result", "bye"]
    assert [line["seq"] for line in ended.lines] == list(range(len(kinds)))
    assert {(line["token"], line["rank"]) for line in ended.lines} == {("tok", 0)}
    times = [line["t"] for line in ended.lines]
    assert times == sorted(times)
    hello = ended.of("hello")[0]
    assert hello["clock_offset_s"] == pytest.approx(AHEAD_S, abs=max(0.01, 2 * hello["clock_uncertainty_s"]))


def test_the_floor_is_the_time_of_a_call_that_does_nothing() -> None:
    ended = drive(a_spec(seconds=10.0))
    (metric,) = ended.result["metrics"]
    durations_s = ended.durations_s("call_overhead")
    group = ended.of("iterations")[0]["group"]
    assert group > 1
    assert metric["count"] == group * len(durations_s)
    assert metric["count"] * sorted(durations_s)[len(durations_s) // 2] < 1.0, "its own budget is a twentieth second"
    expected = {"unit": "s", "better": "lower", "scale": 0.0, "work": 1.0, "work_unit": "call"}
    assert {key: metric[key] for key in expected} == expected
    assert metric["timer"] == "monotonic clock"
    assert ended.result["facts"]["framework"] == "python"


def test_given_counts_are_done_without_calibration() -> None:
    ended = drive(a_spec(counts={"call_overhead": 100_000}))
    assert ended.phases == ["import", "setup", "warmup", "measure", "check"]
    assert ended.result["metrics"][0]["count"] == 100_000
    group = ended.of("iterations")[0]["group"]
    assert len(ended.durations_s("call_overhead")) == -(-100_000 // group)


def test_the_spec_comes_from_a_path_too(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(a_spec()))
    assert drive(None, source=str(path)).result["metrics"][0]["metric"] == "call_overhead"


def test_a_spec_that_is_not_there_is_the_workers_last_word(tmp_path: Path) -> None:
    ended = drive(None, source=str(tmp_path / "none"))
    assert (ended.code, ended.lines) == (1, [])
    assert "No such file" in ended.stderr


@pytest.mark.parametrize("spec", [b"nonsense\n", b"{}\n", b"\n", b"\x00\xff\n"])
def test_a_spec_that_is_garbage_is_the_workers_last_word(spec: bytes) -> None:
    ended = drive(spec)
    assert (ended.code, ended.lines) == (1, [])
    assert "spec" in ended.stderr


def test_an_answer_that_is_garbage_is_a_protocol_failure() -> None:
    cause, reason = drive(a_spec(), answer=lambda number: b"garbage\n").failure
    assert cause == "protocol"
    assert "ping 0" in reason


def test_a_runner_that_is_gone_ends_the_worker_without_a_word() -> None:
    main = str(ROOT / "engine" / "worker" / "main.py")
    with subprocess.Popen(
        [sys.executable, main, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(json.dumps(a_spec()).encode() + b"\n")
        process.stdin.flush()
        assert process.wait() == 1
        assert process.stderr.read() == b""


def test_an_end_of_file_instead_of_a_spec_ends_the_worker_without_a_word() -> None:
    main = str(ROOT / "engine" / "worker" / "main.py")
    done = subprocess.run([sys.executable, main, "-"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


def test_wrong_arguments_give_usage() -> None:
    main = str(ROOT / "engine" / "worker" / "main.py")
    done = subprocess.run([sys.executable, main], capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(b"usage: main.py SPEC")


def test_namesakes_on_the_path_and_in_the_working_directory_are_not_imported(tmp_path: Path) -> None:
    for name in ("engine", "scenarios", "protocol", "timing", "work", "card", "tui", "aibench_tui"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hostile')\n")
    ended = drive(a_spec(), environment={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    assert ended.result["facts"]["framework"] == "python"


def test_a_stage_runs_its_own_code(tmp_path: Path) -> None:
    main = staged(tmp_path / "stage", twin=(ROOT / "scenarios/harness/floor.py").read_text())
    ended = drive(a_spec(scenario="harness/twin"), main=main, environment={"PYTHONPATH": str(ROOT)})
    assert ended.result["metrics"][0]["metric"] == "call_overhead"


SCENARIO = """
import os, subprocess
from scenarios.harness.floor import CARD, prepare as floor

def prepare(parameters, adapter, seed):
    {body}
    return floor(parameters, adapter, seed)
"""


def test_a_scenario_that_prints_and_starts_children_tears_no_line(tmp_path: Path) -> None:
    body = "print('x' * 100_000); os.write(1, b'{\"kind\":\"fake\"}\\n'); subprocess.run(['echo', 'child'], check=True)"
    ended = drive(a_spec(scenario="harness/noisy"), main=staged(tmp_path, noisy=SCENARIO.format(body=body)))
    assert ended.result["metrics"]
    assert ended.of("fake") == []
    assert "child" in ended.stderr
    assert "x" * 100_000 in ended.stderr


def test_memory_that_runs_out_in_python_is_said_so(tmp_path: Path) -> None:
    main = staged(tmp_path, hungry=SCENARIO.format(body="bytearray(1 << 60)"))
    assert drive(a_spec(scenario="harness/hungry"), main=main).failure == (
        "out_of_memory",
        "memory ran out: MemoryError",
    )


def test_an_exception_fails_the_trial_with_its_text_and_a_trace_in_the_log(tmp_path: Path) -> None:
    main = staged(tmp_path, broken=SCENARIO.format(body="raise ValueError('several\\nlines')"))
    ended = drive(a_spec(scenario="harness/broken"), main=main)
    assert ended.failure == ("error", "ValueError: several lines")
    assert "Traceback" in ended.stderr


def test_a_scenario_that_is_not_there_is_named() -> None:
    cause, reason = drive(a_spec(scenario="harness/none")).failure
    assert cause == "error"
    assert "'harness/none'" in reason


def test_a_framework_that_a_scenario_has_no_body_for_is_unsupported() -> None:
    expected = ("unsupported", "not supported by framework: compute/gemm has no python body")
    assert drive(a_spec(scenario="compute/gemm")).failure == expected


def test_a_framework_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('No module named torch')\n")
    ended = drive(a_spec(scenario="compute/gemm", framework="torch"), environment={"PYTHONPATH": str(tmp_path)})
    assert ended.failure == ("error", "this interpreter cannot import torch: No module named torch")


def test_a_device_that_is_not_there_is_an_error() -> None:
    spec = a_spec(scenario="compute/gemm", framework="torch", device={"kind": "cuda", "index": 0})
    cause, reason = drive(spec, environment={"CUDA_VISIBLE_DEVICES": ""}).failure
    assert cause == "error"
    assert "sees no CUDA device" in reason


def test_a_bad_parameter_is_an_error() -> None:
    parameters = {"dtype": "bf16", "shape": "8x8"}
    cause, reason = drive(a_spec(scenario="compute/gemm", framework="torch", parameters=parameters)).failure
    assert cause == "error"
    assert reason.startswith("compute/gemm: shapes has '8x8'; allowed: ")


def test_a_product_that_does_not_fit_is_refused_before_it_is_allocated() -> None:
    parameters = {"dtype": "fp64", "shape": "1048576x1048576x1048576"}
    ended = drive(a_spec(scenario="compute/gemm", framework="torch", parameters=parameters))
    cause, reason = ended.failure
    assert cause == "out_of_memory"
    assert reason.startswith("a fp64 product of 1048576x1048576x1048576 needs 27498.60 GB of memory, ")
    assert ended.phases == ["import", "setup"]


def test_an_allocation_that_fails_all_the_same_is_out_of_memory() -> None:
    def limit_address_space() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))

    # A alone has 6 GiB, which is free on the machine but above the limit on this process.
    parameters = {"dtype": "fp64", "shape": "32768x1x24576"}
    ended = drive(a_spec(scenario="compute/gemm", framework="torch", parameters=parameters), before=limit_address_space)
    cause, reason = ended.failure
    assert cause == "out_of_memory"
    assert "memory" in reason


def test_what_workers_import_parses_as_python_3_10() -> None:
    files = [*(ROOT / "engine" / "worker").rglob("*.py"), *(ROOT / "scenarios").rglob("*.py")]
    assert len(files) > 15
    for file in files:
        assert ast.parse(file.read_text(), file.name, feature_version=(3, 10)) is not None
