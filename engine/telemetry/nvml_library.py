"""NVIDIA's management library, called so that every answer is a sane value or an exception with a reason.

Loaded only by processes that may hang and be abandoned: the telemetry process and the probe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.telemetry.provider import DeviceLost, Unreadable
from engine.text import clean
from engine.values import Missing, Reading

_LOST = {1, 9, 12, 15, 16, 18, 28}
"""Uninitialized, driver not loaded, library not found, GPU lost, reset required, version mismatch, GPU not found."""

_LASTING = {2, 3, 4, 13, 25, 26}
"""Invalid argument, not supported, no permission, function not found, version of an argument, deprecated."""

_REASONS = {
    12: "NVML: the library libnvidia-ml.so.1 was not found",
    13: "NVML: this driver's library lacks the function",
    18: "NVML: driver and library versions differ (a reboot or reloading the kernel module brings them together)",
}

_NOT_AVAILABLE = {0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF}
"""NVML_VALUE_NOT_AVAILABLE as an unsigned int and as an unsigned long long (nvml.h)."""

_FIELD_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""nvmlValueType_t (nvml.h): the member of the union that holds a field's value."""


class Nvml:
    """One thread's use of NVML. Functions are named without their `nvml` prefix.

    `doing` names the call in progress, so that a watchdog can say which one does not return.
    """

    def __init__(self) -> None:
        self.doing = ""
        self._binding: Any = None

    def start(self) -> None:
        """Loads and initialises the library; DeviceLost where it cannot be."""
        self.doing = "loading the library"
        try:
            import pynvml
        except Exception as error:  # another package of that name may do anything on import
            raise DeviceLost(f"NVML: nvidia-ml-py cannot be imported: {clean(str(error), 200)}") from error
        self._binding = pynvml
        try:
            self.call("InitWithFlags", 0)
        except Unreadable as error:
            raise DeviceLost(str(error)) from error

    def stop(self) -> None:
        """Gives the library back; what it answers does not matter any more."""
        try:
            self.call("Shutdown")
        except (DeviceLost, Unreadable):
            return

    def call(self, function: str, *arguments: Any) -> Any:
        """The answer of one function, as the binding gives it.

        Raises DeviceLost where the error says that no other call will work either, else Unreadable.
        """
        self.doing = f"nvml{function}"
        try:
            return getattr(self._binding, self.doing)(*arguments)
        except self._binding.NVMLError as error:
            raise _explained(error) from error
        except AttributeError as error:
            raise Unreadable(f"NVML: the installed nvidia-ml-py lacks {self.doing}", lasting=True) from error
        finally:
            self.doing = ""

    def number(self, function: str, *arguments: Any) -> float:
        """A number; NVML's marks for "not available" raise Unreadable."""
        return sane(self.call(function, *arguments))

    def text(self, function: str, *arguments: Any) -> str:
        """A string, cleaned; bytes that are no UTF-8 are replaced, not refused."""
        try:
            answer = self.call(function, *arguments)
        except UnicodeDecodeError as error:
            answer = error.object
        return clean(answer if isinstance(answer, bytes) else str(answer), 200)

    def fields(self, handle: Any, numbers: Sequence[int]) -> list[Reading]:
        """The values of several NVML_FI_* fields in one call, each a number or Missing."""
        return [self._field(answer) for answer in self.call("DeviceGetFieldValues", handle, list(numbers))]

    def _field(self, answer: Any) -> Reading:
        try:
            if answer.nvmlReturn != 0:
                raise _explained(self._binding.NVMLError(answer.nvmlReturn))
            return sane(getattr(answer.value, _FIELD_MEMBERS.get(answer.valueType, "ullVal")))
        except Unreadable as error:
            return Missing(str(error), "NVML")


def sane(value: float) -> float:
    """The value as a float; NVML's marks for "not available" and negative numbers raise Unreadable."""
    if value in _NOT_AVAILABLE or value < 0:
        raise Unreadable(f"NVML: the answer is its mark for not available ({value})")
    return float(value)


def _explained(error: Any) -> DeviceLost | Unreadable:
    code = int(error.value)
    reason = _REASONS.get(code) or clean(f"NVML: {error}", 200)
    return DeviceLost(reason) if code in _LOST else Unreadable(reason, lasting=code in _LASTING)


def open_device(nvml: Nvml, uuid: str) -> tuple[Any, Any]:
    """The handles of a device and of the whole GPU it is on (the same one unless it is a MIG device).

    Raises DeviceLost where there is no such device.
    """
    try:
        handle = nvml.call("DeviceGetHandleByUUID", uuid)
        if uuid.startswith("MIG-"):
            return handle, nvml.call("DeviceGetDeviceHandleFromMigDeviceHandle", handle)
        return handle, handle
    except Unreadable as error:
        raise DeviceLost(f"{error} (no device {clean(uuid, 80)})") from error
