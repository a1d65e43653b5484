"""The program as a fixture, for every suite that starts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.program import Program, copy_with_hostile


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """The program as it is in the repository."""
    return Program(tmp_path)


@pytest.fixture(scope="session")
def hostile_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the program that has the hostile scenarios."""
    return copy_with_hostile(tmp_path_factory.mktemp("copy"))


@pytest.fixture
def hostile(tmp_path: Path, hostile_root: Path) -> Program:
    """The copy, with folders of its own."""
    return Program(tmp_path, root=hostile_root)
