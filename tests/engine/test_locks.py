"""Device locks, run folder locks and the folders they lie in."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine import exits, locks, runfolder
from engine.errors import AibenchError

GPU = "GPU-8f1d0a52-1111-2222-3333-444455556666"


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "runtime"
    monkeypatch.setenv("AIBENCH_RUNTIME_DIR", str(folder))
    return folder


def refusal(error: pytest.ExceptionInfo[AibenchError]) -> str:
    assert error.value.code == exits.NOT_READY
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_runtime_folder_is_made_for_its_owner_alone(runtime: Path) -> None:
    assert locks.runtime_folder() == runtime
    assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
    assert locks.runtime_folder() == runtime


def test_where_the_runtime_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIBENCH_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert locks.runtime_folder() == tmp_path / "aibench-tui"


def test_a_runtime_folder_that_others_can_enter_is_refused(runtime: Path) -> None:
    runtime.mkdir(mode=0o750)
    runtime.chmod(0o750)
    with pytest.raises(AibenchError) as error:
        locks.runtime_folder()
    what = f"the runtime folder {runtime} cannot be used: others can enter it"
    assert refusal(error) == f"{what}; name another folder in AIBENCH_RUNTIME_DIR"


def test_an_empty_variable_names_no_runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("AIBENCH_RUNTIME_DIR", "")
    monkeypatch.chdir(tmp_path)
    assert locks.runtime_folder() == tmp_path / "aibench-tui"


@pytest.mark.parametrize("named", ["pipe", ".", "/proc/nowhere/deep", "pipe/below", "n" * 300])
def test_nobody_is_told_to_remove_what_the_variable_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    os.mkfifo("pipe")
    monkeypatch.setenv("AIBENCH_RUNTIME_DIR", named)
    for folder in (locks.runtime_folder, locks.device_lock_folder):
        with pytest.raises(AibenchError) as error:
            folder()
        assert refusal(error).endswith("; name another folder in AIBENCH_RUNTIME_DIR")


@pytest.mark.parametrize("kind", ["link", "file"])
def test_something_planted_in_the_place_of_the_runtime_folder_is_refused(runtime: Path, kind: str) -> None:
    if kind == "link":
        target = runtime.parent / "target"
        target.mkdir(mode=0o700)
        runtime.symlink_to(target)
    else:
        runtime.touch()
    with pytest.raises(AibenchError) as error:
        locks.runtime_folder()
    assert str(runtime) in refusal(error)


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user needs root")
def test_a_runtime_folder_of_another_user_is_refused(runtime: Path) -> None:
    runtime.mkdir(mode=0o700)
    os.chown(runtime, 65534, 65534)
    with pytest.raises(AibenchError) as error:
        locks.runtime_folder()
    assert "it belongs to uid 65534" in refusal(error)


def test_the_folder_of_device_locks_is_for_all_users_whatever_the_umask(runtime: Path) -> None:
    before = os.umask(0o077)
    try:
        folder = locks.device_lock_folder()
    finally:
        os.umask(before)
    assert folder == runtime / "locks"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777


def test_a_folder_of_device_locks_that_is_not_for_all_is_refused(runtime: Path) -> None:
    locks.runtime_folder()
    (runtime / "locks").mkdir(mode=0o700)
    with pytest.raises(AibenchError) as error:
        locks.device_lock_folder()
    assert "mode 1777" in refusal(error)


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user needs root")
def test_a_folder_of_device_locks_whose_owner_could_take_them_away_is_refused(runtime: Path) -> None:
    os.chown(locks.device_lock_folder(), 65534, 65534)
    with pytest.raises(AibenchError) as error:
        locks.device_lock_folder()
    assert "it belongs to uid 65534" in refusal(error)


def test_device_locks_lie_in_a_folder_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that a user made for all would be that user's."""
    monkeypatch.delenv("AIBENCH_RUNTIME_DIR")
    folder = locks.device_lock_folder()
    assert folder in (Path("/run/lock"), Path("/tmp"))
    assert folder.stat().st_uid == 0


def test_a_second_run_on_a_device_is_told_who_has_it() -> None:
    with locks.acquire(["cpu", GPU], "first-run"):
        with pytest.raises(AibenchError) as error:
            locks.acquire([GPU], "second-run")
        said = refusal(error)
        assert f"device {GPU} is in use by run first-run (pid {os.getpid()}, user " in said
        assert "since 20" in said
        assert "wait for its end" in said
    locks.acquire([GPU], "second-run").release()


def test_locks_are_all_or_none() -> None:
    with locks.acquire([GPU], "first-run"):
        with pytest.raises(AibenchError):
            locks.acquire(["cpu", GPU], "second-run")
        locks.acquire(["cpu"], "third-run").release()


def test_a_device_named_twice_is_locked_once() -> None:
    with locks.acquire(["cpu", "cpu"], "run") as held:
        assert len(held.fds) == 1


def test_a_device_stays_locked_while_an_orphan_has_it() -> None:
    """The runner is killed, its worker lives on and holds the inherited descriptor."""
    runner = (
        "import subprocess, sys, time\n"
        "from engine.locks import acquire\n"
        "locks = acquire(['cpu'], 'killed-run')\n"
        "worker = subprocess.Popen(['sleep', '600'], pass_fds=locks.fds, stdout=subprocess.DEVNULL,\n"
        "    env={'AIBENCH_RUN_ID': 'killed-run'})\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", runner], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        process.kill()
    try:
        with pytest.raises(AibenchError) as error:
            locks.acquire(["cpu"], "second-run")
        assert f"process {worker} of run killed-run, whose runner is gone" in refusal(error)
        assert "aibench-tui clean" in refusal(error)
    finally:
        os.kill(worker, signal.SIGKILL)
    wait_for_lock("cpu")


def wait_for_lock(device: str) -> None:
    end = time.monotonic() + 20
    while True:
        try:
            locks.acquire([device], "later-run").release()
            return
        except AibenchError:
            assert time.monotonic() < end


def test_a_stranger_who_holds_a_lock_is_not_taken_for_the_run_before() -> None:
    """flock(1) on the file that an ended run left, with that run's name in it."""
    run = "from engine.locks import acquire; acquire(['cpu'], 'ended-run').release()"
    subprocess.run([sys.executable, "-c", run], check=True)
    path = lock_of("cpu")
    with subprocess.Popen(["flock", str(path), "sh", "-c", "echo held; exec sleep 600"], stdout=-1) as stranger:
        assert stranger.stdout is not None and stranger.stdout.readline() == b"held\n"
        with pytest.raises(AibenchError) as error:
            locks.acquire(["cpu"], "second-run")
        children = Path(f"/proc/{stranger.pid}/task/{stranger.pid}/children").read_text().split()
        for pid in (stranger.pid, *map(int, children)):
            os.kill(pid, signal.SIGKILL)
    assert "which is of no run" in refusal(error)
    assert "ended-run" not in refusal(error)


def test_a_holder_that_nobody_sees_is_said_to_have_left_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's process shows its descriptors to nobody but root (proc(5), ptrace access mode)."""
    with locks.acquire(["cpu"], "first-run"):
        text = json.loads(lock_of("cpu").read_text())
        lock_of("cpu").write_text(json.dumps({**text, "ticks": 1}))  # its number is another process's by now
        monkeypatch.setattr(locks, "_find_holder", lambda _: 0)
        with pytest.raises(AibenchError) as error:
            locks.acquire(["cpu"], "second-run")
    said = refusal(error)
    assert "in use by a process that left no name (the last that left one: run first-run " in said
    assert str(lock_of("cpu")) in said


def lock_of(device: str) -> Path:
    return locks.device_lock_folder() / f"aibench-tui-{device}.lock"


def test_the_text_of_a_lock_only_informs() -> None:
    """Left by a dead run, or by a program that writes nonsense into it."""
    locks.acquire(["cpu"], "run").release()
    path = lock_of("cpu")
    for text in (
        b"",
        b"[" * 100_000,
        b'{"run": "\\u001b[2J", "pid": 1e999}',
        b'{"pid": -1, "ticks": 0}',
        b"\xff\x00",
        b"[]",
    ):
        path.write_bytes(text)
        locks.acquire(["cpu"], "run").release()
        with locks.acquire(["cpu"], "run"):
            path.write_bytes(text)
            with pytest.raises(AibenchError) as error:
                locks.acquire(["cpu"], "other")
            assert "\x1b" not in refusal(error)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "hard link"])
def test_something_planted_in_the_place_of_a_device_lock_is_refused(tmp_path: Path, kind: str) -> None:
    path = lock_of("cpu")
    target = tmp_path / "precious"
    target.write_text("keep")
    if kind == "link":
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "hard link":
        path.hardlink_to(target)
    else:
        path.mkdir()
    with pytest.raises(AibenchError) as error:
        locks.acquire(["cpu"], "run")
    assert str(path) in refusal(error)
    assert target.read_text() == "keep"


def test_a_device_id_with_slashes_makes_no_path() -> None:
    with locks.acquire(["../../escape"], "run"):
        assert [path.name for path in locks.device_lock_folder().iterdir()] == ["aibench-tui-.._.._escape.lock"]


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as another user needs root")
def test_a_lock_that_another_user_made_is_ours_to_take() -> None:
    """fs.protected_regular refuses O_CREAT on such a file, root included."""
    path = lock_of("cpu")
    path.touch()
    os.chown(path, 65534, 65534)
    locks.acquire(["cpu"], "run").release()
    path.unlink()
    before = os.umask(0o077)
    try:
        locks.acquire(["cpu"], "run").release()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666


def test_a_run_folder_has_one_runner(tmp_path: Path) -> None:
    assert not locks.is_running(tmp_path)
    with locks.lock_run_folder(tmp_path) as descriptor:
        assert locks.is_running(tmp_path)
        assert not os.get_inheritable(descriptor)
        with pytest.raises(AibenchError) as error, locks.lock_run_folder(tmp_path):
            pass
        assert f"{tmp_path} is in use by a runner" in refusal(error)
    assert not locks.is_running(tmp_path)


def test_looking_at_a_run_folder_keeps_no_runner_out(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from engine.locks import is_running\n"
        f"while True: is_running(Path({str(tmp_path)!r}))\n"
    )
    with locks.lock_run_folder(tmp_path):
        pass
    with subprocess.Popen([sys.executable, "-c", code]) as looker:
        try:
            for _ in range(200):
                with locks.lock_run_folder(tmp_path) as descriptor:
                    assert descriptor >= 0
        finally:
            looker.kill()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "hard link"])
def test_something_planted_in_the_place_of_a_run_lock_is_refused(tmp_path: Path, kind: str) -> None:
    """A pipe would keep whoever opens it waiting for ever."""
    path = tmp_path / runfolder.LOCK
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        (tmp_path / "other").touch()
        path.hardlink_to(tmp_path / "other")
    with pytest.raises(AibenchError) as error, locks.lock_run_folder(tmp_path):
        pass
    assert error.value.code == exits.USAGE
    assert runfolder.LOCK in str(error.value)
    assert not locks.is_running(tmp_path)


def test_a_run_whose_lock_cannot_be_opened_counts_as_running(tmp_path: Path) -> None:
    """With all descriptors in use (EMFILE) nothing can be told."""
    with locks.lock_run_folder(tmp_path):
        pass
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from engine.locks import is_running\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        f"sys.exit(not is_running(Path({str(tmp_path)!r})))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as another user needs root")
def test_a_run_that_is_hidden_from_us_counts_as_running(tmp_path: Path) -> None:
    """Whoever cleans up must not take another user's run for a dead one."""
    with locks.lock_run_folder(tmp_path):
        pass
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from engine.locks import is_running\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "os.setuid(65534)\n"
        "sys.exit(not is_running(Path('.')))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
