"""The processors of this node as one device."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

from engine.hardware.facts import Fact, Facts, fact, facts
from engine.telemetry.provider import Unreadable
from engine.telemetry.sysfs import folders, read_number, read_text
from engine.text import clean

_FLAGS = (
    "avx", "avx2", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_vnni", "amx_tile", "amx_bf16",
    "amx_int8", "fma", "f16c", "sse4_2", "asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "svebf16",
    "hypervisor",
)  # fmt: skip
"""Instruction sets that libraries choose their kernels by, and the mark of a virtual machine."""

_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def cpu_name(root: Path = Path("/")) -> str:
    """The model's name as the kernel gives it, else the kind of machine."""
    try:
        cpuinfo = _cpuinfo(root)
    except Unreadable:
        cpuinfo = {}
    return clean(cpuinfo.get("model name") or cpuinfo.get("Model") or f"{platform.machine()} processor", 200)


def cpu_facts(root: Path = Path("/")) -> Facts:
    """Model, cores, instruction sets, caches, memory."""
    readers = {
        "architecture": platform.machine,
        "vendor": lambda: _from_cpuinfo(root, "vendor_id", "CPU implementer"),
        "microcode": lambda: _from_cpuinfo(root, "microcode", "CPU revision"),
        "flags": lambda: _flags(root),
        "sockets": lambda: _sockets(root),
        "cores": _cores,
        "threads": lambda: os.cpu_count() or 0,
        "threads_allowed": lambda: len(os.sched_getaffinity(0)),
        "clock_max_mhz": lambda: read_number(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq") / 1e3,
        "memory_total_bytes": lambda: psutil.virtual_memory().total,
    }
    caches = {f"cache_{name}_bytes": (lambda key=name: _cache(root, key)) for name in ("l1d", "l2", "l3")}
    total = {"cache_l3_total_bytes": lambda: _cache_total(root)}
    return facts("kernel", {**readers, **caches, **total})


def _cpuinfo(root: Path) -> dict[str, str]:
    first = read_text(root / "proc/cpuinfo").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.split("\n"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def _from_cpuinfo(root: Path, *keys: str) -> Fact:
    cpuinfo = _cpuinfo(root)
    for key in keys:
        if key in cpuinfo:
            return cpuinfo[key]
    raise Unreadable(f"/proc/cpuinfo has no {keys[0]!r}")


def _flags(root: Path) -> Fact:
    present = str(_from_cpuinfo(root, "flags", "Features")).split()
    return " ".join(flag for flag in _FLAGS if flag in present)


def _sockets(root: Path) -> Fact:
    packages = folders(root / "sys/devices/system/cpu", "cpu[0-9]*/topology/physical_package_id")
    found = {read_number(path) for path in packages}
    if not found:
        raise Unreadable("the kernel offers no topology")
    return len(found)


def _cores() -> Fact:
    cores = psutil.cpu_count(logical=False)
    if cores is None:
        raise Unreadable("psutil cannot tell cores from threads here")
    return cores


def _index(cpu: Path, name: str) -> Path:
    level, kind = name[1], {"l1d": "Data"}.get(name, "Unified")
    for folder in folders(cpu / "cache", "index*"):
        if read_text(folder / "level") == level and read_text(folder / "type") == kind:
            return folder
    raise Unreadable(f"the kernel describes no {name} cache")


def _cache(root: Path, name: str) -> Fact:
    return _size(_index(root / "sys/devices/system/cpu/cpu0", name))


def _cache_total(root: Path) -> Fact:
    """All last-level caches of the node together; CPUs that share one name it alike."""
    caches: dict[str, int] = {}
    for cpu in folders(root / "sys/devices/system/cpu", "cpu[0-9]*"):
        folder = _index(cpu, "l3")
        caches[read_text(folder / "shared_cpu_list")] = _size(folder)
    if not caches:
        raise Unreadable("the kernel describes no l3 cache")
    return sum(caches.values())


def _size(index: Path) -> int:
    text = read_text(index / "size")
    unit = _SIZES.get(text[-1:])
    return int(text[:-1]) * unit if unit else int(text)


def numa_nodes(root: Path = Path("/")) -> Fact:
    """How many NUMA nodes hold memory or CPUs."""
    return fact(lambda: len(folders(root / "sys/devices/system/node", "node[0-9]*")) or 1, "sysfs")
