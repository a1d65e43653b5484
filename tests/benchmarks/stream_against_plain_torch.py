"""Does our program report what a plain torch loop reports? STREAM's kernels, in randomised pairs of fresh processes.

    python tests/benchmarks/stream_against_plain_torch.py --device cuda --dtype fp32 --mib 1024 --out FILE \\
        --program .venv/bin/aibench-tui --python PYTHON_WITH_TORCH

Run by hand; it needs what gemm_against_plain_torch.py needs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks import pairs

SCALAR = (2 + 1e-5) ** 0.5 - 1


def plain(task: Mapping[str, Any]) -> pairs.Medians:
    """The plain loop: the five kernels in turn over three arrays of normal random numbers."""
    import torch as imported

    torch: Any = imported
    kind = {"fp32": torch.float32, "fp64": torch.float64}[task["dtype"]]
    count = int(task["mib"]) * 2**20 // kind.itemsize
    generator = torch.Generator(task["device"]).manual_seed(task["seed"])
    a = torch.randn(count, dtype=kind, device=task["device"], generator=generator)
    b, c = torch.empty_like(a), torch.empty_like(a)
    total = torch.empty((), dtype=kind, device=task["device"])
    calls = {
        "copy_bandwidth": lambda: c.copy_(a),
        "scale_bandwidth": lambda: torch.mul(c, SCALAR, out=b),
        "add_bandwidth": lambda: torch.add(a, b, out=c),
        "triad_bandwidth": lambda: torch.add(b, c, alpha=SCALAR, out=a),
        "dot_bandwidth": lambda: torch.dot(a, b, out=total),
    }
    return pairs.time_plain(torch, task, calls)


def main() -> None:
    """Run the pairs, or one plain loop when called by ourselves."""
    parser = pairs.arguments("our worker against a plain torch loop: STREAM")
    parser.add_argument("--dtype", choices=("fp32", "fp64"), default="fp32")
    parser.add_argument("--mib", type=int, default=1024, help="size of one array in MiB")
    options = parser.parse_args()
    if options.plain:
        print(json.dumps(plain(json.loads(options.plain))))
        return
    spec = pairs.spec_for("memory/stream", {"dtype": options.dtype, "size": f"{options.mib} MiB"}, options)
    task = {"device": options.device, "dtype": options.dtype, "mib": options.mib, "seed": options.seed}
    pairs.report(pairs.compare(__file__, spec, task, options), options)


if __name__ == "__main__":
    main()
