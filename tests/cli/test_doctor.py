"""doctor: what a machine must have, said in lines even where a check cannot run; and what only tells makes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine import exits
from engine.doctor import Check, examine
from tests.nvml_stub import Stub
from tests.program import REPOSITORY, Program

CPU_TORCH = (
    "__version__ = '2.9.0'\nclass version: cuda = None\n"
    "class __config__:\n    @staticmethod\n    def show(): return 'BLAS_INFO=open'\n"
)


@pytest.fixture
def with_cpu_torch(tmp_path: Path) -> Program:
    """Every Python of this user has a torch that was built for processors alone."""
    (tmp_path / "packages" / "torch").mkdir(parents=True)
    (tmp_path / "packages" / "torch" / "__init__.py").write_text(CPU_TORCH)
    return Program(tmp_path / "home", extra_env={"PYTHONPATH": str(tmp_path / "packages")})


def test_torch_for_processors_will_do_on_a_node_without_accelerators(with_cpu_torch: Program, tmp_path: Path) -> None:
    stub = Stub(tmp_path, 0).environment
    with_cpu_torch.extra_env = {**(with_cpu_torch.extra_env or {}), "LD_LIBRARY_PATH": stub["LD_LIBRARY_PATH"]}
    done = with_cpu_torch.call("doctor", "--need", "torch", "--python", sys.executable)
    assert (done.returncode, done.stderr) == (0, "")
    assert "torch 2.9.0" in done.stdout


def test_torch_for_processors_will_not_do_on_a_node_with_a_gpu(with_cpu_torch: Program, tmp_path: Path) -> None:
    stub = Stub(tmp_path).environment
    names = ("LD_LIBRARY_PATH", "NVML_STUB_STATE")
    with_cpu_torch.extra_env = {**(with_cpu_torch.extra_env or {}), **{name: stub[name] for name in names}}
    done = with_cpu_torch.call("doctor", "--need", "torch", "--python", sys.executable)
    assert done.returncode == exits.NOT_READY
    assert "torch 2.9.0 is built without CUDA" in done.stderr


def test_process_that_cannot_be_started_is_a_line_and_the_other_checks_go_on(tmp_path: Path) -> None:
    """No descriptor is left for a pipe to the hardware probe."""
    code = (
        "import json, msgspec, resource, sys; from pathlib import Path; from engine.doctor import examine\n"
        "limits = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))\n"
        "checks = examine(Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, limits)\n"
        "print(json.dumps(msgspec.to_builtins(checks)))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert checks["program"]["state"] == "ok"
    assert (checks["device"]["state"], "Too many open files" in checks["device"]["found"]) == ("problem", True)
    assert checks["open files (ulimit -n)"]["state"] == "warning"


def test_check_that_fails_in_an_unforeseen_way_is_a_problem() -> None:
    """A folder's name with a NUL byte is no OSError in Python."""
    checks = examine(Path("no\0folder"), "/nowhere/python")
    assert Check("folders", "problem", "cannot be checked: ValueError: embedded null byte") in checks
    assert "limits" not in {check.name for check in checks}


def test_help_of_files_makes_none(program: Program) -> None:
    program.home.mkdir(exist_ok=True)
    done = program.call("help", "files")
    assert str(program.runtime) in done.stdout
    assert not program.runtime.exists()
    assert list(program.home.iterdir()) == []
