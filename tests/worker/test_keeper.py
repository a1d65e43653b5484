"""The keeper among honest and hostile workers: all of a trial ends with it, and nothing else does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.worker import keeper
from tests.worker.keeping import SAY_PID, TOKEN, Kept, is_alive, marks, wait_until

SLEEP = "import time\ntime.sleep(600)\n"

ORPHAN = SAY_PID + "import signal, sys, time\n"
"""The beginning of workers that leave something behind."""


def test_the_end_of_a_worker_is_reported(tmp_path: Path) -> None:
    report = Kept(tmp_path, "import sys\nprint('a result')\nsys.exit(7)").end()
    assert report["text"] == "a result\n"
    assert (report["token"], report["rank"], report["seq"], report["kind"]) == (TOKEN, -1, 0, "keeper")
    assert (report["exit_code"], report["signal"], report["cause"]) == (7, None, "ended")
    assert (report["killed"], report["left"], report["code"]) == (0, 0, 0)
    assert report["seconds"] > 0
    assert report["max_rss_bytes"] > 1_000_000


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_killed_by_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    report = Kept(tmp_path, f"import os\nos.kill(os.getpid(), {int(number)})").end()
    assert (report["exit_code"], report["signal"], report["cause"]) == (None, int(number), "ended")


def test_a_worker_that_cannot_be_started(tmp_path: Path) -> None:
    command = [sys.executable, "-I", keeper.__file__, "--run", "r", "--trial", "t", "--deadline", "60"]
    with subprocess.Popen(
        [*command, "--", "/nowhere/python"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert b'"exit_code":127' in process.stdout.read()
        assert process.stderr.read() == b"keeper: cannot start /nowhere/python: No such file or directory\n"


def test_the_worker_has_a_session_of_its_own_and_not_the_token(tmp_path: Path) -> None:
    script = "import os\nprint(os.getsid(0) == os.getpid(), 'AIBENCH_TOKEN' in os.environ)"
    assert Kept(tmp_path, script).end()["text"] == "True False\n"


def test_stdin_is_relayed(tmp_path: Path) -> None:
    """Also more than the keeper holds for a worker that is slow to read."""
    size = 3 * keeper.RELAY_LIMIT
    script = f"import sys, time\ntime.sleep(0.2)\ndata = sys.stdin.buffer.read({size})\nprint(len(data), set(data))"
    kept = Kept(tmp_path, script)
    assert kept.process.stdin is not None
    kept.process.stdin.write(b"x" * size)
    kept.process.stdin.flush()
    assert kept.end()["text"] == f"{size} {{120}}\n"


def test_a_worker_that_closes_its_stdin_and_is_sent_more(tmp_path: Path) -> None:
    kept = Kept(tmp_path, SAY_PID + "import time\nos.close(0)\nsay('pid')\ntime.sleep(0.2)\nprint('unharmed')")
    assert kept.process.stdin is not None
    kept.pid()
    kept.process.stdin.write(b"a pong for nobody\n")
    kept.process.stdin.flush()
    assert kept.end()["text"] == "unharmed\n"


def test_end_of_file_ends_the_trial(tmp_path: Path) -> None:
    kept = Kept(tmp_path, SAY_PID + "say('pid')\n" + SLEEP)
    pid = kept.pid()
    kept.close_stdin()
    report = kept.end()
    assert (report["cause"], report["signal"], report["code"]) == ("eof", signal.SIGKILL, 4)
    assert not is_alive(pid)


def test_end_of_file_behind_bytes_that_the_worker_never_reads(tmp_path: Path) -> None:
    kept = Kept(tmp_path, SLEEP)
    assert kept.process.stdin is not None
    descriptor = kept.process.stdin.fileno()
    os.set_blocking(descriptor, False)
    sent, last = 0, time.monotonic()
    while sent < 4 * keeper.RELAY_LIMIT and time.monotonic() - last < 0.3:
        with contextlib.suppress(BlockingIOError):
            sent += os.write(descriptor, b"x" * 65536)
            last = time.monotonic()
    assert keeper.RELAY_LIMIT < sent < 2 * keeper.RELAY_LIMIT
    kept.close_stdin()
    assert kept.end()["cause"] == "eof"


def test_the_deadline_ends_the_trial(tmp_path: Path) -> None:
    report = Kept(tmp_path, SLEEP, deadline_s=0.3).end()
    assert (report["cause"], report["signal"], report["code"]) == ("deadline", signal.SIGKILL, 3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_keeper_ends_the_trial(tmp_path: Path, number: signal.Signals) -> None:
    kept = Kept(tmp_path, SAY_PID + "say('pid')\n" + SLEEP)
    pid = kept.pid()
    kept.process.send_signal(number)
    report = kept.end()
    assert (report["cause"], report["code"]) == ("eof", 4)
    assert not is_alive(pid)


def test_a_killed_keeper_takes_its_worker_along(tmp_path: Path) -> None:
    kept = Kept(tmp_path, SAY_PID + "say('pid')\n" + SLEEP)
    pid = kept.pid()
    kept.process.kill()
    kept.process.communicate()
    wait_until(lambda: not is_alive(pid))


def test_a_grandchild_that_forked_twice_left_the_session_and_ignores_sigterm(tmp_path: Path) -> None:
    script = ORPHAN + (
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork():\n"
        "        os._exit(0)\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    say('pid')\n"
        "    time.sleep(600)\n"
        "while not os.path.exists('pid'): time.sleep(0.01)\n"
    )
    kept = Kept(tmp_path, script)
    report = kept.end()
    assert (report["exit_code"], report["killed"], report["left"]) == (0, 1, 0)
    assert not is_alive(kept.pid())


def test_a_grandchild_that_closed_everything_and_cleared_its_environment(tmp_path: Path) -> None:
    nap = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(f'{{os.getpid()}}\\\\n'); time.sleep(600)"
    script = ORPHAN + (
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork():\n"
        "        os._exit(0)\n"
        "    os.closerange(0, 64)\n"
        f'    os.execve(sys.executable, [sys.executable, "-c", "{nap}"], {{}})\n'
        "while not os.path.exists('pid'): time.sleep(0.01)\n"
    )
    kept = Kept(tmp_path, script)
    report = kept.end()
    assert (report["exit_code"], report["killed"]) == (0, 1)
    assert not is_alive(kept.pid())


def test_a_tree_of_a_hundred_sessions(tmp_path: Path) -> None:
    script = ORPHAN + (
        "def grow(depth):\n"
        "    for _ in range(2 if depth else 0):\n"
        "        if os.fork() == 0:\n"
        "            os.setsid()\n"
        "            grow(depth - 1)\n"
        "            time.sleep(600)\n"
        "grow(6)\n"
    )
    kept = Kept(tmp_path, script)
    assert kept.end()["exit_code"] == 0
    assert kept.left() == []


def test_a_process_that_moves_on_by_forking_all_the_time(tmp_path: Path) -> None:
    """In another session, and no process of it lives long enough to be seen in /proc; bounded by ten seconds."""
    script = ORPHAN + (
        "if os.fork() == 0:\n"
        "    say('pid')\n"
        "    end = time.monotonic() + 10\n"
        "    while time.monotonic() < end:\n"
        "        if os.fork():\n"
        "            os._exit(0)\n"
        "        os.setsid()\n"
        "    say('survived')\n"
        "    os._exit(0)\n"
        "while not os.path.exists('pid'): time.sleep(0.01)\n"
    )
    kept = Kept(tmp_path, script)
    assert kept.end()["exit_code"] == 0
    assert kept.left() == []
    assert not (tmp_path / "survived").exists()


def test_a_worker_that_ends_while_its_group_forks(tmp_path: Path) -> None:
    """A bounded fork bomb in the worker's own group."""
    script = ORPHAN + (
        "if os.fork() == 0:\n"
        "    for _ in range(6):\n"
        "        os.fork()\n"
        "        time.sleep(0.02)\n"
        "    time.sleep(600)\n"
        "time.sleep(0.05)\n"
    )
    kept = Kept(tmp_path, script)
    assert kept.end()["exit_code"] == 0
    assert kept.left() == []


def test_again_and_again_nothing_is_left(tmp_path: Path) -> None:
    script = (
        ORPHAN
        + "for _ in range(3):\n"
        + "    if os.fork() == 0:\n        os.setsid()\n        os.fork()\n        time.sleep(600)\n"
    )
    for _ in range(10):
        kept = Kept(tmp_path, script)
        assert kept.end()["exit_code"] == 0
        assert kept.left() == []


def test_a_stray_is_found_by_its_ids_and_a_bystander_is_left_alone(tmp_path: Path) -> None:
    """Not a descendant, so only the environment tells: the stray has both ids, the others one or none."""
    kept = Kept(tmp_path, SAY_PID + "import time\nsay('pid')\nwhile not os.path.exists('go'): time.sleep(0.01)\n")
    kept.pid()
    nap = [sys.executable, "-c", SLEEP]
    stray = subprocess.Popen(nap, env=marks(kept.run, "t0001"))
    others = [marks(kept.run, "t0002"), marks("another-run", "t0001"), {"AIBENCH_TRIAL_ID": "t0001"}, {}]
    bystanders = [subprocess.Popen(nap, env=environment) for environment in others]
    try:
        (tmp_path / "go").touch()
        report = kept.end()
        assert report["killed"] == 1
        assert stray.wait(20) == -signal.SIGKILL
        assert [bystander.poll() for bystander in bystanders] == [None] * 4
    finally:
        for process in (stray, *bystanders):
            process.kill()
            process.wait()


def test_orphans_that_end_are_reaped_while_the_worker_runs(tmp_path: Path) -> None:
    script = ORPHAN + (
        "for _ in range(50):\n"
        "    if os.fork() == 0:\n"
        "        if os.fork() == 0: time.sleep(0.05)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "def is_zombie_of_keeper(pid):\n"
        "    try:\n"
        "        fields = open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()\n"
        "    except OSError:\n"
        "        return False\n"
        "    return fields[:2] == ['Z', str(os.getppid())]\n"
        "def zombies():\n"
        "    return [pid for pid in os.listdir('/proc') if pid.isdigit() and is_zombie_of_keeper(pid)]\n"
        "time.sleep(0.1)\n"
        "end = time.monotonic() + 10\n"
        "while zombies() and time.monotonic() < end: time.sleep(0.01)\n"
        "sys.exit(len(zombies()))\n"
    )
    assert Kept(tmp_path, script).end()["exit_code"] == 0


def test_a_torn_line_before_the_report(tmp_path: Path) -> None:
    report = Kept(tmp_path, 'import os\nos.write(1, b\'{"token": "to\')').end()
    assert report["text"] == '{"token": "to'
    assert report["kind"] == "keeper"


def test_a_worker_that_makes_the_shared_pipe_non_blocking_and_fills_it(tmp_path: Path) -> None:
    script = SAY_PID + (
        "say('pid')\n"
        "os.set_blocking(1, False)\n"
        "try:\n"
        "    while True: os.write(1, b'x' * 4096)\n"
        "except BlockingIOError: pass\n"
    )
    kept = Kept(tmp_path, script)
    pid = kept.pid()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    time.sleep(0.1)  # a keeper that gives up on a full pipe does so now
    assert kept.end()["exit_code"] == 0


def test_a_worker_whose_main_thread_ends_before_the_others(tmp_path: Path) -> None:
    """The process looks like a zombie then, while its other threads go on."""
    script = ORPHAN + (
        "import ctypes, threading\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "say('pid')\n"
        "ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)\n"
    )
    kept = Kept(tmp_path, script)
    pid = kept.pid()
    wait_until(lambda: b") Z" in Path(f"/proc/{pid}/stat").read_bytes())
    assert is_alive(pid)
    kept.close_stdin()
    assert kept.end()["cause"] == "eof"
    assert not Path(f"/proc/{pid}").exists()


def test_as_the_first_process_of_a_namespace(tmp_path: Path) -> None:
    """As in a container: orphans are its children anyway, and signals without a handler do not reach it."""
    if os.geteuid() != 0:
        pytest.skip("a process namespace needs root")
    script = ORPHAN + (
        "print(os.getppid())\n"
        "for _ in range(5):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork(): os._exit(0)\n"
        "        time.sleep(600)\n"
    )
    kept = Kept(tmp_path, script, prefix=("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"))
    report = kept.end()
    assert report["text"] == "1\n"
    assert (report["exit_code"], report["code"]) == (0, 0)
    assert kept.left() == []


def test_the_count_of_oom_kills_under_cgroup_v1(tmp_path: Path) -> None:
    """Documentation: kernel, admin-guide/cgroup-v1/memory, "OOM Control"."""
    membership = tmp_path / "cgroup"
    membership.write_text("9:name=systemd:/\n4:memory:/user/1\n0::/\n")
    folder = tmp_path / "root" / "memory" / "user" / "1"
    folder.mkdir(parents=True)
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert keeper.oom_kills(str(membership), str(tmp_path / "root")) == 3


def test_the_count_of_oom_kills_under_cgroup_v2_in_a_container(tmp_path: Path) -> None:
    """Documentation: kernel, admin-guide/cgroup-v2, "memory.events". The own cgroup is mounted as the root there."""
    membership = tmp_path / "cgroup"
    membership.write_text("0::/machine/a:b\n")
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\noom_group_kill 0\n")
    assert keeper.oom_kills(str(membership), str(tmp_path)) == 2


def test_a_count_of_oom_kills_that_cannot_be_read(tmp_path: Path) -> None:
    assert keeper.oom_kills(str(tmp_path / "none")) is None
    membership = tmp_path / "cgroup"
    membership.write_text("0::/\n")
    assert keeper.oom_kills(str(membership), str(tmp_path)) is None
