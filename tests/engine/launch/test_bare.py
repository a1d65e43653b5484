"""The bare launcher's command, and a real trial by it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.launch import launcher_for
from engine.launch.bare import BareLauncher
from engine.launch.base import Launcher, TrialFiles
from engine.launch.oci import OciLauncher
from engine.plan import Environment
from tests.engine.launch.podman import start, trial_files

FILES = TrialFiles(stage=Path("/run1/stage"), spec=Path("/run1/scratch/t0001/s"), scratch=Path("/run1/scratch/t0001"))


def test_the_command_word_by_word() -> None:
    launch = BareLauncher("/usr/bin/python3", "GPU-1", "cuda").prepare("run1", "t0001", "tok", 300.0, FILES)
    assert " ".join(launch.argv) == (
        "/usr/bin/python3 -I /run1/stage/engine/worker/keeper.py --run run1 --trial t0001 --deadline 300"
        " -- /usr/bin/python3 /run1/stage/engine/worker/main.py /run1/scratch/t0001/s"
    )
    assert (launch.cwd, launch.handle, launch.runtime) == (FILES.scratch, "", "")
    assert launch.env["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert launch.env["AIBENCH_RUN_FOLDER"] == "/run1"


def test_a_trial_runs_with_nothing_but_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "s3cret")
    files = trial_files(tmp_path, "import json, os, sys\nprint(json.dumps([dict(os.environ), os.getcwd(), sys.argv]))")
    launch = BareLauncher(sys.executable, "cpu", "cpu").prepare("run1", "t0001", "tok", 60.0, files)
    with start(launch) as process:
        assert process.stdout is not None
        lines = process.stdout.read().split(b"\n")
    environment, folder, argv = json.loads(lines[0])
    assert environment == {name: value for name, value in launch.env.items() if name != "AIBENCH_TOKEN"}
    assert "HF_TOKEN" not in environment
    assert (folder, argv[1]) == (str(files.scratch), str(files.spec))
    assert json.loads(lines[-2])["token"] == "tok"


def test_the_users_own_modules_are_found_but_do_not_reach_the_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostile json.py on the PYTHONPATH hits the worker, where the framework may be, and not the keeper."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "json.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.setenv("PYTHONPATH", str(modules))
    launch = BareLauncher(sys.executable, "cpu", "cpu").prepare(
        "run1", "t0001", "tok", 60.0, trial_files(tmp_path, "import json")
    )
    done = subprocess.Popen(
        launch.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=launch.env
    )
    with done:
        assert done.stdout is not None and done.stderr is not None
        assert b'"exit_code":1' in done.stdout.read()
        assert done.stderr.read() == b"shadowed\n"


@pytest.mark.parametrize(("kind", "launcher"), [("bare", BareLauncher), ("docker", OciLauncher)])
def test_the_launcher_of_an_environment(
    kind: str, launcher: type[Launcher], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = tmp_path / "docker"
    client.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    environment = Environment(kind="bare") if kind == "bare" else Environment(kind="docker", image="pytorch:1")
    assert isinstance(launcher_for(environment, "/usr/bin/python3", "cpu", "cpu"), launcher)


def test_a_bare_trial_has_no_runtime() -> None:
    assert BareLauncher("python3", "cpu", "cpu").describe() == {"runtime": "none"}
