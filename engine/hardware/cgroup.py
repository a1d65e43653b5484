"""The limits of the control group this process is in: the tightest from here up to the root, v1 or v2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from engine.hardware.facts import Fact, Facts, facts
from engine.telemetry.provider import Unreadable
from engine.telemetry.sysfs import read_number, read_text

_V1_UNLIMITED = 1 << 60
"""cgroup v1 has no word for "no limit": it shows a number near 2^63, rounded down to a page."""


def cgroup_facts(root: Path = Path("/")) -> Facts:
    """cgroup_version, cgroup_cpus (a quota, in CPUs), cgroup_memory_limit_bytes, cgroup_cpuset."""
    return facts(
        "cgroup",
        {
            "cgroup_version": lambda: _version(root),
            "cgroup_cpus": lambda: _cpus(root),
            "cgroup_memory_limit_bytes": lambda: _memory(root),
            "cgroup_cpuset": lambda: _cpuset(root),
        },
    )


def _mount(root: Path) -> Path:
    return root / "sys/fs/cgroup"


def _is_v2(root: Path) -> bool:
    return (_mount(root) / "cgroup.controllers").exists()


def _version(root: Path) -> Fact:
    if not _mount(root).is_dir():
        raise Unreadable("no cgroup file system is mounted")
    return 2 if _is_v2(root) else 1


def _chain(root: Path, controller: str) -> Iterator[Path]:
    """The folders of our group for a controller, from our own up to the mount's root."""
    base = _mount(root) if _is_v2(root) else _mount(root) / controller
    own = base / _own_path(root, "" if _is_v2(root) else controller)
    # In a container the kernel may name a path that only the host has; then the mount's root is our group.
    folder = own if own.is_dir() and base in (own, *own.parents) else base
    while True:
        yield folder
        if folder == base:
            return
        folder = folder.parent


def _own_path(root: Path, controller: str) -> str:
    for line in read_text(root / "proc/self/cgroup").split("\n"):
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if (not controller and not names) or controller in names.split(","):
            return path.strip("/").replace("..", "")
    return ""


def _cpus(root: Path) -> Fact:
    read = _quota_v2 if _is_v2(root) else _quota_v1
    return _tightest([quota for folder in _chain(root, "cpu") if (quota := read(folder)) is not None], "CPU quota")


def _memory(root: Path) -> Fact:
    name = "memory.max" if _is_v2(root) else "memory.limit_in_bytes"
    limits = [_memory_limit(folder / name) for folder in _chain(root, "memory")]
    return _tightest([limit for limit in limits if limit is not None], "memory limit")


def _tightest(limits: list[float] | list[int], what: str) -> Fact:
    if not limits:
        raise Unreadable(f"there is no {what}")
    return min(limits)


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, _, period = read_text(folder / "cpu.max").partition(" ")
        return None if quota == "max" else int(quota) / int(period)
    except Unreadable:
        return None  # the root group has no such file


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = read_number(folder / "cpu.cfs_quota_us")
        return None if quota < 0 else quota / read_number(folder / "cpu.cfs_period_us")
    except Unreadable:
        return None


def _memory_limit(path: Path) -> int | None:
    try:
        text = read_text(path)
    except Unreadable:
        return None
    return None if text == "max" or int(text) >= _V1_UNLIMITED else int(text)


def _cpuset(root: Path) -> Fact:
    name = "cpuset.cpus.effective" if _is_v2(root) else "cpuset.cpus"
    for folder in _chain(root, "cpuset"):
        if (folder / name).exists():
            return read_text(folder / name)
    raise Unreadable("there is no cpuset")
