"""The policy of the suite, seen from outside: a real pytest with our conftest over a small suite of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from tests.architecture.sources import ROOT


def run_suite(folder: Path, test: str, *, ci: bool = True, where: str = "engine", conftest: str = "") -> str:
    """What pytest prints for a suite of one file; its last line ends with the exit code."""
    inner = folder / "tests" / where
    inner.mkdir(parents=True)
    for package in (inner, folder / "tests"):
        (package / "__init__.py").touch()
    for name in ("conftest.py", "policy.py"):
        shutil.copy(ROOT / "tests" / name, folder / "tests" / name)
    with (folder / "tests" / "conftest.py").open("a") as file:
        file.write(conftest)
    (folder / "pytest.ini").touch()
    (inner / "test_it.py").write_text(test)
    environment = {**os.environ, "CI": "true" if ci else "", "TMPDIR": str(folder)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests"]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    return f"{result.stdout}{result.stderr}\nexit {result.returncode}"


def test_a_good_suite_passes_and_leaves_no_folder(tmp_path: Path) -> None:
    output = run_suite(tmp_path, "def test_it(): pass\n")
    assert output.endswith("exit 0")
    assert "1 passed" in output
    assert list(tmp_path.glob("aibench-tests-*")) == []


def test_an_unjustified_skip_fails_ci(tmp_path: Path) -> None:
    output = run_suite(tmp_path, "import pytest\ndef test_it(): pytest.skip('no podman')\n")
    assert output.endswith("exit 1")
    assert "tests/engine/test_it.py::test_it: no podman" in output


def test_a_module_that_skips_itself_fails_ci(tmp_path: Path) -> None:
    output = run_suite(tmp_path, "import pytest\npytest.importorskip('no_such_module')\ndef test_it(): pass\n")
    assert output.endswith("exit 1")
    assert "1 error" in output


def test_an_unjustified_skip_passes_at_home(tmp_path: Path) -> None:
    output = run_suite(tmp_path, "import pytest\ndef test_it(): pytest.skip('no podman')\n", ci=False)
    assert output.endswith("exit 0")


def test_a_justified_skip_passes_ci(tmp_path: Path) -> None:
    output = run_suite(tmp_path, "import pytest\ndef test_it(): pytest.skip('cannot here: no accelerator')\n")
    assert output.endswith("exit 0")


def test_a_folder_over_its_budget_fails(tmp_path: Path) -> None:
    budget = "from tests.policy import BUDGET_MINUTES\nBUDGET_MINUTES['engine'] = 0.0001\n"
    output = run_suite(tmp_path, "import time\ndef test_it(): time.sleep(0.1)\n", conftest=budget)
    assert output.endswith("exit 1")
    assert "over its budget" in output


def test_a_folder_without_a_budget_fails(tmp_path: Path) -> None:
    output = run_suite(tmp_path, "def test_it(): pass\n", where="elsewhere")
    assert output.endswith("exit 1")
    assert "tests/elsewhere took" in output


def test_a_process_left_running_fails_and_is_ended(tmp_path: Path) -> None:
    test = (
        "import os, subprocess\n"
        "def test_it():\n"
        "    environment = {**os.environ, 'AIBENCH_RUN_ID': 'r'}\n"
        "    process = subprocess.Popen(['sleep', '300'], env=environment, start_new_session=True)\n"
        "    with open('pid', 'w') as file: file.write(str(process.pid))\n"
    )
    output = run_suite(tmp_path, test, conftest="from tests import policy\npolicy.GRACE_S = 0\n")
    assert output.endswith("exit 1")
    assert "left running after the tests (now killed)" in output
    assert not runs(int((tmp_path / "pid").read_text()))


def runs(pid: int) -> bool:
    """Whether a process is alive; one that is only waiting to be collected is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
