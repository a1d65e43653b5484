"""The host provider: the whole node as the kernel sees it, whatever cgroup this process is in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import psutil

from engine.telemetry import hwmon
from engine.telemetry.provider import Reader, ReaderSet, Unreadable
from engine.telemetry.rapl import Rapl
from engine.telemetry.samples import HOST
from engine.telemetry.sysfs import folders, read_number, read_text
from engine.values import Reading

_CLOCKS_READ = 16
"""Clocks of at most so many CPUs are read, evenly spread: each costs an interrupt on its CPU."""

_PRESSURES = ("cpu", "memory", "io")


class HostProvider:
    """Processor, memory, load, pressure, package energy and temperature of this node.

    The first call of `fast` only takes the counters that later ones are compared with; nothing is described until
    the second.
    """

    name = "host"
    device = HOST
    doing = ""

    def __init__(self, sysfs: Path) -> None:
        self._sysfs = sysfs
        self._calls = 0
        self._fast = ReaderSet(())
        self._slow = ReaderSet(())

    def fast(self) -> dict[str, float]:
        """Utilisation, memory, package energy."""
        self._calls += 1
        if self._calls == 1:
            self._fast, self._slow = ReaderSet(self._fast_readers()), ReaderSet(self._slow_readers())
            return {}
        return self._fast.read()

    def slow(self) -> dict[str, float]:
        """Load, clock, pressure, swap, temperatures."""
        return self._slow.read()

    def sources(self) -> dict[str, str]:
        """The source of each quantity that can be read now."""
        return self._fast.sources | self._slow.sources if self._calls > 1 else {}

    def missing(self) -> dict[str, str]:
        """The reason for each quantity that cannot be read now."""
        return self._fast.missing | self._slow.missing if self._calls > 1 else {}

    def _fast_readers(self) -> list[Reader]:
        rapl = Rapl(self._sysfs)
        with contextlib.suppress(Unreadable):
            rapl.read()
        return [
            Reader(("cpu_utilisation_percent",), "psutil cpu times of all CPUs", Utilisation().read),
            Reader(("memory_used_bytes", "memory_available_bytes"), "psutil virtual memory", _memory),
            rapl.reader(),
        ]

    def _slow_readers(self) -> list[Reader]:
        clocks = _spread(folders(self._sysfs / "devices/system/cpu", "cpu[0-9]*/cpufreq/scaling_cur_freq"))
        return [
            Reader(("load_1min",), "getloadavg", lambda: [os.getloadavg()[0]]),
            Reader(("cpu_clock_mhz",), f"sysfs, mean of {len(clocks)} CPUs", lambda: [_clock_mhz(clocks)]),
            Reader(("swap_used_bytes",), "psutil swap memory", lambda: [float(psutil.swap_memory().used)]),
            Reader(tuple(f"{name}_pressure_s" for name in _PRESSURES), "PSI, some, total", _pressures),
            *hwmon.readers(self._sysfs),
        ]


class Utilisation:
    """Busy share of all CPUs between two readings, in percent; time waiting for I/O is idle time."""

    def __init__(self) -> None:
        self._last = _times()

    def read(self) -> Sequence[Reading]:
        """Raises Unreadable where the kernel's clock has not ticked since the last reading."""
        now = _times()
        busy_s, total_s = (after - before for after, before in zip(now, self._last, strict=True))
        if total_s <= 0:
            raise Unreadable("no processor time has passed since the last reading")
        self._last = now
        return [min(100.0, max(0.0, 100.0 * busy_s / total_s))]


def _times() -> tuple[float, float]:
    times = psutil.cpu_times()
    # The kernel counts guests' time in user and nice already.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return total - times.idle - getattr(times, "iowait", 0.0), total


def _memory() -> Sequence[Reading]:
    memory = psutil.virtual_memory()
    return [float(memory.total - memory.available), float(memory.available)]


def _spread(paths: list[Path]) -> list[Path]:
    return paths[:: max(1, -(-len(paths) // _CLOCKS_READ))]


def _clock_mhz(clocks: list[Path]) -> Reading:
    if not clocks:
        raise Unreadable("the kernel offers no cpufreq", lasting=True)
    return sum(read_number(clock) for clock in clocks) / len(clocks) * 1e-3


def _pressures() -> Sequence[Reading]:
    return [_pressure_s(Path("/proc/pressure") / name) for name in _PRESSURES]


def _pressure_s(path: Path) -> float:
    """Seconds in which some task waited, since boot: `some avg10=0.00 ... total=MICROSECONDS` (kernel's psi.rst)."""
    try:
        return int(read_text(path, 400).split("\n")[0].rpartition("total=")[2]) * 1e-6
    except ValueError as error:
        raise Unreadable(f"{path} is not in the form of psi.rst") from error
