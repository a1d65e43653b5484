"""Files and functions stay small, dependencies have a reason, and documents name what is there."""

from __future__ import annotations

import ast
import re
import statistics
import warnings
from pathlib import Path

from tests.architecture.sources import PACKAGES, ROOT, python_files, tree

WANTED_LINES = 400
MOST_LINES = 500
# The roots of a Linux file system; any other absolute path is one of somebody's own machine.
SYSTEM_ROOTS = {
    *("bin", "boot", "dev", "etc", "lib", "lib64", "media", "mnt", "opt", "proc", "run", "sbin", "srv", "sys", "tmp"),
    *("usr", "var"),
}
_ABSOLUTE = re.compile(r"""(?:^|(?<=[\s"'`(=]))/(?P<root>[a-z][\w.-]*)/[\w.-]""", re.MULTILINE)
_DOCUMENT = re.compile(r"(?<![\w/.:*{}-])(?:[\w-]+/)*[\w.-]+\.md\b")


def test_files_are_short() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in python_files("aibench_tui.py", *PACKAGES, "tests")}
    for path, lines in lengths.items():
        if lines > WANTED_LINES:
            warnings.warn(f"{path.relative_to(ROOT)} has {lines} lines, over {WANTED_LINES}", stacklevel=1)
    assert {str(path.relative_to(ROOT)): lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


def test_half_of_all_functions_are_under_ten_lines() -> None:
    lengths = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for path in python_files("aibench_tui.py", *PACKAGES)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert statistics.median(lengths) < 10


def test_every_dependency_has_a_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    project = text[text.index("dependencies = [") : text.index("[project.scripts]")]
    requirements = [line for line in project.splitlines() if re.match(r'\s+"[a-z]', line)]
    assert len(requirements) > 10
    assert [line for line in requirements if not re.search(r'", # \w+', line)] == []


def test_documents_that_are_named_exist() -> None:
    texts = _texts()
    names = {path.name for path in texts} | {str(path.relative_to(ROOT)) for path in texts}
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path, text in texts.items()
        for name in _DOCUMENT.findall(text)
        if name not in names
    }
    assert missing == set()


def test_no_file_names_a_folder_of_somebodys_machine() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path, text in _texts().items()
        if path.relative_to(ROOT).parts[0] != "tests"  # they make up paths
        for match in _ABSOLUTE.finditer(text)
        if match["root"] not in SYSTEM_ROOTS
    }
    assert found == set()


def _texts() -> dict[Path, str]:
    """Every text of the repository, LICENSE and lock files apart."""
    folders = (*PACKAGES, "docs", "snapshots", "tests", "tools")
    paths = [*ROOT.glob("*"), *ROOT.glob(".ci/*"), *(path for name in folders for path in (ROOT / name).rglob("*"))]
    endings = {"", ".css", ".html", ".json", ".jsonl", ".md", ".py", ".sh", ".svg", ".tcss", ".toml", ".txt"}
    return {path: path.read_text(errors="replace") for path in paths if path.is_file() and path.suffix in endings}
