"""No framework at all: calls of plain Python, timed through the very same path as any other work."""

from __future__ import annotations

import platform
from typing import ClassVar

from engine.worker.adapters import host
from engine.worker.adapters.base import Adapter
from engine.worker.card import Frameworks, Scalar


class PythonAdapter(Adapter):
    """The interpreter on the host's processor."""

    framework: ClassVar[Frameworks] = "python"

    def facts(self) -> dict[str, Scalar]:
        return {
            "framework": "python",
            "framework_version": platform.python_version(),
            "device_name": host.processor_name(),
        }

    def supports(self, dtype: str) -> str:
        return "" if dtype == "fp64" else f"not supported by framework: plain Python has no {dtype}"

    def free_bytes(self) -> int:
        return host.available_bytes()

    def synchronize(self) -> None:
        """Nothing runs in the background."""
