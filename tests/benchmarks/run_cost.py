"""What a run costs beside its worker: the runner's and the telemetry process's share of one core at 10 Hz.

Run by hand; on a node with a GPU the trial is a bf16 product there, elsewhere an fp32 one on the CPU.

    python -m tests.benchmarks.run_cost --seconds 20 --out cost.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from engine.hardware.inventory import discover
from tests.program import Program, processes_with, wait_for

ROLES = ("engine.runner", "engine.telemetry", "engine.guard", "keeper.py", "aibench_tui.py")
LIMIT = 0.05

PLAN = """schema = 1
[repetition]
seconds = {seconds}
trial_timeout_s = 3000
[[scenario]]
id = "compute/gemm"
[scenario.parameters]
dtypes = ["{dtype}"]
shapes = ["{shape}"]
"""


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and fail where runner and telemetry together take more than LIMIT."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to watch (default 20)")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        shares = watch(Program(Path(folder)), chosen.seconds)
    for role, share in shares.items():
        print(f"{role:18} {100 * share:5.2f} % of one core")
    together = shares["engine.runner"] + shares["engine.telemetry"]
    print(f"runner and telemetry together {100 * together:.2f} % (limit {100 * LIMIT:.0f} %)")
    if chosen.out:
        chosen.out.write_text(json.dumps({"seconds": chosen.seconds, "core_share": shares}, indent=1) + "\n")
    return int(together > LIMIT)


def watch(program: Program, seconds: float) -> dict[str, float]:
    """Core shares over `seconds` of one trial's measured window."""
    program.home.mkdir(parents=True, exist_ok=True)
    on_gpu = bool(discover().accelerators)
    plan = program.home / "plan.toml"
    values = {"dtype": "bf16", "shape": "8192x8192x8192"} if on_gpu else {"dtype": "fp32", "shape": "1024x1024x1024"}
    plan.write_text(PLAN.format(seconds=seconds + 6, **values))
    process = program.start("run", "--plan", str(plan), "--out", str(program.sessions), stdout=subprocess.DEVNULL)
    try:
        journals = program.sessions.glob
        wait_for(
            lambda: any(b'"measure"' in path.read_bytes() for path in journals("*/journal.jsonl")),
            120,
            "the measurement",
        )
        return _shares(program, seconds)
    finally:
        process.terminate()
        process.communicate()


def _shares(program: Program, seconds: float) -> dict[str, float]:
    marks = [f"AIBENCH_RUNTIME_DIR={program.runtime}", *(f"AIBENCH_RUN_ID={run}" for run in program.run_ids())]
    found = {pid: role for pid, command in processes_with(*marks) for role in ROLES if role in command}
    before, begin = {pid: _cpu_s(pid) for pid in found}, time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - begin
    shares = dict.fromkeys(ROLES, 0.0)
    for pid, role in found.items():
        shares[role] += (_cpu_s(pid) - before[pid]) / elapsed
    return shares


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
