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
from typing import Any, Literal

import tomli_w

REPOSITORY = Path(__file__).resolve().parent.parent.parent
HOSTILE = Path(__file__).resolve().parent / "hostile"

_OF_REPETITION = ("repeat", "seconds", "seed", "trial_timeout_s")


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


def write_plan(
    program: Program, *how: str, floor: Literal["first", "last", "none"] = "last", env: str = "bare", **keys: Any
) -> Path:
    """A plan for the CPU: a trial for each hostile behaviour, in that order, and a good one before or after them.

    `keys` are the plan's own (hard_end_s, on_owner_exit, name) or those of its [repetition]. The program has to be the
    hostile copy where `how` names anything.
    """
    repetition = {"seconds": 0.05, **{name: keys.pop(name) for name in _OF_REPETITION if name in keys}}
    bad = [{"id": "hostile/misbehave", "parameters": {"how": list(how)}}] if how else []
    good = [{"id": "harness/floor"}]
    scenarios = {"first": good + bad, "last": bad + good, "none": bad}[floor]
    plan = {"schema": 1, **keys, "target": {"devices": ["cpu"]}, "environment": [{"kind": env}]}
    program.home.mkdir(parents=True, exist_ok=True)
    path = program.home / "plan.toml"
    path.write_text(tomli_w.dumps({**plan, "repetition": repetition, "scenario": scenarios}))
    return path


@dataclass(frozen=True)
class Process:
    """A living process: its parent, its command line with blanks between the words, its NAME=value entries."""

    pid: int
    parent: int
    command: str
    environment: frozenset[str]

    def has(self, *marks: str) -> bool:
        """Whether its environment has every one of `marks`."""
        return self.environment.issuperset(marks)


def processes() -> Iterator[Process]:
    """Every living process whose environment can be read; zombies and what is exiting already have none."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent, *_ = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            environment = (entry / "environ").read_bytes().decode(errors="replace")
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if state not in "ZX" and environment:
            yield Process(
                int(entry.name), int(parent), command.replace("\0", " ").strip(), frozenset(environment.split("\0"))
            )


def processes_with(*marks: str) -> Iterator[tuple[int, str]]:
    """(pid, command line) of living processes whose environment has one of `marks`."""
    return ((each.pid, each.command) for each in processes() if not each.environment.isdisjoint(marks))


def wait_for(condition: Any, seconds: float = 20.0, what: str = "the condition", pause_s: float = 0.02) -> None:
    """Wait until `condition()` is true; a test that waits in vain fails saying for what."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(pause_s)
