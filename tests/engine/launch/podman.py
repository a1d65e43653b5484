"""Real podman for the tests: a configuration that works on machines that may not raise limits, and what it ran."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine import files
from engine.launch.base import Launch, TrialFiles
from engine.stage import stage
from tests.worker.keeping import TOKEN

RUNTIMES = ("runc", "crun")


def configure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point podman to a configuration of the test's own, or skip where there is no podman that we may use."""
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed (apt-get install podman runc)")
    if os.geteuid() != 0:
        pytest.skip("an overlay of / needs root")
    runtime = next((name for name in RUNTIMES if shutil.which(name)), "")
    if not runtime:
        pytest.skip("podman has no runtime (apt-get install runc)")
    path = folder / "containers.conf"
    path.write_text(f'[engine]\nruntime = "{runtime}"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n')
    monkeypatch.setenv("CONTAINERS_CONF", str(path))


def podman(*arguments: str) -> str:
    """What the real client prints."""
    return subprocess.run(["podman", *arguments], capture_output=True, text=True, check=True, timeout=60).stdout


def trial_files(folder: Path, worker: str) -> TrialFiles:
    """A run folder with a real stage, whose worker is replaced by `worker`."""
    staged = stage(folder)
    files.write_private(staged / "engine" / "worker" / "main.py", worker.encode())
    scratch = folder / "scratch" / "t0001"
    files.make_private_folder(scratch)
    files.write_private(scratch / "trial.json", b"{}")
    return TrialFiles(stage=staged, spec=scratch / "trial.json", scratch=scratch)


def new_run() -> str:
    """A run id that no container has."""
    return f"test-{secrets.token_hex(4)}"


def start(launch: Launch) -> subprocess.Popen[bytes]:
    """Start a launch as the runner does."""
    pipe = subprocess.PIPE
    return subprocess.Popen(launch.argv, stdin=pipe, stdout=pipe, stderr=pipe, env=launch.env, cwd=launch.cwd)


def containers_of(run: str) -> list[str]:
    """The names of a run's containers, as podman itself says."""
    return podman("ps", "--all", "--filter", f"label=aibench.run={run}", "--format", "{{.Names}}").split()


def sleeper(name: str, *options: str) -> None:
    """A container that is not the program's, with the host's files."""
    podman(
        "run", "--detach", f"--name={name}", "--network=none", "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096",
        *options, "--rootfs", "/:O", "/bin/sleep", "600",
    )  # fmt: skip


PYTHON = sys.executable
__all__ = ["PYTHON", "TOKEN", "configure", "containers_of", "new_run", "podman", "sleeper", "start", "trial_files"]
