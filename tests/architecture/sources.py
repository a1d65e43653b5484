"""The files that the architecture tests read, each parsed once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("engine", "scenarios", "tui")
WORKER = ("engine/worker", "scenarios")
"""What is copied to where the work is done."""


def python_files(*places: str) -> list[Path]:
    """The Python files of folders (or single files) below the repository's root, in order."""
    found = [path for place in places for path in _below(ROOT / place)]
    assert found, f"nothing in {places}"
    return found


def _below(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def place(path: Path, node: ast.AST) -> str:
    """Where a node stands, as file:line."""
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def imports(node: ast.AST, *, inside_function: bool = False) -> Iterator[tuple[ast.stmt, str, bool]]:
    """Each imported module below a node: its statement, its name, and whether only a call imports it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((child, alias.name, inside_function) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield child, "." * child.level + (child.module or ""), inside_function
        inside = inside_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from imports(child, inside_function=inside)
