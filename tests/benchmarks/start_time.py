"""How long `aibench-tui --version` takes beside a bare interpreter: `python -m tests.benchmarks.start_time [SCRIPT]`.

Each pair runs the two one after the other in random order, so that a drift of the machine meets both; the ratio is the
median of the pairs' ratios. Without SCRIPT it is the console script beside this interpreter, or the repository's
aibench_tui.py, started by this interpreter, where none is installed.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def duration_s(command: Sequence[str]) -> float:
    """Wall time of one process from its start to its end."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def paired(first: Sequence[str], second: Sequence[str], pairs: int) -> list[tuple[float, float]]:
    """Durations of both commands, each pair in random order, after one uncounted pair that fills the caches."""
    durations = []
    for _ in range(pairs + 1):
        order = random.sample([0, 1], 2)
        measured = {which: duration_s((first, second)[which]) for which in order}
        durations.append((measured[0], measured[1]))
    return durations[1:]


def program(script: Path | None) -> list[str]:
    """What to start: the script that is named or installed, else the repository's own."""
    installed = script or Path(sys.executable).with_name("aibench-tui")
    return [str(installed)] if script or installed.exists() else [sys.executable, str(ROOT / "aibench_tui.py")]


def compare(command: Sequence[str], bare: Sequence[str], pairs: int) -> None:
    """Print the ratio, and the quartiles of each command in milliseconds."""
    durations = paired(command, bare, pairs)
    ratio = statistics.median(ours / theirs for ours, theirs in durations)
    print(f"{ratio:.3f} x {' '.join(bare)} (median of {pairs} pairs)")
    for name, column in zip(("ours", "bare"), zip(*durations, strict=True), strict=True):
        low, middle, high = (1e3 * cut for cut in statistics.quantiles(column, n=4))
        print(f"    {name}: median {middle:.3f} ms, middle half {low:.3f} to {high:.3f} ms")


def main() -> None:
    """Print the ratio against the interpreter alone, isolated and plain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", nargs="?", type=Path, help="the script to start instead")
    parser.add_argument("--pairs", type=int, default=40)
    chosen = parser.parse_args()
    command = [*program(chosen.script), "--version"]
    print(f"measured: {' '.join(command)}")
    for options in (["-I"], []):
        compare(command, [sys.executable, *options, "-c", "pass"], chosen.pairs)


if __name__ == "__main__":
    main()
