"""The file systems mounted below /, which an overlay of / leaves out."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

from engine.hardware.bounded import run_bounded

# A container has its own of these, or they belong to the machine and not to the software that is measured.
_NOT_SOFTWARE = re.compile(
    "/(proc|sys|dev|run|snap|var/run|var/lib/(containers|docker|containerd|kubelet))(/|$)|/etc/(hosts|hostname|resolv.conf)$"
)
_PSEUDO = frozenset({
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
    "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs", "rpc_pipefs", "securityfs", "sysfs", "tracefs",
})  # fmt: skip

ENTER_LIMIT_S = 2.0
_ENTER = "import os, sys; sys.exit(not os.access(sys.argv[1], os.R_OK | os.X_OK))"


def mounted_below_root(mountinfo: Path = Path("/proc/self/mountinfo")) -> list[str]:
    """The mount points to bind one by one, in the order in which they are mounted (format: proc(5), mountinfo).

    Pseudo file systems, the runtimes' own stores and paths that a volume argument cannot carry are left out, and
    FUSE mounts that we cannot enter (another user's, or one whose server is gone or hangs).
    """
    found: dict[str, None] = {}
    for line in mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        fields, _, rest = line.partition(" - ")
        point, kind = _unescape(fields.split(" ")[4]), rest.split(" ")[0]
        if point == "/" or kind in _PSEUDO or _NOT_SOFTWARE.match(point) or ":" in point:
            continue
        if not kind.startswith("fuse") or _can_enter(point):
            found[point] = None
    return list(found)


@cache
def _can_enter(point: str) -> bool:
    """Whether a file system that another program serves lets us in, asked once, so that all trials have the same.

    A child asks: whoever touches a mount whose server hangs, hangs with it.
    """
    return not run_bounded([sys.executable, "-I", "-S", "-c", _ENTER, point], ENTER_LIMIT_S).ended


def _unescape(text: str) -> str:
    """Blank, tab, newline and backslash stand as octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
