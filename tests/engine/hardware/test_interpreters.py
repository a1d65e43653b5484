"""Choosing a worker's Python: real interpreters, and scripts that behave badly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from engine.errors import AibenchError
from engine.hardware import interpreters
from engine.hardware.interpreters import candidates, choose
from tests.program import REPOSITORY
from tests.worker.keeping import wait_until

NOTHING = {"PATH": "/nonexistent"}


def _script(path: Path, body: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def _environment(folder: Path) -> str:
    """A bare virtual environment without pip; its python is a link to the one that runs the tests."""
    venv.create(folder, symlinks=True)
    return str(folder / "bin" / "python")


def _package(folder: Path, name: str, code: str) -> dict[str, str]:
    """The environment in which a package with this code can be imported."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(code)
    return {**os.environ, "PYTHONPATH": str(folder)}


def test_two_environments_on_one_binary_are_two_candidates(tmp_path: Path) -> None:
    first, second = _environment(tmp_path / "a"), _environment(tmp_path / "b")
    found = list(candidates({"VIRTUAL_ENV": str(tmp_path / "a"), "CONDA_PREFIX": str(tmp_path / "b"), **NOTHING}))
    assert found[:2] == [first, second]


def test_one_interpreter_by_two_names_is_one_candidate(tmp_path: Path) -> None:
    _environment(tmp_path / "a")
    environment = {"VIRTUAL_ENV": str(tmp_path / "a"), "PATH": str(tmp_path / "a" / "bin")}
    assert [path for path in candidates(environment) if path.startswith(str(tmp_path))] == [
        str(tmp_path / "a" / "bin" / "python")
    ]


def test_framework_that_is_installed_is_chosen_with_its_builds() -> None:
    pytest.importorskip("torch", reason="torch is not installed in this environment")
    chosen = choose(sys.executable, "auto", "cpu")
    assert (chosen.path, chosen.framework) == (sys.executable, "torch")
    assert {"python", "torch", "torch_cuda", "torch_blas"} <= set(chosen.versions)


def test_candidate_without_the_framework_is_passed_over_and_named(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed in this environment")
    bare = _environment(tmp_path / "bare")
    chosen = choose("auto", "torch", "cpu", environment={**os.environ, "VIRTUAL_ENV": str(tmp_path / "bare")})
    assert chosen.tried[0].startswith(f"{bare} (Python ")
    assert "without torch" in chosen.tried[0]
    assert chosen.path != bare


def test_scenario_without_a_framework_takes_the_first_python(tmp_path: Path) -> None:
    bare = _environment(tmp_path / "bare")
    chosen = choose("auto", "python", "cpu", environment={**os.environ, "VIRTUAL_ENV": str(tmp_path / "bare")})
    assert (chosen.path, set(chosen.versions)) == (bare, {"python"})


@pytest.mark.parametrize(("mode", "why"), [(None, "is not there"), (0o644, "is not executable")])
def test_python_that_cannot_be_run_is_named_in_one_line(tmp_path: Path, mode: int | None, why: str) -> None:
    path = tmp_path / "py\x1b[2Jthon"
    if mode is not None:
        path.write_text("")
        path.chmod(mode)
    with pytest.raises(AibenchError, match=why) as caught:
        choose(str(path), "torch", "cpu")
    assert caught.value.code == 2
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_python_that_is_no_python_is_named(tmp_path: Path) -> None:
    path = _script(tmp_path / "python", "head -c 3000 /dev/urandom; echo; echo '{\"python\": 3}'")
    with pytest.raises(AibenchError, match="an answer that is not a Python's") as caught:
        choose(path, "torch", "cpu")
    assert caught.value.code == 2
    assert "--python PATH" in str(caught.value)


def test_python_that_prints_for_ever_costs_its_limit(tmp_path: Path) -> None:
    path = _script(tmp_path / "python", "yes")
    with pytest.raises(AibenchError, match="bytes of output"):
        choose(path, "torch", "cpu")


def test_python_that_hangs_costs_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "FIND_LIMIT_S", 0.5)
    path = _script(tmp_path / "python", "sleep 1000 & echo $! > $0.pid; wait")
    with pytest.raises(AibenchError, match=r"no end within 0\.5 s"):
        choose(path, "torch", "cpu")
    sleeper = int((tmp_path / "python.pid").read_text())
    assert not _runs(sleeper)


def test_inspection_does_not_outlive_a_killed_runner(tmp_path: Path) -> None:
    path = _script(tmp_path / "python", "echo $$ > $0.part; mv $0.part $0.pid; exec sleep 1000")
    code = "import sys; from engine.hardware.interpreters import choose; choose(sys.argv[1], 'torch', 'cpu')"
    written = tmp_path / "python.pid"
    with subprocess.Popen([sys.executable, "-c", code, path], cwd=REPOSITORY) as runner:
        wait_until(written.exists)
        runner.kill()
    wait_until(lambda: not _runs(int(written.read_text())))


def _seen(folder: Path, kind: str, **named: str) -> dict[str, str]:
    """The environment in which a framework is imported to see what it can do."""
    code = f"import json, os\njson.dump(dict(os.environ), open({str(folder / 'seen')!r}, 'w'))\n"
    environment = _package(folder / "p", "torch", code) | {"HF_TOKEN": "x", "PYTHONHOME": "/x", "OMP_NUM_THREADS": "3"}
    with pytest.raises(AibenchError, match="AttributeError"):
        choose(_environment(folder / "a"), "torch", kind, environment=environment, **named)
    seen: dict[str, str] = json.loads((folder / "seen").read_text())
    return seen


def test_framework_is_inspected_with_a_workers_environment(tmp_path: Path) -> None:
    seen = _seen(tmp_path, "cpu")
    assert (seen["OMP_NUM_THREADS"], seen["CUDA_VISIBLE_DEVICES"]) == ("3", "")
    assert {"HF_TOKEN", "PYTHONHOME"}.isdisjoint(seen)


def test_framework_is_inspected_with_one_visible_device(tmp_path: Path) -> None:
    assert _seen(tmp_path, "cuda", device="GPU-7")["CUDA_VISIBLE_DEVICES"] == "GPU-7"


def test_shim_is_asked_with_its_own_variables_and_then_passed_by(tmp_path: Path) -> None:
    """A worker has no PYENV_VERSION, so what is inspected and run is the Python that the shim means with it."""
    real = _environment(tmp_path / "a")
    _script(tmp_path / "shims" / "python3", f'[ "$PYENV_VERSION" = a ] && exec {real} "$@"; exit 1')
    code = "__version__ = '9'\nclass version: cuda = None\nclass __config__: show = staticmethod(str)\n"
    environment = {"PATH": str(tmp_path / "shims"), "PYENV_VERSION": "a"}
    environment["PYTHONPATH"] = _package(tmp_path / "p", "torch", code)["PYTHONPATH"]
    assert choose("auto", "torch", "cpu", environment=environment).path == real


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_python_that_is_too_old_is_named(tmp_path: Path) -> None:
    answer = '{"python": "3.6.8", "executable": "/x", "prefix": "/", "found": {"torch": "1.0"}}'
    path = _script(tmp_path / "python", f"echo '{answer}'")
    with pytest.raises(AibenchError, match=r"3\.6\.8 is older than 3\.10"):
        choose(path, "torch", "cpu")


def test_framework_without_the_device_is_named(tmp_path: Path) -> None:
    code = (
        "__version__ = '2.9.0'\nclass version: cuda = None\n"
        "class __config__:\n    @staticmethod\n    def show(): return 'BLAS_INFO=open'\n"
    )
    with pytest.raises(AibenchError, match=r"torch 2\.9\.0 is built without CUDA"):
        choose(_environment(tmp_path / "a"), "torch", "cuda", environment=_package(tmp_path / "p", "torch", code))


def test_framework_that_fails_to_import_is_named_with_its_error(tmp_path: Path) -> None:
    environment = _package(tmp_path / "p", "torch", "raise OSError('libcudart.so.13: cannot open\\nsecond line')")
    with pytest.raises(AibenchError, match="OSError: libcudart") as caught:
        choose(_environment(tmp_path / "a"), "torch", "cpu", environment=environment)
    assert "second line" not in str(caught.value)


def test_framework_that_hangs_on_import_costs_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "IMPORT_LIMIT_S", 0.5)
    environment = _package(tmp_path / "p", "torch", "import time; time.sleep(1000)")
    with pytest.raises(AibenchError, match=r"importing torch: no end within 0\.5 s"):
        choose(_environment(tmp_path / "a"), "torch", "cpu", environment=environment)


def test_framework_that_prints_on_import_changes_nothing(tmp_path: Path) -> None:
    code = (
        "print('{\"versions\": {}')\n__version__ = '9'\nclass version: cuda = None\n"
        "class __config__:\n    @staticmethod\n    def show(): return 'BLAS_INFO=mkl'\n"
    )
    environment = _package(tmp_path / "p", "torch", code)
    chosen = choose(_environment(tmp_path / "a"), "torch", "cpu", environment=environment)
    assert (chosen.versions["torch"], chosen.versions["torch_blas"]) == ("9", "mkl")


def test_folder_that_only_has_the_name_of_a_framework_is_none(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with pytest.raises(AibenchError, match="without torch or jax"):
        choose(_environment(tmp_path / "a"), "auto", "cpu", environment=environment)


def test_inspection_does_not_import_from_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "inspect_frameworks.py").write_bytes(interpreters.INSPECT.read_bytes())
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    command = [sys.executable, str(tmp_path / "inspect_frameworks.py"), "find"]
    finished = subprocess.run(command, capture_output=True, check=True, timeout=30)
    assert finished.stdout.startswith(b'{"python"')
