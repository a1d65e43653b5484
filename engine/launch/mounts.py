"""The file systems mounted below /, which an overlay of / leaves out."""

from __future__ import annotations

import os
import re
from pathlib import Path

# A container has its own of these, or they belong to the machine and not to the software that is measured.
_NOT_SOFTWARE = re.compile(
    "/(proc|sys|dev|run|snap|var/run|var/lib/(containers|docker|containerd|kubelet))(/|$)|/etc/(hosts|hostname|resolv.conf)$"
)
_PSEUDO = frozenset({
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
    "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs", "rpc_pipefs", "securityfs", "sysfs", "tracefs",
})  # fmt: skip


def mounted_below_root(mountinfo: Path = Path("/proc/self/mountinfo")) -> list[str]:
    """The mount points to bind one by one, in the order in which they are mounted (format: proc(5), mountinfo).

    Pseudo file systems, the runtimes' own stores and paths that a volume argument cannot carry are left out, and
    FUSE mounts that we may not enter (another user's).
    """
    found: dict[str, None] = {}
    for line in mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        fields, _, rest = line.partition(" - ")
        point, kind = _unescape(fields.split(" ")[4]), rest.split(" ")[0]
        if point == "/" or kind in _PSEUDO or _NOT_SOFTWARE.match(point) or ":" in point:
            continue
        if not kind.startswith("fuse") or os.access(point, os.R_OK | os.X_OK):
            found[point] = None
    return list(found)


def _unescape(text: str) -> str:
    """Blank, tab, newline and backslash stand as octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)
