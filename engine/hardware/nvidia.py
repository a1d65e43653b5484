"""NVIDIA devices and their facts through NVML; used by the probe process alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from engine.hardware.facts import Fact, Facts, fact, facts
from engine.session import Device
from engine.telemetry.nvml_library import Nvml, sane
from engine.telemetry.provider import DeviceLost, Unreadable

_NVML = "NVML"
_GRAPHICS, _SM, _MEMORY = 0, 1, 2
_ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
}
"""nvmlDeviceArchitecture_t (nvml.h)."""

_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_PROCESSES_SHOWN = 8


class Nvidia:
    """An open NVML. `doing` names the device that is being read, for whoever waits."""

    def __init__(self, root: Path, doing: Callable[[str], None]) -> None:
        self._nvml = Nvml()
        self._root = root
        self._doing = doing

    def devices(self) -> Iterator[Device]:
        """Every device, in NVML's order, which is that of PCI addresses. Raises DeviceLost where NVML does not work."""
        self._doing("NVML: loading and initialising the library")
        self._nvml.start()
        for index in range(self._count()):
            self._doing(f"NVML: reading GPU {index}")
            yield self._device(index)

    def node_facts(self) -> Facts:
        """driver_version, nvml_version, cuda_driver_version ("13.0")."""
        return facts(
            _NVML,
            {
                "driver_version": lambda: self._nvml.text("SystemGetDriverVersion"),
                "nvml_version": lambda: self._nvml.text("SystemGetNVMLVersion"),
                "cuda_driver_version": self._cuda_version,
            },
        )

    def _count(self) -> int:
        try:
            return int(self._nvml.number("DeviceGetCount"))
        except Unreadable as error:
            raise DeviceLost(str(error)) from error

    def _cuda_version(self) -> Fact:
        number = int(self._nvml.number("SystemGetCudaDriverVersion"))
        return f"{number // 1000}.{number % 1000 // 10}"

    def _device(self, index: int) -> Device:
        try:
            handle = self._nvml.call("DeviceGetHandleByIndex", index)
            uuid = self._nvml.text("DeviceGetUUID", handle)
        except (DeviceLost, Unreadable) as error:
            raise DeviceLost(f"GPU {index}: {error}") from error
        name = fact(lambda: self._nvml.text("DeviceGetName", handle), _NVML)
        return Device(uuid, index, "cuda", name if isinstance(name, str) else "NVIDIA GPU", self._facts(handle))

    def _facts(self, handle: Any) -> Facts:
        """Everything NVML says of one device; once it is lost the rest is missing for that reason."""
        found: Facts = self.node_facts()
        for group in (self._identity, self._power, self._clocks, self._states, self._link, self._use):
            try:
                found |= group(handle)
            except DeviceLost as error:
                return found | {"problem": str(error)}
        return found

    def _number(self, function: str, *arguments: Any, scale: float = 1.0) -> Callable[[], Fact]:
        def read() -> Fact:
            value = self._nvml.number(f"DeviceGet{function}", *arguments)
            return round(value * scale, 6) if scale != 1.0 else int(value)

        return read

    def _identity(self, handle: Any) -> Facts:
        return facts(
            _NVML,
            {
                "pci_address": lambda: self._pci_address(handle),
                "pci_id": lambda: self._pci_id(handle),
                "numa_node": lambda: self._numa_node(handle),
                "architecture": lambda: self._named(_ARCHITECTURES, "Architecture", handle),
                "compute_capability": lambda: self._capability(handle),
                "cuda_cores": self._number("NumGpuCores", handle),
                "vbios_version": lambda: self._nvml.text("DeviceGetVbiosVersion", handle),
                "gsp_firmware_version": lambda: self._nvml.text("DeviceGetGspFirmwareVersion", handle),
                "memory_total_bytes": lambda: self._memory(handle, "total"),
                "memory_free_bytes": lambda: self._memory(handle, "free"),
                "memory_bus_bits": self._number("MemoryBusWidth", handle),
            },
        )

    def _power(self, handle: Any) -> Facts:
        limits = partial(self._nvml.call, "DeviceGetPowerManagementLimitConstraints", handle)
        return facts(
            _NVML,
            {
                "power_limit_enforced_w": self._number("EnforcedPowerLimit", handle, scale=1e-3),
                "power_limit_default_w": self._number("PowerManagementDefaultLimit", handle, scale=1e-3),
                "power_limit_min_w": lambda: sane(limits()[0]) / 1e3,
                "power_limit_max_w": lambda: sane(limits()[1]) / 1e3,
                "shutdown_temperature_c": self._number("TemperatureThreshold", handle, 0),
                "slowdown_temperature_c": self._number("TemperatureThreshold", handle, 1),
                "memory_max_temperature_c": self._number("TemperatureThreshold", handle, 2),
                "gpu_max_temperature_c": self._number("TemperatureThreshold", handle, 3),
            },
        )

    def _clocks(self, handle: Any) -> Facts:
        return facts(
            _NVML,
            {
                "graphics_clock_max_mhz": self._number("MaxClockInfo", handle, _GRAPHICS),
                "sm_clock_max_mhz": self._number("MaxClockInfo", handle, _SM),
                "memory_clock_max_mhz": self._number("MaxClockInfo", handle, _MEMORY),
            },
        )

    def _states(self, handle: Any) -> Facts:
        call = self._nvml.call
        return facts(
            _NVML,
            {
                "ecc_enabled": lambda: bool(call("DeviceGetEccMode", handle)[0]),
                "ecc_enabled_after_reset": lambda: bool(call("DeviceGetEccMode", handle)[1]),
                "mig_enabled": lambda: bool(call("DeviceGetMigMode", handle)[0]),
                "mig_devices": lambda: self._mig_devices(handle),
                "persistence_enabled": lambda: bool(call("DeviceGetPersistenceMode", handle)),
                "compute_mode": lambda: self._named(_COMPUTE_MODES, "ComputeMode", handle),
            },
        )

    def _link(self, handle: Any) -> Facts:
        return facts(
            _NVML,
            {
                "pcie_link_generation": self._number("CurrPcieLinkGeneration", handle),
                "pcie_link_width": self._number("CurrPcieLinkWidth", handle),
                "pcie_link_generation_max": self._number("MaxPcieLinkGeneration", handle),
                "pcie_link_width_max": self._number("MaxPcieLinkWidth", handle),
            },
        )

    def _use(self, handle: Any) -> Facts:
        running = fact(lambda: self._processes(handle), _NVML)
        count = fact(lambda: len(self._nvml.call("DeviceGetComputeRunningProcesses", handle)), _NVML)
        return {"compute_processes": count, "compute_process_list": running}

    def _processes(self, handle: Any) -> Fact:
        running = self._nvml.call("DeviceGetComputeRunningProcesses", handle)
        shown = [f"pid {process.pid}{_used(process.usedGpuMemory)}" for process in running[:_PROCESSES_SHOWN]]
        more = [f"{len(running) - len(shown)} more"] if len(running) > len(shown) else []
        return ", ".join([*shown, *more]) or "none"

    def _named(self, names: dict[int, str], function: str, handle: Any) -> Fact:
        value = int(self._nvml.number(f"DeviceGet{function}", handle))
        return names.get(value, f"number {value}")

    def _capability(self, handle: Any) -> Fact:
        major, minor = self._nvml.call("DeviceGetCudaComputeCapability", handle)
        return f"{major}.{minor}"

    def _memory(self, handle: Any, part: str) -> Fact:
        return int(sane(getattr(self._nvml.call("DeviceGetMemoryInfo", handle), part)))

    def _pci_address(self, handle: Any) -> str:
        """As sysfs writes it: four digits of domain, lower case."""
        address = self._nvml.call("DeviceGetPciInfo", handle).busId
        text = address.decode("ascii", "replace") if isinstance(address, bytes) else str(address)
        domain, _, rest = text.partition(":")
        return f"{int(domain, 16):04x}:{rest.lower()}"

    def _pci_id(self, handle: Any) -> Fact:
        number = self._nvml.call("DeviceGetPciInfo", handle).pciDeviceId
        return f"{number & 0xFFFF:04x}:{number >> 16:04x}"

    def _numa_node(self, handle: Any) -> Fact:
        try:
            node = int((self._root / f"sys/bus/pci/devices/{self._pci_address(handle)}/numa_node").read_text())
        except OSError as error:
            raise Unreadable(f"sysfs: {error.strerror}") from error
        if node < 0:
            raise Unreadable("sysfs: the firmware names no NUMA node for this device")
        return node

    def _mig_devices(self, handle: Any) -> Fact:
        found: list[str] = []
        with contextlib.suppress(Unreadable):
            for place in range(int(self._nvml.number("DeviceGetMaxMigDeviceCount", handle))):
                slice_handle = self._nvml.call("DeviceGetMigDeviceHandleByIndex", handle, place)
                found.append(self._nvml.text("DeviceGetUUID", slice_handle))
        return ", ".join(found) or "none"


def _used(used_bytes: int | None) -> str:
    return "" if used_bytes is None else f" ({used_bytes / (1 << 30):.1f} GiB)"
