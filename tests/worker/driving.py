"""The runner's side of the worker protocol, for tests that start real workers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
AHEAD_S = 1000.0
"""How far the clock of this runner is ahead of the worker's."""


def a_spec(**changes: object) -> dict[str, Any]:
    """The spec of a trial of harness/floor, with changes."""
    return {
        "token": "tok",
        "run": "r1",
        "trial": "t0001",
        "scenario": "harness/floor",
        "parameters": {},
        "framework": "python",
        "device": {"kind": "cpu", "index": 0},
        "seed": 7,
        "seconds": 0.02,
        "counts": {},
        **changes,
    }


@dataclass(frozen=True)
class Ended:
    """Everything a worker wrote, and its exit code."""

    lines: list[dict[str, Any]]
    longest_line: int
    stderr: str
    code: int

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The lines of one kind, in order."""
        return [line for line in self.lines if line["kind"] == kind]

    @property
    def phases(self) -> list[str]:
        """The phases it entered."""
        return [line["name"] for line in self.of("phase")]

    @property
    def result(self) -> dict[str, Any]:
        """Its one result."""
        assert self.of("failure") == [], self.stderr
        (result,) = self.of("result")
        return result

    @property
    def failure(self) -> tuple[str, str]:
        """The cause and reason of its one failure, after which it said nothing and left with code 1."""
        assert self.lines, self.stderr
        assert [line["kind"] for line in self.lines].count("failure") == 1
        assert self.lines[-1]["kind"] == "failure"
        assert self.code == 1
        return self.lines[-1]["cause"], self.lines[-1]["reason"]

    def durations_s(self, metric: str) -> list[float]:
        """All durations of one metric."""
        return [one for line in self.of("iterations") if line["metric"] == metric for one in line["durations_s"]]


def drive(
    spec: Mapping[str, Any] | bytes | None,
    *,
    source: str = "-",
    main: Path = ROOT / "engine" / "worker" / "main.py",
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    before: Callable[[], None] | None = None,
    answer: Callable[[int], bytes] | None = None,
) -> Ended:
    """Run one worker to its end. A `spec` is written to its stdin; `answer` replaces the pong for a ping's number."""
    command = [sys.executable, str(main), source]
    env = {**os.environ, **(environment or {})}
    # The log goes to a file: a pipe that nobody reads would block a worker that prints much.
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=env, cwd=cwd, preexec_fn=before
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        if spec is not None:
            process.stdin.write(spec if isinstance(spec, bytes) else json.dumps(spec).encode() + b"\n")
            process.stdin.flush()
        lines, longest = [], 0
        for line in process.stdout:
            longest = max(longest, len(line))
            lines.append(json.loads(line))
            if lines[-1]["kind"] == "ping":
                process.stdin.write((answer or pong)(lines[-1]["n"]))
                process.stdin.flush()
        process.wait()
        log.seek(0)
        return Ended(lines, longest, log.read().decode(), process.returncode)


def pong(number: int) -> bytes:
    """The right answer to a ping, from a clock that is AHEAD_S ahead."""
    return json.dumps({"pong": number, "t": time.monotonic() + AHEAD_S}).encode() + b"\n"


def staged(folder: Path, **scenarios: str) -> Path:
    """A stage as in a run folder, with more scenarios in scenarios/harness; returns its main.py."""
    for name in ("engine/worker", "scenarios"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "engine" / "__init__.py").touch()
    for name, text in scenarios.items():
        (folder / "scenarios" / "harness" / f"{name}.py").write_text(text)
    return folder / "engine" / "worker" / "main.py"
