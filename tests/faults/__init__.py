"""Real faults of the disk, for real processes: a preloaded library that lets the n-th call below a folder fail."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("shim.c")


def build_shim(tmp_path: Path) -> Path:
    """Compile shim.c; the variables that steer it stand at its top. Skips where there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the fault shim with")
    library = tmp_path / "fault_shim.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(_SOURCE), "-ldl"], check=True
    )
    return library


@dataclass(frozen=True)
class Call:
    """The n-th call of a process that faults are counted for: which function, on which path."""

    process: int
    n: int
    function: str
    path: str


def read_calls(log: Path) -> list[Call]:
    """What a run with a log did below its folder."""
    lines = (line.split(" ", 3) for line in log.read_text().splitlines())
    return [Call(int(process), int(n), function, path) for process, n, function, path in lines]


def fault_environment(
    library: Path,
    folder: Path,
    n: int = 0,
    errno: int = 28,
    *,
    sticky: bool = False,
    removals: bool = False,
    mark: Path | None = None,
    log: Path | None = None,
) -> dict[str, str]:
    """The variables that let call `n` below `folder` fail with `errno` in a process started with them.

    With `removals` those count too. `mark` is made when it fails; `log` gets every call that counts (read_calls).
    """
    variables = {
        "LD_PRELOAD": str(library),
        "AIB_FAULT_DIR": str(folder.resolve()),
        "AIB_FAULT_N": str(n),
        "AIB_FAULT_ERRNO": str(errno),
        "AIB_FAULT_STICKY": "1" if sticky else "0",
    }
    files = {"AIB_FAULT_MARK": mark, "AIB_FAULT_LOG": log}
    variables |= {"AIB_FAULT_REMOVALS": "1"} if removals else {}
    return variables | {name: str(path) for name, path in files.items() if path is not None}
