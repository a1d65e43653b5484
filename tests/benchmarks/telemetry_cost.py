"""What the telemetry process costs: its share of one core at 10 Hz with one device.

On a node with an NVIDIA GPU the real library is read, elsewhere the stub that the tests use.

    python -m tests.benchmarks.telemetry_cost --seconds 20 --out cost.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from engine.children import python_command
from engine.hardware.inventory import discover
from engine.telemetry.samples import Line, Sample
from tests.nvml_stub import Stub, uuid

SETTLE_S = 2.0
"""Starting the interpreter and the library is paid once a run and is not part of the rate."""


def main(arguments: Sequence[str]) -> int:
    """Measures, prints, and fails above `--limit`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to watch (default 20)")
    parser.add_argument("--hz", type=float, default=10.0, help="fast readings a second (default 10)")
    parser.add_argument("--limit", type=float, default=0.03, help="share of one core allowed (default 0.03)")
    parser.add_argument("--out", type=Path, help="where to write the figures as JSON")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        figures = _measure(*_device(Path(folder)), chosen.hz, chosen.seconds)
    text = json.dumps(figures, indent=1)
    print(text)
    if chosen.out:
        chosen.out.write_text(text + "\n")
    share = float(figures["core_share"])
    print(f"telemetry process: {100 * share:.2f} % of one core at {chosen.hz:g} Hz ({figures['library']})")
    return int(share > chosen.limit)


def _device(folder: Path) -> tuple[str, str, dict[str, str]]:
    real = discover().accelerators
    if real:
        return "NVML of this node", real[0].device, dict(os.environ)
    return "the tests' stub of NVML", uuid(0), Stub(folder).environment


def _measure(
    library: str, device: str, environment: dict[str, str], hz: float, seconds: float
) -> dict[str, float | str]:
    command = python_command("engine.telemetry.process", "--hz", str(hz), "--device", device)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        os.set_blocking(child.stdout.fileno(), False)
        time.sleep(SETTLE_S)
        child.stdout.read()
        process = psutil.Process(child.pid)
        before, began = process.cpu_times(), time.monotonic()
        output = bytearray()
        while time.monotonic() < began + seconds:
            time.sleep(0.1)
            output += child.stdout.read() or b""
        after, elapsed = process.cpu_times(), time.monotonic() - began
        memory = process.memory_info().rss
        child.stdin.close()
    used_s = after.user + after.system - before.user - before.system
    return {
        "library": library,
        "hz": hz,
        "seconds": elapsed,
        "core_share": used_s / elapsed,
        "user_s": after.user - before.user,
        "system_s": after.system - before.system,
        "memory_bytes": memory,
        "bytes_per_s": len(output) / elapsed,
        **_pace(bytes(output), device),
    }


def _pace(output: bytes, device: str) -> dict[str, float | str]:
    """How regular the fast samples were: count, and the median, least and greatest distance of two."""
    decoder = msgspec.json.Decoder(Line)
    lines = [decoder.decode(line) for line in output.split(b"\n")[1:-1]]
    times = [
        line.t for line in lines if isinstance(line, Sample) and line.device == device and "power_w" in line.values
    ]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return {
        "samples": len(times),
        "gap_median_s": statistics.median(gaps),
        "gap_min_s": min(gaps),
        "gap_max_s": max(gaps),
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
