"""Energy of the processor packages from the kernel's powercap interface (Intel and AMD RAPL).

Only top-level packages count: psys contains the package, the package contains core and uncore, and the MMIO
interface repeats the MSR one; adding any of them counts joules twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.telemetry.provider import Reader, Unreadable
from engine.telemetry.sysfs import folders, read_number, read_text
from engine.values import Missing, Reading


@dataclass
class _Package:
    folder: Path
    last_uj: int
    range_uj: int | None
    energy_uj: int = 0

    def advance(self) -> None:
        """Adds what was used since the last reading; the counter may have run over its range once meanwhile."""
        now_uj = read_number(self.folder / "energy_uj")
        used_uj = now_uj - self.last_uj
        self.last_uj = now_uj
        if used_uj < 0:
            if self.range_uj is None or used_uj + self.range_uj < 0:
                raise Unreadable("RAPL: the counter went back and its range is not known")
            used_uj += self.range_uj
        self.energy_uj += used_uj


class Rapl:
    """Joules used by all packages since the first reading, and the mean power between two readings."""

    def __init__(self, sysfs: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._sysfs = sysfs
        self._clock = clock
        self._packages: list[_Package] = []
        self._last: tuple[float, float] | None = None

    def reader(self) -> Reader:
        """cpu_energy_j and cpu_power_w, all packages together."""
        count = len(self._folders())
        source = f"RAPL energy of {count} package{'s' if count > 1 else ''} (without GPU, NIC, fans and PSU loss)"
        return Reader(("cpu_energy_j", "cpu_power_w"), source, self.read)

    def read(self) -> Sequence[Reading]:
        """Raises Unreadable where there is no package or one of them cannot be read."""
        if not self._packages:
            self._open()
        for package in self._packages:
            package.advance()
        now, energy_j = self._clock(), sum(package.energy_uj for package in self._packages) * 1e-6
        power_w = self._power_since_last(now, energy_j)
        self._last = (now, energy_j)
        return [energy_j, power_w]

    def _open(self) -> None:
        packages = [_Package(folder, read_number(folder / "energy_uj"), _range(folder)) for folder in self._folders()]
        if not packages:
            raise Unreadable("RAPL: the kernel offers no package under class/powercap", lasting=True)
        self._packages = packages

    def _folders(self) -> list[Path]:
        zones = folders(self._sysfs / "class" / "powercap", "intel-rapl:*")
        return [zone for zone in zones if zone.name.count(":") == 1 and _is_package(zone)]

    def _power_since_last(self, now: float, energy_j: float) -> Reading:
        if self._last is None or now <= self._last[0]:
            return Missing("RAPL: power needs two readings")
        return (energy_j - self._last[1]) / (now - self._last[0])


def _is_package(zone: Path) -> bool:
    try:
        return read_text(zone / "name", 100).startswith("package")
    except Unreadable:
        return False


def _range(folder: Path) -> int | None:
    try:
        return read_number(folder / "max_energy_range_uj")
    except Unreadable:
        return None
