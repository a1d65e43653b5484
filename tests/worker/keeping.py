"""Starts real keepers with real workers, and looks at what is left of them."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.worker import keeper

KEEPER = Path(keeper.__file__)
TOKEN = "feedfacefeedface"
PATIENCE_S = 20.0


class Kept:
    """A keeper with a worker whose code is `script`, in a run of its own."""

    def __init__(self, folder: Path, script: str, deadline_s: float = 60.0, prefix: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.run = f"run-{secrets.token_hex(4)}"
        path = folder / "worker.py"
        path.write_text(script)
        keep = (sys.executable, "-I", str(KEEPER), "--run", self.run, "--trial", "t0001", "--deadline", str(deadline_s))
        self.process = subprocess.Popen(
            [*prefix, *keep, "--", sys.executable, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=marks(self.run, "t0001") | {"AIBENCH_TOKEN": TOKEN, "PATH": os.environ["PATH"]},
            cwd=folder,
        )

    def end(self) -> dict[str, Any]:
        """Wait for the keeper, its stdin left open; its report, with the rest of stdout as "text"."""
        assert self.process.stdout is not None and self.process.stderr is not None and self.process.stdin is not None
        output = self.process.stdout.read()
        self.process.wait(PATIENCE_S)
        self.process.stdin.close()
        errors = self.process.stderr.read().decode()
        text, line = output.rstrip(b"\n").rsplit(b"\n", 1)
        report: dict[str, Any] = json.loads(line)
        return {**report, "text": text.decode(), "errors": errors, "code": self.process.returncode}

    def close_stdin(self) -> None:
        """What the runner's death looks like."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def pid(self, name: str = "pid") -> int:
        """A process id that the worker writes to a file."""
        path = self.folder / name
        wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
        return int(path.read_text())

    def left(self) -> list[int]:
        """Living processes that carry the run's id."""
        mark = f"AIBENCH_RUN_ID={self.run}".encode()
        return [pid for pid in keeper.living() if mark in keeper.environment(pid)]


def marks(run: str, trial: str) -> dict[str, str]:
    """The ids that a trial's processes carry."""
    return {"AIBENCH_RUN_ID": run, "AIBENCH_TRIAL_ID": trial}


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    return pid in keeper.living()


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for something that must come; it fails the test if it does not."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, "what was waited for did not come"
        time.sleep(0.01)


SAY_PID = """
import os
def say(name):
    with open(name + ".part", "w") as file:
        file.write(f"{os.getpid()}\\n")
    os.rename(name + ".part", name)
"""
"""Worker code: `say(NAME)` writes the own process id to a file."""
