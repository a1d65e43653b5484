from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from engine import files
from engine.errors import AibenchError
from engine.files import FileError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(autouse=True)
def _open_umask() -> object:
    """Owner-only must not depend on the umask."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_everything_is_for_the_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    files.make_private_folder(folder)
    files.create_private(folder / "created", b"1")
    files.write_private(folder / "written", b"1")
    files.append_bytes(folder / "appended", b"1")
    files.atomic_write(folder / "replaced", b"1")
    files.Appender(folder / "lines").close()
    reserve = files.Reserve(folder / "reserve", 4096)
    assert {mode(path) for path in folder.iterdir()} == {0o600}
    assert (mode(folder), mode(folder.parent)) == (0o700, 0o700)
    reserve.close()


def test_a_folder_that_is_there_is_taken_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    files.make_private_folder(tmp_path)
    assert mode(tmp_path) == 0o755


def test_create_private_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with pytest.raises(FileExistsError):
        files.create_private(path, b"new")
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("write", [files.write_private, files.append_bytes], ids=["write", "append"])
def test_a_planted_link_is_refused(tmp_path: Path, write: object) -> None:
    target, link = tmp_path / "precious", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    assert callable(write)
    with pytest.raises(FileError, match="a symbolic link stands in the way"):
        write(link, b"new")
    with pytest.raises(OSError, match="symbolic links"):
        files.Appender(link)
    assert target.read_bytes() == b"old"


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "socket", "device", "folder"])
def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    place(path, kind)
    before = path.lstat()
    with pytest.raises(FileError, match=f"cannot write {path}: ") as caught:
        files.atomic_write(path, b"new")
    assert path.lstat() == before
    assert names(tmp_path) == ["x"]
    assert caught.value.do


def place(path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    elif kind == "device":
        if os.geteuid() != 0:
            pytest.skip("making a device file needs root")
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 7))
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/proc/version" if kind == "link" else path.parent / "nowhere")


def test_what_comes_into_the_place_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x"

    def replace() -> None:
        with files.replacing(path, is_new=True) as stream:
            stream.write(b"new")
            path.write_bytes(b"somebody else's")

    with pytest.raises(FileError, match="it is there already"):
        replace()
    assert path.read_bytes() == b"somebody else's"
    assert names(tmp_path) == ["x"]


def test_a_replacement_that_fails_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def replace() -> None:
        with files.replacing(path) as stream:
            stream.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        replace()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["x"]


def test_a_long_name_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250)
    files.atomic_write(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("missing/x", "No such file or directory; check the path"),
        ("file/x", "Not a directory; a part of the path is a file"),
        ("/proc/x", "cannot write /proc/x"),
        ("y" * 300, "File name too long; name a shorter path"),
    ],
)
def test_an_errno_becomes_one_line_with_a_remedy(tmp_path: Path, path: str, words: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError) as caught:
        files.atomic_write(tmp_path / path, b"new")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (caught.value.code, caught.value.errno != 0) == (3, True)


def test_a_full_device_is_named() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("cannot here: no /dev/full")
    with pytest.raises(FileError, match="cannot append to /dev/full: No space left on device; make room there"):
        files.append_bytes(Path("/dev/full"), b"x")


def test_probe_writable(tmp_path: Path) -> None:
    files.probe_writable(tmp_path / "new" / "folder")
    assert names(tmp_path / "new" / "folder") == []
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError, match="Not a directory") as caught:
        files.probe_writable(tmp_path / "file" / "folder")
    assert caught.value.code == 2


def test_reading_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert files.read_limited(path, 5) == b"12345"
    with pytest.raises(AibenchError, match="x is larger than 4 bytes"):
        files.read_limited(path, 4)


def test_pipes_devices_and_folders_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(AibenchError, match="is not a regular file"):
            files.read_limited(path, 10)


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file") as caught:
        files.read_limited(tmp_path / "x", 10)
    assert caught.value.code == 2


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a pipe takes what fits: real short writes, which a regular file shows only at a signal or a full disk
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    data = os.urandom(3_000_000)
    got = bytearray()
    real = os.write

    def drain_then_write(descriptor: int, piece: memoryview) -> int:
        try:
            return real(descriptor, piece)
        except BlockingIOError:
            got.extend(os.read(reading, 1 << 20))
            return 0

    monkeypatch.setattr(os, "write", drain_then_write)
    files.write_all(writing, data)
    os.close(writing)
    while piece := os.read(reading, 1 << 20):
        got += piece
    os.close(reading)
    assert bytes(got) == data


def test_an_appender_starts_a_new_line_after_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"whole\ntor")
    appender = files.Appender(path)
    appender.add(b"next\n")
    appender.sync()
    appender.close()
    assert path.read_bytes() == b"whole\ntor\nnext\n"


def test_an_appender_adds_nothing_to_a_whole_tail(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"whole\n")
    appender = files.Appender(path)
    appender.add(b"next\n")
    appender.flush()
    appender.rewind()
    appender.add(b"last\n")
    appender.sync()
    assert appender.waiting_bytes == 0
    appender.close()
    assert path.read_bytes() == b"whole\nnext\nlast\n"


def test_a_reserve_holds_real_blocks_and_gives_them_back_by_halves(tmp_path: Path) -> None:
    path = tmp_path / "reserve"
    reserve = files.Reserve(path, 65_536)
    assert path.stat().st_blocks * 512 >= 65_536
    sizes = []
    while reserve.release():
        sizes.append(path.stat().st_size if path.exists() else 0)
    assert sizes == [32_768, 16_384, 8192, 0]
    reserve.close()


def test_a_reserve_that_does_not_fit_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot reserve disk space in"):
        files.Reserve(tmp_path / "reserve", 1 << 60)
    assert names(tmp_path) == []


def test_without_fallocate_the_reserve_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")  # musl's answer where the file system has none

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    files.Reserve(tmp_path / "reserve", 10_000)
    assert (tmp_path / "reserve").stat().st_size == 10_000
