"""The program, for this suite."""

from __future__ import annotations

from tests.program.fixtures import hostile, hostile_root, program

__all__ = ["hostile", "hostile_root", "program"]
