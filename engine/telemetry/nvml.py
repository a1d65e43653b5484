"""The NVIDIA provider: one device by UUID, read through NVML."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from engine.telemetry.nvml_library import Nvml, open_device, sane
from engine.telemetry.provider import DeviceLost, Reader, ReaderSet, Unreadable
from engine.values import Missing, Reading

ENERGY_PERIOD_S = 0.25
"""The counter moves every 100 ms, but the driver spins 3.5 ms of processor time to read it (H200, driver 580): at
10 Hz that would be more than everything else together. Power at 10 Hz shows what happens in between."""

REOPEN_S = 10.0
"""How often a lost device, or a missing library, is tried again."""

LIMITS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Clock event bits (nvmlClocksEventReason* in nvml.h); any other bit is `limit_other`."""

_POWER_INSTANT = 186
_MEMORY_TEMPERATURE = 82
_AMPERE = 7


class NvmlProvider:
    """One NVIDIA device. The first reading opens it; once lost, it is opened again after `reopen_s` at the soonest."""

    name = "nvml"

    def __init__(self, device: str, *, clock: Callable[[], float] = time.monotonic, reopen_s: float = REOPEN_S) -> None:
        self.device = device
        self._clock = clock
        self._reopen_s = reopen_s
        self._nvml = Nvml()
        self._open_at: float | None = float("-inf")
        self._supported_limits = ~0
        self._limit_family = "ClocksEventReasons"
        self._power_usage_source = "NVML power usage"
        self._handle: Any = None
        self._gpu: Any = None
        self._fast = ReaderSet(self._fast_readers(), clock)
        self._slow = ReaderSet(self._slow_readers(), clock)

    @property
    def doing(self) -> str:
        """The NVML function that has not returned yet, "" between calls; may be read by any thread."""
        return self._nvml.doing

    def fast(self) -> dict[str, float]:
        """Power, energy, temperatures, clocks, limits, utilisation, memory."""
        try:
            self._open_if_due()
            if self._open_at is not None:
                return {}
            values = self._fast.read()
            if not values:
                raise DeviceLost(next(iter(self._fast.missing.values()), "NVML: nothing can be read"))
            return values
        except DeviceLost as error:
            self._lose(str(error))
            return {}

    def slow(self) -> dict[str, float]:
        """PCIe, memory errors, power limit, fan, states."""
        if self._open_at is not None:
            return {}
        try:
            return self._slow.read()
        except DeviceLost as error:
            self._lose(str(error))
            return {}

    def sources(self) -> dict[str, str]:
        """The source of each quantity that can be read now."""
        return self._fast.sources | self._slow.sources

    def missing(self) -> dict[str, str]:
        """The reason for each quantity that cannot be read now."""
        return self._fast.missing | self._slow.missing

    def _open_if_due(self) -> None:
        if self._open_at is None or self._clock() < self._open_at:
            return
        self._nvml.start()
        try:
            self._handle, self._gpu = open_device(self._nvml, self.device)
            self._learn_limits()
            self._power_usage_source = self._name_power_usage()
        except DeviceLost:
            self._nvml.stop()
            raise
        self._open_at = None
        whole = " of the whole GPU" if self._handle is not self._gpu else ""
        self._fast = ReaderSet(self._fast_readers(whole), self._clock)
        self._slow = ReaderSet(self._slow_readers(whole), self._clock)

    def _lose(self, reason: str) -> None:
        if self._open_at is None:
            self._nvml.stop()
        self._open_at = self._clock() + self._reopen_s
        self._fast.lose(reason)
        self._slow.lose(reason)

    def _fast_readers(self, whole: str = "") -> list[Reader]:
        def reader(source: str, function: str, *arguments: Any, name: str, scale: float = 1.0) -> Reader:
            return Reader((name,), source + whole, partial(self._scaled, scale, function, *arguments))

        return [
            Reader(("power_w",), "NVML field power_instant" + whole, self._power_instant),
            reader(self._power_usage_source, "DeviceGetPowerUsage", name="power_w", scale=1e-3),
            Reader(("energy_j",), "NVML total energy counter" + whole, self._energy, ENERGY_PERIOD_S),
            reader("NVML temperature", "DeviceGetTemperature", 0, name="temperature_c"),
            Reader(("memory_temperature_c",), "NVML field memory_temp" + whole, self._memory_temperature),
            reader("NVML clock info", "DeviceGetClockInfo", 1, name="sm_clock_mhz"),
            reader("NVML clock info", "DeviceGetClockInfo", 2, name="memory_clock_mhz"),
            Reader(
                ("utilisation_percent", "memory_utilisation_percent"),
                "NVML utilisation rates" + whole,
                self._utilisation,
            ),
            Reader(("memory_used_bytes",), "NVML memory info, the driver's reserve included", self._memory_used),
            Reader(
                tuple(f"limit_{name}" for name in (*LIMITS.values(), "other")),
                f"NVML {self._limit_family}{whole}",
                self._limits,
            ),
        ]

    def _slow_readers(self, whole: str = "") -> list[Reader]:
        def reader(function: str, *arguments: Any, name: str, scale: float = 1.0) -> Reader:
            source = f"NVML {function}{whole}"
            return Reader((name,), source, partial(self._scaled, scale, f"DeviceGet{function}", *arguments))

        return [
            reader("EnforcedPowerLimit", name="power_limit_w", scale=1e-3),
            reader("CurrPcieLinkGeneration", name="pcie_link_generation"),
            reader("CurrPcieLinkWidth", name="pcie_link_width"),
            reader("PcieReplayCounter", name="pcie_replays"),
            reader("PcieThroughput", 0, name="pcie_tx_bytes_per_s", scale=1e3),
            reader("PcieThroughput", 1, name="pcie_rx_bytes_per_s", scale=1e3),
            reader("TotalEccErrors", 0, 0, name="ecc_corrected_errors"),
            reader("TotalEccErrors", 1, 0, name="ecc_uncorrected_errors"),
            Reader(
                (
                    "remapped_rows_corrected",
                    "remapped_rows_uncorrected",
                    "remapped_rows_pending",
                    "remapped_rows_failed",
                ),
                "NVML RemappedRows" + whole,
                self._remapped_rows,
            ),
            reader("FanSpeed", name="fan_speed_percent"),
            reader("PerformanceState", name="performance_state"),
            reader("PersistenceMode", name="persistence_mode"),
            Reader(("compute_processes",), "NVML ComputeRunningProcesses" + whole, self._compute_processes),
        ]

    def _scaled(self, scale: float, function: str, *arguments: Any) -> Sequence[Reading]:
        return [_unit(self._nvml.number(function, self._gpu, *arguments), scale)]

    def _energy(self) -> Sequence[Reading]:
        return self._scaled(1e-3, "DeviceGetTotalEnergyConsumption")

    def _power_instant(self) -> Sequence[Reading]:
        (power_mw,) = self._nvml.fields(self._gpu, (_POWER_INSTANT,))
        return [power_mw if isinstance(power_mw, Missing) else _unit(power_mw, 1e-3)]

    def _memory_temperature(self) -> Sequence[Reading]:
        return self._nvml.fields(self._gpu, (_MEMORY_TEMPERATURE,))

    def _utilisation(self) -> Sequence[Reading]:
        rates = self._nvml.call("DeviceGetUtilizationRates", self._gpu)
        return [sane(rates.gpu), sane(rates.memory)]

    def _memory_used(self) -> Sequence[Reading]:
        return [sane(self._nvml.call("DeviceGetMemoryInfo", self._handle).used)]

    def _limits(self) -> Sequence[Reading]:
        bits = int(self._nvml.number(f"DeviceGetCurrent{self._limit_family}", self._gpu))
        known = [self._limit(bits, bit) for bit in LIMITS]
        return [*known, float(bool(bits & ~sum(LIMITS)))]

    def _limit(self, bits: int, bit: int) -> Reading:
        if bits & bit or self._supported_limits & bit:
            return float(bool(bits & bit))
        return Missing("NVML: this device does not report the reason")

    def _remapped_rows(self) -> Sequence[Reading]:
        return [float(count) for count in self._nvml.call("DeviceGetRemappedRows", self._gpu)]

    def _compute_processes(self) -> Sequence[Reading]:
        return [float(len(self._nvml.call("DeviceGetComputeRunningProcesses", self._gpu)))]

    def _learn_limits(self) -> None:
        """Which limits this device reports, and by which name of the function its driver goes (the older is second)."""
        for family in ("ClocksEventReasons", "ClocksThrottleReasons"):
            try:
                self._supported_limits = int(self._nvml.number(f"DeviceGetSupported{family}", self._gpu))
                self._limit_family = family
                return
            except Unreadable:
                continue

    def _name_power_usage(self) -> str:
        """What nvmlDeviceGetPowerUsage gives here: by its documentation a 1 s average from Ampere on, but for GA100."""
        try:
            architecture = self._nvml.number("DeviceGetArchitecture", self._gpu)
            capability = tuple(self._nvml.call("DeviceGetCudaComputeCapability", self._gpu))
        except Unreadable:
            return "NVML power usage (may be a 1 s average)"
        if architecture < _AMPERE or capability == (8, 0):
            return "NVML power usage (instantaneous on this architecture)"
        return "NVML power usage (1 s average on this architecture)"


def _unit(value: float, scale: float) -> float:
    """A reading in our unit, without the binary noise of a decimal scale: 122210 mW is 122.21 W."""
    return round(value * scale, 6)
