"""The real program for tests: started as a user does, in folders of its own, from a copy where a test needs one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent.parent
HOSTILE = Path(__file__).resolve().parent / "hostile"


@dataclass
class Program:
    """`aibench-tui` with its own sessions and runtime folders below `home`."""

    home: Path
    root: Path = REPOSITORY
    extra_env: dict[str, str] | None = None

    @property
    def sessions(self) -> Path:
        return self.home / "sessions"

    def __post_init__(self) -> None:
        # short, since a socket's path may have 107 bytes; below the tests' own folder, where one is set
        parent = Path(os.environ.get("AIBENCH_RUNTIME_DIR") or tempfile.gettempdir())
        self.runtime = parent / hashlib.sha256(str(self.home).encode()).hexdigest()[:8]

    @property
    def environment(self) -> dict[str, str]:
        return {
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
            "AIBENCH_RUNTIME_DIR": str(self.runtime),
            "XDG_DATA_HOME": str(self.home / "data"),
            "XDG_STATE_HOME": str(self.home / "state"),
            **(self.extra_env or {}),
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(self.root / "aibench_tui.py"), *arguments]

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start it and return at once."""
        defaults: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.home.mkdir(parents=True, exist_ok=True)
        return subprocess.Popen(
            self.command(*arguments), env=self.environment, cwd=self.home, **{**defaults, **options}
        )

    def call(self, *arguments: str, timeout: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
        """Start it and wait for its end."""
        with self.start(*arguments, **options) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(
            process.args,
            process.returncode,
            (out or b"").decode(errors="replace"),
            (err or b"").decode(errors="replace"),
        )

    def run_json(self, *arguments: str, timeout: float = 120) -> tuple[int, dict[str, Any], str]:
        """`run --json`: exit code, document, stderr."""
        done = self.call("run", "--json", "--out", str(self.sessions), *arguments, timeout=timeout)
        return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr

    def folders(self) -> list[Path]:
        return sorted(self.sessions.glob("[0-9]*")) if self.sessions.is_dir() else []

    def run_ids(self) -> list[str]:
        return [run_of(folder) for folder in self.folders()]


def run_of(folder: Path) -> str:
    """The run id in a run folder's name."""
    date, clock, *_, unique = folder.name.split("-")
    return f"{date}-{clock}-{unique}"


def copy_with_hostile(target: Path) -> Path:
    """A copy of the program in which the hostile scenarios can be named."""
    shutil.copytree(REPOSITORY / "engine", target / "engine", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(REPOSITORY / "tui", target / "tui", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(REPOSITORY / "scenarios", target / "scenarios", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(HOSTILE, target / "scenarios" / "hostile", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "aibench_tui.py", target)
    return target


def processes_with(*marks: str) -> Iterator[tuple[int, str]]:
    """(pid, command line) of living processes, zombies aside, whose environment has one of `marks`."""
    wanted = {mark.encode() for mark in marks}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = set((entry / "environ").read_bytes().split(b"\0"))
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if wanted & environment and state not in "ZX":
            yield int(entry.name), command


def wait_for(condition: Any, seconds: float = 20.0, what: str = "the condition") -> None:
    """Wait until `condition()` is true; a test that waits in vain fails saying for what."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)
