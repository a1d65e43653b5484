"""Facts of the node that decide whether two sessions may be compared: system, clocks, memory, limits, container."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shlex
from collections.abc import Mapping
from pathlib import Path

from engine.hardware.cgroup import cgroup_facts
from engine.hardware.cpu import numa_nodes
from engine.hardware.facts import Fact, Facts, facts
from engine.telemetry.provider import Unreadable
from engine.telemetry.sysfs import read_number, read_text
from engine.text import clean

_CLOCKSOURCE = "sys/devices/system/clocksource/clocksource0/current_clocksource"
_TIME_ERROR = 5
"""adjtimex(2): the clock is not synchronised."""


def node_facts(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Facts:
    """Everything about the node that is not one device's."""
    cpu = root / "sys/devices/system/cpu"
    return {
        **facts(
            "kernel",
            {
                "hostname": platform.node,
                "kernel": platform.release,
                "operating_system": lambda: _os_name(root),
                "boot_id": lambda: read_text(root / "proc/sys/kernel/random/boot_id"),
                "clocksource": lambda: read_text(root / _CLOCKSOURCE),
                "time_synchronised": _time_synchronised,
                "cpu_governor": lambda: read_text(cpu / "cpu0/cpufreq/scaling_governor"),
                "cpu_turbo": lambda: _turbo(cpu),
                "smt_active": lambda: bool(read_number(cpu / "smt/active")),
                "transparent_hugepages": lambda: _chosen(root / "sys/kernel/mm/transparent_hugepage/enabled"),
                "numa_balancing": lambda: bool(read_number(root / "proc/sys/kernel/numa_balancing")),
                "shared_memory_bytes": lambda: _file_system_bytes(root / "dev/shm"),
                "memory_lock_limit": _memory_lock_limit,
                "container": lambda: container_kind(root, environment),
            },
        ),
        "numa_nodes": numa_nodes(root),
        **cgroup_facts(root),
        **_scheduler(environment),
    }


def container_kind(root: Path, environment: Mapping[str, str]) -> str:
    """Which container this process is in, "none" where nothing speaks for one."""
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    if environment.get("APPTAINER_CONTAINER") or environment.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    return environment.get("container") or _container_by_cgroup(root)


def _container_by_cgroup(root: Path) -> str:
    text = read_text(root / "proc/self/cgroup")
    marks = {"kubepods": "kubernetes", "libpod": "podman", "docker": "docker", "lxc": "lxc", "containerd": "containerd"}
    return next((kind for mark, kind in marks.items() if mark in text), "none")


def _scheduler(environment: Mapping[str, str]) -> Facts:
    found: Facts = {"slurm": "SLURM_JOB_ID" in environment, "kubernetes": "KUBERNETES_SERVICE_HOST" in environment}
    keys = ("SLURM_JOB_ID", "SLURM_JOB_PARTITION", "SLURM_NODELIST")
    return found | {key.lower(): clean(environment[key], 300) for key in keys if key in environment}


def _os_name(root: Path) -> Fact:
    for line in read_text(root / "etc/os-release").split("\n"):
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return " ".join(shlex.split(value))
    raise Unreadable("/etc/os-release names no system")


def _turbo(cpu: Path) -> Fact:
    if (cpu / "intel_pstate/no_turbo").exists():
        return not read_number(cpu / "intel_pstate/no_turbo")
    if (cpu / "cpufreq/boost").exists():
        return bool(read_number(cpu / "cpufreq/boost"))
    raise Unreadable("the kernel says nothing of turbo or boost")


def _chosen(path: Path) -> Fact:
    """The word in brackets of a sysfs choice such as `always [madvise] never`."""
    text = read_text(path)
    return text.partition("[")[2].partition("]")[0] or text


def _file_system_bytes(path: Path) -> Fact:
    status = os.statvfs(path)
    return status.f_frsize * status.f_blocks


def _memory_lock_limit() -> Fact:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} bytes"


def _time_synchronised() -> Fact:
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.create_string_buffer(512))  # a zeroed struct timex changes nothing
    if state < 0:
        raise Unreadable(f"adjtimex: {os.strerror(ctypes.get_errno())}")
    return bool(state != _TIME_ERROR)
