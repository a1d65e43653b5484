"""The wheel and the editable install, in fresh virtual environments, among files that carry our modules' names."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.version import VERSION
from tests.architecture.sources import PACKAGES, ROOT

HOSTILE = ("argparse", "engine", "json", "msgspec", "pathlib", "scenarios", "tui")
BOTH = pytest.mark.parametrize("mode", ["wheel", "editable"])


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the program: from a wheel or editable."""

    python: Path
    script: Path

    def run(self, *arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """The console script with `arguments`, in a folder, with further environment variables."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), **variables}
        command = [str(self.script), *arguments]
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Installed]:
    return {
        "wheel": _install(tmp_path_factory.mktemp("by-wheel"), str(wheel)),
        "editable": _install(tmp_path_factory.mktemp("editable"), "--no-build-isolation", "--editable", str(ROOT)),
    }


def _install(folder: Path, *what: str) -> Installed:
    """Our package by pip, offline; its dependencies are those of this interpreter, behind a path file."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin/python"
    inside = next(folder.glob("lib/python*/site-packages"))
    (inside / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    result = subprocess.run([*command, "--ignore-installed", *what], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return Installed(python, folder / "bin/aibench-tui")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    for name in HOSTILE:
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of somebody else was imported')\n")
    return tmp_path


def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file()}
    wanted = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    assert shipped == {*wanted, "aibench_tui.py"}


def test_the_wheel_has_data_files(wheel: Path) -> None:
    assert any(name.endswith(".toml") for name in zipfile.ZipFile(wheel).namelist())


@BOTH
@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["help", "exit-codes"], ["list", "--json"]])
def test_starts_in_a_folder_with_files_named_as_our_modules(
    installed: dict[str, Installed], mode: str, arguments: list[str], hostile: Path
) -> None:
    result = installed[mode].run(*arguments, cwd=hostile)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout


@BOTH
@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["help", "exit-codes"], ["list", "--json"]])
def test_starts_with_such_a_folder_on_pythonpath(
    installed: dict[str, Installed], mode: str, arguments: list[str], hostile: Path, tmp_path: Path
) -> None:
    result = installed[mode].run(*arguments, cwd=tmp_path, PYTHONPATH=str(hostile))
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout


@BOTH
def test_version(installed: dict[str, Installed], mode: str, tmp_path: Path) -> None:
    assert installed[mode].run("--version", cwd=tmp_path).stdout == f"aibench-tui {VERSION}\n"


@BOTH
def test_runs_the_installed_modules(installed: dict[str, Installed], mode: str, hostile: Path) -> None:
    code = "import aibench_tui, engine; print(engine.__file__)"
    command = [str(installed[mode].python), "-I", "-c", code]
    result = subprocess.run(command, cwd=hostile, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.startswith(str(ROOT)) is (mode == "editable")
