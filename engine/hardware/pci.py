"""Accelerators as the PCI bus shows them: what is there, whether or not this version or a driver can use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from engine.telemetry.provider import Unreadable
from engine.telemetry.sysfs import folders, read_text

NVIDIA = "0x10de"

_DISPLAY = ("0x0300", "0x0302", "0x0380")
_PROCESSING = "0x1200"

_TPUS = ("0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076")
"""Device ids of TPU chips (jax/_src/hardware_utils.py); the same vendor's network card is no accelerator."""

_KINDS: dict[str, tuple[str, Callable[[str, str], bool]]] = {
    NVIDIA: ("NVIDIA GPU", lambda _, group: group in _DISPLAY),
    "0x1002": ("AMD accelerator", lambda _, group: group in (*_DISPLAY[1:], _PROCESSING)),
    "0x1ae0": ("Google TPU", lambda device, _: device in _TPUS),
    "0x19e5": ("Huawei Ascend accelerator", lambda _, group: group == _PROCESSING),
    "0x1da3": ("Intel Gaudi accelerator", lambda _, group: group == _PROCESSING),
    "0x8086": ("Intel GPU or accelerator", lambda _, group: group in (_DISPLAY[2], _PROCESSING)),
}

_NODES = {
    "AMD": "dev/kfd",
    "Huawei Ascend": "dev/davinci_manager",
    "Intel Gaudi": "dev/hl*",
    "Google TPU": "dev/accel*",
}


def accelerators(root: Path = Path("/")) -> Counter[tuple[str, str]]:
    """How many accelerators of each (kind, "vendor:device" id) the bus shows."""
    found = Counter[tuple[str, str]]()
    for folder in folders(root / "sys/bus/pci/devices", "*"):
        try:
            vendor, device, group = (read_text(folder / name)[:6].lower() for name in ("vendor", "device", "class"))
        except Unreadable:
            continue
        kind, matches = _KINDS.get(vendor, ("", _never))
        if matches(device, group):
            found[kind, f"{vendor[2:]}:{device[2:]}"] += 1
    return found


def unsupported_notes(root: Path = Path("/")) -> list[str]:
    """One line for each kind of accelerator that is there and that this version does not measure."""
    seen = {key: count for key, count in accelerators(root).items() if not key[0].startswith("NVIDIA")}
    notes = [
        f"{count} {kind}{'s' if count > 1 else ''} seen on PCI ({number}); not supported by this version"
        for (kind, number), count in sorted(seen.items())
    ]
    for vendor, pattern in _NODES.items():
        on_bus = any(kind.startswith(vendor) for kind, _ in seen)
        if not on_bus and folders(root, pattern):
            notes.append(f"a device node of {vendor} is there (/{pattern}); not supported by this version")
    return notes


def _never(_device: str, _group: str) -> bool:
    return False
