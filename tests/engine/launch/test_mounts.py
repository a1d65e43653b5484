"""Which file systems a mirror needs bound; the format is proc(5)'s."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.launch import mounts
from engine.launch.mounts import mounted_below_root

MNT_DETACH = 2

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


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Path]:
    """A FUSE mount whose server never answers: we hold its device and read no request from it."""
    point = tmp_path / "hanging"
    point.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"cannot here: /dev/fuse: {error.strerror}")
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if libc.mount(b"hanging", bytes(point), b"fuse.hanging", 0, options.encode()) != 0:
        os.close(device)
        pytest.skip(f"cannot here: mount of FUSE: {os.strerror(ctypes.get_errno())}")
    yield point
    os.close(device)
    libc.umount2(bytes(point), MNT_DETACH)


def test_a_file_system_whose_server_hangs_is_left_out_and_asked_once(
    hanging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "ENTER_LIMIT_S", 0.5)
    assert str(hanging) not in mounted_below_root()
    monkeypatch.setattr(mounts, "run_bounded", None)
    assert str(hanging) not in mounted_below_root()


def test_a_file_system_of_another_program_that_answers_is_bound(tmp_path: Path) -> None:
    path = tmp_path / "mountinfo"
    path.write_text(f"37 27 0:56 / {tmp_path} rw - fuse.sshfs host: rw\n")
    assert mounted_below_root(path) == [str(tmp_path)]
