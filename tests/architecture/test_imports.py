"""Who may import whom: the contracts of pyproject.toml, and an allow-list for what runs in other interpreters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.architecture.sources import ROOT, WORKER, imports, place, python_files, tree

FRAMEWORKS = {"jax", "jaxlib", "torch"}
# In the standard library of 3.10, but not of what an image may bring (3.12 and 3.13 removed them) ...
REMOVED = {
    *("aifc", "asynchat", "asyncore", "audioop", "cgi", "cgitb", "chunk", "crypt", "distutils", "imghdr", "imp"),
    *("lib2to3", "mailcap", "msilib", "nis", "nntplib", "ossaudiodev", "pipes", "smtpd", "sndhdr", "spwd", "sunau"),
    *("telnetlib", "uu", "xdrlib"),
}
# ... or newer than 3.10.
ADDED = {"annotationlib", "compression", "tomllib"}
STANDARD = sys.stdlib_module_names - REMOVED - ADDED


def test_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


def test_worker_and_scenarios_import_the_standard_library_each_other_and_frameworks_inside_functions() -> None:
    wrong = [
        f"{place(path, statement)}: {name}"
        for path in python_files(*WORKER)
        for statement, name, inside_function in imports(tree(path))
        if not _allowed(name, inside_function)
    ]
    assert wrong == []


def test_no_relative_imports() -> None:
    wrong = [
        place(path, statement)
        for path in python_files("engine", "scenarios", "tui", "tests")
        for statement, name, _ in imports(tree(path))
        if name.startswith(".")
    ]
    assert wrong == []


def test_the_engine_package_is_empty() -> None:
    assert (ROOT / "engine/__init__.py").read_text() == ""


def _allowed(name: str, inside_function: bool) -> bool:
    top = name.partition(".")[0]
    if top in STANDARD or top == "scenarios" or name == "engine.worker" or name.startswith("engine.worker."):
        return True
    return inside_function and top in FRAMEWORKS
