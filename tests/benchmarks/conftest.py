"""The program, for this suite."""

from __future__ import annotations

from tests.program.fixtures import program

__all__ = ["program"]
