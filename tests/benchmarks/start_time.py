"""How long `aibench-tui --version` takes beside a bare interpreter: `python -m tests.benchmarks.start_time [SCRIPT]`.

Each pair runs the two one after the other in random order, so that a drift of the machine meets both; the ratio is the
median of the pairs' ratios. The script is the one beside the interpreter, started with that interpreter.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

PAIRS = 20


def duration_s(command: list[str]) -> float:
    """Wall time of one process from its start to its end."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def paired(first: list[str], second: list[str], pairs: int = PAIRS) -> list[tuple[float, float]]:
    """Durations of both commands, each pair in random order, after one uncounted pair that fills the caches."""
    durations = []
    for _ in range(pairs + 1):
        order = random.sample([0, 1], 2)
        measured = {which: duration_s((first, second)[which]) for which in order}
        durations.append((measured[0], measured[1]))
    return durations[1:]


def main(script: Path) -> None:
    """Print the ratio against the interpreter alone, plain and isolated."""
    for bare in ([sys.executable, "-I", "-c", "pass"], [sys.executable, "-c", "pass"]):
        durations = paired([str(script), "--version"], bare)
        ratio = statistics.median(ours / theirs for ours, theirs in durations)
        ours, theirs = (1000 * statistics.median(column) for column in zip(*durations, strict=True))
        print(f"{ratio:.2f} x  {ours:.1f} ms against {theirs:.1f} ms of {' '.join(map(str, bare[1:]))}, {PAIRS} pairs")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(sys.executable).with_name("aibench-tui"))
