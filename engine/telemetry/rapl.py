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
    wrapped_uj: int = 0

    @property
    def energy_uj(self) -> int:
        """The kernel's own count, so that a telemetry process that is started again goes on where the last one was."""
        return self.wrapped_uj + self.last_uj

    def advance(self) -> None:
        """Reads the counter; it may have run over its range once since the last reading."""
        last_uj, self.last_uj = self.last_uj, read_number(self.folder / "energy_uj")
        if self.last_uj >= last_uj:
            return
        if self.range_uj is None or self.last_uj + self.range_uj < last_uj:
            self.wrapped_uj = 0
            raise Unreadable("RAPL: the counter went back and its range is not known")
        self.wrapped_uj += self.range_uj


class Rapl:
    """Joules that the kernel has counted for all packages, and the mean power between two readings.

    The count goes on where a counter runs over its range; where that is not known it begins anew, with one reading
    missing.
    """

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
        last, self._last = self._last, None  # no power from a reading before one that failed
        for package in self._packages:
            package.advance()
        now, energy_j = self._clock(), sum(package.energy_uj for package in self._packages) * 1e-6
        self._last = (now, energy_j)
        return [energy_j, _power_w(last, self._last)]

    def _open(self) -> None:
        packages = [_Package(folder, read_number(folder / "energy_uj"), _range(folder)) for folder in self._folders()]
        if not packages:
            raise Unreadable("RAPL: the kernel offers no package under class/powercap", lasting=True)
        self._packages = packages

    def _folders(self) -> list[Path]:
        zones = folders(self._sysfs / "class" / "powercap", "intel-rapl:*")
        return [zone for zone in zones if zone.name.count(":") == 1 and _is_package(zone)]


def _power_w(last: tuple[float, float] | None, now: tuple[float, float]) -> Reading:
    """From two pairs of seconds and joules."""
    if last is None or now[0] <= last[0]:
        return Missing("RAPL: power needs two readings")
    return (now[1] - last[1]) / (now[0] - last[0])


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
