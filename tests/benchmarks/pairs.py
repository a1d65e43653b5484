"""Randomised pairs of fresh processes, ours against a plain loop, and what their ratio can be said to be.

With --program, ours is the whole product (tests/benchmarks/product.py): what an operator reads, the session's median,
of runs with the runner, a keeper and telemetry at 10 Hz beside the worker. Without it, ours is the worker alone, driven
from outside as the runner does. Both arms do the same count of work after a warm-up of the same length; the first,
uncounted run of ours finds the count. The plain loop's figure is the median of all its iterations, the session's that
of the iterations from the steady state on: their difference, if any, is part of what is compared.

Standard library only, and of the engine the rule for the warm-up: an interpreter with torch may have nothing else.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from engine.worker.timing import DEVICE_SETTLE_S, warmup_s
from tests.benchmarks.product import Product

ROOT = Path(__file__).resolve().parents[2]
WORKER = ROOT / "engine" / "worker" / "main.py"

Medians = dict[str, float]


@dataclass(frozen=True)
class WorkerRun:
    """What one worker sent: per metric its durations in seconds and its count, and the facts of its result."""

    durations_s: dict[str, list[float]]
    counts: dict[str, int]
    facts: dict[str, Any]

    def medians(self) -> Medians:
        """The median duration of each metric, in seconds."""
        return {metric: statistics.median(durations) for metric, durations in self.durations_s.items()}


class Ours(Protocol):
    """The arm that is ours. `calibrate` comes first and finds `counts`, `facts` and `device` ("" where not known)."""

    counts: dict[str, int]
    facts: dict[str, Any]
    device: str

    def calibrate(self) -> None:
        """One run that finds its own count."""

    def medians(self) -> Medians:
        """One run with that count: the median duration of each metric, in seconds."""


class Worker:
    """Our worker alone, by the interpreter `python`."""

    def __init__(self, spec: Mapping[str, Any], python: str) -> None:
        self._spec = spec
        self._python = python
        self.counts: dict[str, int] = {}
        self.facts: dict[str, Any] = {}
        self.device = ""

    def calibrate(self) -> None:
        first = run_worker({**self._spec, "counts": {}}, self._python)
        self.counts, self.facts = first.counts, first.facts

    def medians(self) -> Medians:
        return run_worker({**self._spec, "counts": self.counts}, self._python).medians()


def run_worker(spec: Mapping[str, Any], python: str = sys.executable) -> WorkerRun:
    """Start a fresh worker, play the runner's side, and collect its result. Raises SystemExit when it fails."""
    durations_s: dict[str, list[float]] = {}
    result: dict[str, Any] = {}
    with subprocess.Popen([python, str(WORKER), "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(spec).encode() + b"\n")
        process.stdin.flush()
        for line in process.stdout:
            message = json.loads(line)
            if message["kind"] == "ping":
                process.stdin.write(json.dumps({"pong": message["n"], "t": time.monotonic()}).encode() + b"\n")
                process.stdin.flush()
            elif message["kind"] == "iterations":
                durations_s.setdefault(message["metric"], []).extend(message["durations_s"])
            elif message["kind"] == "failure":
                raise SystemExit(f"the worker failed ({message['cause']}): {message['reason']}")
            elif message["kind"] == "result":
                result = message
    if process.returncode != 0 or not result:
        raise SystemExit(f"the worker ended with code {process.returncode} and without a result")
    return WorkerRun(durations_s, {one["metric"]: one["count"] for one in result["metrics"]}, result["facts"])


def run_plain(script: str, task: Mapping[str, Any], python: str = sys.executable, device: str = "") -> Medians:
    """Start the plain loop of `script` in a fresh process; it prints the median duration of each metric as JSON.

    `device` is the only accelerator that it sees, as that of our worker is.
    """
    seen = {"CUDA_VISIBLE_DEVICES": device} if device.startswith("GPU-") else {}
    command = [python, script, "--plain", json.dumps(task)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env={**os.environ, **seen})
    medians: Medians = json.loads(done.stdout)
    return medians


def time_plain(torch: Any, task: Mapping[str, Any], calls: Mapping[str, Callable[[], object]]) -> Medians:
    """A plain loop: warm up for so long, time every call of a fixed count, wait once, print the medians.

    One event pair an iteration on a CUDA device; the host's clock around each call on a processor.
    """
    cuda = task["device"] == "cuda"
    wait: Callable[[], object] = torch.cuda.synchronize if cuda else (lambda: None)
    for call in calls.values():
        call()
    wait()
    end = time.perf_counter() + float(task["warmup_s"])
    while time.perf_counter() < end:
        for _ in range(10 if cuda else 1):
            for call in calls.values():
                call()
        wait()
    loop = _event_loop(torch, int(task["count"]), calls) if cuda else _clock_loop(int(task["count"]), calls)
    return {metric: statistics.median(durations) for metric, durations in loop.items()}


def _event_loop(torch: Any, count: int, calls: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    def event() -> Any:
        return torch.cuda.Event(enable_timing=True)

    pairs = {metric: [(event(), event()) for _ in range(count)] for metric in calls}
    for number in range(count):
        for metric, call in calls.items():
            begin, end = pairs[metric][number]
            begin.record()
            call()
            end.record()
    torch.cuda.synchronize()
    return {metric: [begin.elapsed_time(end) / 1e3 for begin, end in made] for metric, made in pairs.items()}


def _clock_loop(count: int, calls: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    durations_s: dict[str, list[float]] = {metric: [] for metric in calls}
    for _ in range(count):
        for metric, call in calls.items():
            begin = time.perf_counter()
            call()
            durations_s[metric].append(time.perf_counter() - begin)
    return durations_s


def orders(pairs: int, seed: int) -> list[str]:
    """The order of each pair, "AB" or "BA": blocks ABBA or BAAB by a seeded coin."""
    coin = random.Random(seed)
    blocks = [coin.choice((["AB", "BA"], ["BA", "AB"])) for _ in range((pairs + 1) // 2)]
    return [order for block in blocks for order in block][:pairs]


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """The exact 95 % interval of the median: the k-th least and k-th greatest, k as large as 95 % allow.

    Source: the sign test's interval; n = 10 gives [x2, x9], n = 12 [x3, x10]. Raises ValueError below six.
    """
    n = len(ratios)
    if n < 6:
        raise ValueError(f"{n} pairs have no 95 % interval; six are needed")
    ordered = sorted(ratios)
    outside, k = 0.0, 0
    while (outside := outside + 2 * math.comb(n, k) / 2**n) <= 0.05:
        k += 1
    return ordered[k - 1], ordered[n - k]


def summary(ours: Sequence[Medians], plain: Sequence[Medians]) -> dict[str, Any]:
    """Per metric, the medians of each pair, their ratios (ours / plain), the median ratio and its interval."""
    found: dict[str, Any] = {}
    for metric in plain[0]:
        ratios = [mine[metric] / theirs[metric] for mine, theirs in zip(ours, plain, strict=True)]
        low, high = interval(ratios)
        found[metric] = {
            "ours_median_s": [one[metric] for one in ours],
            "plain_median_s": [one[metric] for one in plain],
            "ratio": ratios,
            "median_ratio": statistics.median(ratios),
            "interval_95": [low, high],
        }
    return found


def compare(script: str, spec: dict[str, Any], task: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Calibrate once, then run the pairs with one count. `spec` and `task` describe the same work."""
    with tempfile.TemporaryDirectory(prefix="aibench-pairs-") as folder:
        ours = _ours(spec, options, Path(folder))
        ours.calibrate()
        print(f"counts {ours.counts}; {ours.facts}", file=sys.stderr)
        task = {
            **task,
            "count": next(iter(ours.counts.values())),
            "warmup_s": warmup_s(spec["seconds"], 0.0 if task["device"] == "cpu" else DEVICE_SETTLE_S),
        }
        schedule = orders(options.pairs, options.order_seed)
        measured = run_pairs(schedule, ours.medians, lambda: run_plain(script, task, options.python, ours.device))
    return {
        "ours": f"{options.program} run" if options.program else "the worker alone",
        "spec": spec,
        "task": task,
        "counts": ours.counts,
        "device": ours.device,
        "orders": schedule,
        "order_seed": options.order_seed,
        "facts": ours.facts,
        "metrics": summary(*measured),
    }


def _ours(spec: Mapping[str, Any], options: argparse.Namespace, folder: Path) -> Ours:
    if options.program:
        return Product(shlex.split(options.program), options.python, spec, folder)
    return Worker(spec, options.python)


def run_pairs(
    schedule: Sequence[str], run_ours: Callable[[], Medians], run_theirs: Callable[[], Medians]
) -> tuple[list[Medians], list[Medians]]:
    """Both arms ("A" is ours) as often and in the order that the schedule says; each pair is told as it is done."""
    ours: list[Medians] = []
    plain: list[Medians] = []
    for number, order in enumerate(schedule, 1):
        for arm in order:
            if arm == "A":
                ours.append(run_ours())
            else:
                plain.append(run_theirs())
        shown = {metric: f"{ours[-1][metric] / median:.4f}" for metric, median in plain[-1].items()}
        print(f"pair {number:2} {order}  ours / plain {shown}", file=sys.stderr)
    return ours, plain


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that all of these benchmarks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--program", default="", help="the command that starts aibench-tui; default: the worker alone")
    parser.add_argument("--python", default=sys.executable, help="the interpreter with torch (default: this one)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--pairs", type=int, default=12, help="at least 6; an even number keeps the order balanced")
    parser.add_argument("--seconds", type=float, default=2.0, help="measuring budget; the warm-up is half of it")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs")
    parser.add_argument("--order-seed", type=int, default=1, help="of the coin for ABBA or BAAB")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    return parser


def spec_for(scenario: str, parameters: Mapping[str, str], options: argparse.Namespace) -> dict[str, Any]:
    """A worker's spec for torch on the chosen device."""
    return {
        "token": "benchmark",
        "run": "benchmark",
        "trial": "t0001",
        "scenario": scenario,
        "parameters": dict(parameters),
        "framework": "torch",
        "device": {"kind": options.device, "index": 0},
        "seed": options.seed,
        "seconds": options.seconds,
    }


def report(found: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Print the pairs and their interval, and write the JSON."""
    for metric, figures in found["metrics"].items():
        print(f"{metric}: median durations of each pair, ours ({found['ours']}) and plain, in ms, and their ratio")
        columns = (figures["ours_median_s"], figures["plain_median_s"], figures["ratio"])
        for mine, theirs, ratio in zip(*columns, strict=True):
            print(f"  {mine * 1e3:12.6f} {theirs * 1e3:12.6f} {ratio:8.4f}")
        low, high = figures["interval_95"]
        print(f"  median ratio {figures['median_ratio']:.4f}, 95 % interval {low:.4f} to {high:.4f}")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
