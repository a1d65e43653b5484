"""Which file systems a mirror needs bound; the format is proc(5)'s."""

from __future__ import annotations

from pathlib import Path

from engine.launch.mounts import mounted_below_root

MOUNTINFO = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw
25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
28 27 8:17 / /home rw,relatime shared:2 master:1 - xfs /dev/sdb1 rw
29 27 0:50 / /data/with\040blank rw - nfs4 server:/x rw
30 27 0:51 / /tmp rw - tmpfs tmpfs rw
31 27 0:52 / /run/user/1000 rw - tmpfs tmpfs rw
32 27 0:53 / /var/lib/containers/storage/overlay/x/merged rw - overlay overlay rw
33 27 254:1 /drv /usr/local/nvidia ro - ext4 /dev/vdb ro
34 27 254:1 /h /etc/hosts rw - ext4 /dev/vdb rw
35 31 0:54 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
36 27 0:55 / /data/a:b rw - ext4 /dev/vdc rw
37 27 0:56 / /nowhere/fuse rw - fuse.sshfs host: rw
38 27 0:57 / /running rw - ext4 /dev/vdd rw
39 28 8:17 / /home rw,relatime - xfs /dev/sdb2 rw
"""


def test_what_is_bound_and_what_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTINFO)
    assert mounted_below_root(path) == ["/home", "/data/with blank", "/tmp", "/usr/local/nvidia", "/running"]


def test_this_machine(tmp_path: Path) -> None:
    assert all(Path(point).is_absolute() and point != "/" for point in mounted_below_root())
