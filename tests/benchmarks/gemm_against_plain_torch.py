"""Does our program report what a plain torch loop reports? A matrix product, in randomised pairs of fresh processes.

    python tests/benchmarks/gemm_against_plain_torch.py --device cuda --dtype bf16 --shape 8192x8192x8192 --out FILE \\
        --program .venv/bin/aibench-tui --python PYTHON_WITH_TORCH

Run by hand. It needs the interpreter with torch, and for the whole product one with our packages, which --program
names; without --program the worker alone is compared.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks import pairs

DTYPES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def plain(task: Mapping[str, Any]) -> pairs.Medians:
    """The plain loop: the same tensors as the worker's, torch.mm into an existing matrix."""
    import torch as imported

    torch: Any = imported
    m, n, k = (int(size) for size in task["shape"].split("x"))
    kind = getattr(torch, DTYPES[task["dtype"]])
    generator = torch.Generator(task["device"]).manual_seed(task["seed"])
    a = torch.randn(m, k, dtype=kind, device=task["device"], generator=generator)
    b = torch.randn(k, n, dtype=kind, device=task["device"], generator=generator)
    c = torch.empty(m, n, dtype=kind, device=task["device"])
    return pairs.time_plain(torch, task, {"rate": lambda: torch.mm(a, b, out=c)})


def main() -> None:
    """Run the pairs, or one plain loop when called by ourselves."""
    parser = pairs.arguments("our worker against a plain torch loop: matrix product")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="bf16")
    parser.add_argument("--shape", default="8192x8192x8192", help="MxNxK")
    options = parser.parse_args()
    if options.plain:
        print(json.dumps(plain(json.loads(options.plain))))
        return
    spec = pairs.spec_for("compute/gemm", {"dtype": options.dtype, "shape": options.shape}, options)
    task = {"device": options.device, "dtype": options.dtype, "shape": options.shape, "seed": options.seed}
    pairs.report(pairs.compare(__file__, spec, task, options), options)


if __name__ == "__main__":
    main()
