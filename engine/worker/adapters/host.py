"""The host's processor and memory as Linux shows them in /proc and /sys; `root` stands in for / in tests."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")

# Instructions that multiply this dtype without converting it first (Intel SDM vol. 1 chapter 5, Arm ARM A2.x). One
# of a row is enough. What is not listed has no such instructions on any processor.
_NATIVE: dict[str, tuple[str, ...]] = {
    "fp16": ("avx512_fp16", "amx_fp16", "asimdhp"),
    "bf16": ("avx512_bf16", "amx_bf16", "bf16"),
    "int8": ("avx512_vnni", "avx_vnni", "amx_int8", "i8mm"),
}


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def processor_flags(root: Path = ROOT) -> frozenset[str]:
    """The feature flags of the first processor in /proc/cpuinfo ("flags", or "Features" on Arm)."""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", _read(root / "proc/cpuinfo"), re.MULTILINE)
    return frozenset(found.group(1).split()) if found else frozenset()


def processor_name(root: Path = ROOT) -> str:
    """The processor's model, or its architecture where /proc/cpuinfo names none (as on Arm)."""
    found = re.search(r"^model name\s*:\s*(.*)$", _read(root / "proc/cpuinfo"), re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def lacks(dtype: str, root: Path = ROOT) -> str:
    """Why the processor cannot multiply this dtype natively, or "" when it can."""
    if dtype in ("fp64", "fp32"):
        return ""
    if dtype not in _NATIVE:
        return f"not supported by device: no processor multiplies {dtype} natively"
    if processor_flags(root).isdisjoint(_NATIVE[dtype]):
        return f"not supported by device: {dtype} needs one of {', '.join(_NATIVE[dtype])}"
    return ""


def last_level_cache_bytes(root: Path = ROOT) -> int:
    """The size of the first processor's largest cache, 0 where the kernel does not say."""
    sizes = [_read(path) for path in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((_cache_bytes(size) for size in sizes), default=0)


def _cache_bytes(size: str) -> int:
    found = re.fullmatch(r"(\d+)([KMG]?)", size.strip())
    return int(found.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[found.group(2)] if found else 0


def memory_bytes(root: Path = ROOT) -> int:
    """All of the host's memory, 0 where the kernel does not say."""
    return _meminfo("MemTotal", root)


def _meminfo(key: str, root: Path) -> int:
    found = re.search(rf"^{key}:\s*(\d+) kB$", _read(root / "proc/meminfo"), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


def available_bytes(root: Path = ROOT) -> int:
    """Memory that this process can still get: what the host has, or less where a cgroup limits it."""
    return max(0, min([_meminfo("MemAvailable", root), *_cgroup_rooms(root)]))


def _cgroup_rooms(root: Path) -> Iterator[int]:
    """Limit minus use of every cgroup (versions 1 and 2) that this process is in, ancestors included.

    Page cache counts as use but goes when memory is wanted, so the inactive part of it is given back.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            base, limit, used = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        elif controllers == "":
            base, limit, used = root / "sys/fs/cgroup", "memory.max", "memory.current"
        else:
            continue
        place = PurePosixPath(path)
        for folder in (place, *place.parents):
            yield from _room(base / str(folder).lstrip("/"), limit, used)


def _room(folder: Path, limit: str, used: str) -> Iterator[int]:
    most, now = _read(folder / limit).strip(), _read(folder / used).strip()
    if most.isdigit() and now.isdigit():
        cache = re.search(r"^(?:total_)?inactive_file (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
        yield int(most) - int(now) + (int(cache.group(1)) if cache else 0)
