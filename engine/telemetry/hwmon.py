"""Temperatures and node power from the kernel's hardware monitoring interface."""

from __future__ import annotations

from pathlib import Path

from engine.telemetry.provider import Reader, Unreadable
from engine.telemetry.sysfs import folders, read_number, read_text
from engine.values import Reading

_CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
_CPU_LABELS = ("Package id", "Tdie", "Tctl")
"""Labels of a whole package, in order of preference: Tctl may carry an offset, single cores say too little."""


def readers(sysfs: Path) -> list[Reader]:
    """cpu_temperature_c (the hottest package) and node_power_w (an ACPI power meter), each missing with a reason."""
    chips = [(chip, _name(chip)) for chip in folders(sysfs / "class" / "hwmon", "hwmon*")]
    packages = [sensor for chip, name in chips if name in _CPU_CHIPS for sensor in _package_sensors(chip)]
    meters = [meter for chip, name in chips if name == "power_meter" for meter in _meters(chip)]
    labels = ", ".join(sorted({name for _, name in chips if name in _CPU_CHIPS}))
    return [
        Reader(("cpu_temperature_c",), f"hwmon {labels}, the hottest package", lambda: [_hottest_c(packages)]),
        Reader(("node_power_w",), "hwmon power_meter (ACPI)", lambda: [_total_w(meters)]),
    ]


def _name(chip: Path) -> str:
    try:
        return read_text(chip / "name", 100)
    except Unreadable:
        return ""


def _package_sensors(chip: Path) -> list[Path]:
    sensors = {sensor: _label(sensor) for sensor in folders(chip, "temp*_input")}
    for wanted in _CPU_LABELS:
        if found := [sensor for sensor, label in sensors.items() if label.startswith(wanted)]:
            return found
    return list(sensors) if _name(chip) == "cpu_thermal" else []


def _label(sensor: Path) -> str:
    try:
        return read_text(sensor.with_name(sensor.name.replace("_input", "_label")), 100)
    except Unreadable:
        return ""


def _meters(chip: Path) -> list[Path]:
    return [*folders(chip, "power*_average"), *folders(chip, "power*_input")][:1]


def _hottest_c(sensors: list[Path]) -> Reading:
    if not sensors:
        raise Unreadable("hwmon: the kernel offers no processor temperature", lasting=True)
    return max(read_number(sensor) for sensor in sensors) * 1e-3


def _total_w(meters: list[Path]) -> Reading:
    if not meters:
        raise Unreadable("hwmon: the kernel offers no power meter of the node", lasting=True)
    return sum(read_number(meter) for meter in meters) * 1e-6
