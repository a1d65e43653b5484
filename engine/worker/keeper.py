"""The keeper: the parent of one trial's worker, which ends the whole trial when anything goes wrong.

    python -I keeper.py --run RUN --trial TRIAL --deadline SECONDS -- WORKER_ARGV...

Standard library only, one file, run by path; in a container it is PID 1. Its stdin is the runner's pipe: bytes are
relayed to the worker, and end-of-file means that the runner is gone or wants the trial to end. The last thing it
writes is one line for the runner. Exit codes: 0 the worker ended by itself, 3 deadline, 4 end-of-file or a signal.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from types import FrameType
from typing import NamedTuple, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

EXIT_CODES = {"ended": 0, "deadline": 3, "eof": 4}

RELAY_LIMIT = 1 << 20
"""Bytes kept for a worker that does not read its stdin; beyond it the runner's pipe is left to fill."""

UNKILLABLE_S = 8.0
"""How long killed processes may take to leave the kernel (a hung driver call) before they are reported as left."""

CHASE_S = 30.0
"""How long processes that fork as fast as they are killed are chased; in a container our exit ends them for certain."""


def main() -> int:
    """Keep one trial; the exit code says why it ended."""
    parser = argparse.ArgumentParser(prog="keeper", description="Starts one worker and ends all that it leaves behind.")
    parser.add_argument("--run", required=True)
    parser.add_argument("--trial", required=True)
    parser.add_argument("--deadline", required=True, type=float)
    parser.add_argument("worker", nargs="+")
    options = parser.parse_args()
    token = os.environ.pop("AIBENCH_TOKEN", "")
    keeper = Keeper(options.run, options.trial, options.deadline)
    cause = keeper.keep(options.worker)
    _write_report(keeper.report(token, cause))
    return EXIT_CODES[cause]


class Keeper:
    """One worker and everything that descends from it or carries its run and trial ids."""

    def __init__(self, run: str, trial: str, deadline_s: float) -> None:
        self._marks = {f"AIBENCH_RUN_ID={run}".encode(), f"AIBENCH_TRIAL_ID={trial}".encode()}
        self._begin = time.monotonic()
        self._deadline = self._begin + deadline_s
        self._oom_kills = oom_kills()
        self._told_to_stop = False
        self._worker = 0
        self._worker_stdin = -1
        self._status: int | None = None
        self._pending = b""
        self._killed: set[int] = set()
        self._left = 0

    def keep(self, argv: list[str]) -> str:
        """Start the worker, wait for its end, the deadline or end-of-file, then leave nothing behind."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        wakeup = self._watch_signals()
        self._start(argv)
        cause = self._wait(wakeup)
        self._end_all()
        return cause

    def report(self, token: str, cause: str) -> dict[str, object]:
        """The keeper's protocol line: how the worker ended and what it left behind."""
        code = None if self._status is None else os.waitstatus_to_exitcode(self._status)
        before, after = self._oom_kills, oom_kills()
        return {
            "token": token,
            "rank": -1,
            "seq": 0,
            "kind": "keeper",
            "t": time.monotonic(),
            "exit_code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "cause": cause,
            "killed": len(self._killed - {self._worker}),
            "left": self._left,
            "seconds": time.monotonic() - self._begin,
            "max_rss_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
            "oom_kills": None if before is None or after is None else after - before,
        }

    def _watch_signals(self) -> int:
        """A descriptor that becomes readable when a child ends or a signal asks the trial to end."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        return reader

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._told_to_stop = True

    def _start(self, argv: list[str]) -> None:
        """Fork from the main thread: a parent-death signal follows the thread that forked."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        keeper = os.getpid()
        self._worker = os.fork()
        if self._worker == 0:
            _become_worker(argv, reader, keeper)
        os.close(reader)
        self._worker_stdin = writer

    def _wait(self, wakeup: int) -> str:
        poll = select.poll()
        poll.register(wakeup, select.POLLIN)
        while not self._reap_until_worker():
            if self._told_to_stop:
                return "eof"
            remaining_s = self._deadline - time.monotonic()
            if remaining_s <= 0:
                return "deadline"
            poll.register(0, select.POLLIN if len(self._pending) < RELAY_LIMIT else select.POLLRDHUP)
            self._watch_worker_stdin(poll)
            for descriptor, event in poll.poll(min(remaining_s, 3600) * 1000 + 1):
                if descriptor == wakeup:
                    _drain(wakeup)
                elif descriptor == 0 and not self._receive(event):
                    return "eof"
            self._relay()
        return "ended"

    def _receive(self, event: int) -> bool:
        """Take bytes from the runner; False at its end-of-file (also one behind a full relay)."""
        if not event & select.POLLIN:
            return False
        data = os.read(0, 65536)
        self._pending += data
        return bool(data)

    def _watch_worker_stdin(self, poll: select.poll) -> None:
        """Wait for room in the worker's pipe only while there is something to relay."""
        if self._pending:
            poll.register(self._worker_stdin, select.POLLOUT)
        else:
            with contextlib.suppress(KeyError):
                poll.unregister(self._worker_stdin)

    def _relay(self) -> None:
        try:
            while self._pending:
                self._pending = self._pending[os.write(self._worker_stdin, self._pending) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it closed its stdin: what comes is not for it; the descriptor stays open
            self._pending = b""

    def _reap_until_worker(self) -> bool:
        """Reap orphans; True once the worker is a zombie. It stays one, so that its group's number stays ours."""
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return False
            if ended.si_pid == self._worker:
                return True
            os.waitpid(ended.si_pid, 0)

    def _end_all(self) -> None:
        """Kill and reap until nothing of the trial is left, or only what the kernel will not let go."""
        self._kill(self._victims())
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._worker, signal.SIGKILL)  # in one step for the whole group, however fast it forks
        begin = last_new = time.monotonic()
        while True:
            has_children = self._reap_all()
            victims = self._victims()
            if not victims and not has_children:
                return
            now = time.monotonic()
            last_new = now if self._kill(victims) else last_new
            if now - last_new > UNKILLABLE_S or now - begin > CHASE_S:
                self._left = len(victims)
                return
            time.sleep(0.002)

    def _kill(self, victims: set[int]) -> bool:
        """SIGKILL each; True if one of them was not known before."""
        for pid in victims:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        new = not victims <= self._killed
        self._killed |= victims
        return new

    def _victims(self) -> set[int]:
        """The living processes of this trial: descendants by parent, and strays by the ids in their environment."""
        parents = living()
        own = os.getpid()
        return {
            pid for pid in parents if pid != own and (descends(pid, own, parents) or self._marks <= environment(pid))
        }

    def _reap_all(self) -> bool:
        """Reap what has ended; True while children remain."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self._worker:
                    self._status = status
        return False


def _become_worker(argv: list[str], stdin: int, keeper: int) -> NoReturn:
    """In the forked child: an own session, SIGKILL when the keeper dies, the relay as stdin; then the worker."""
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:  # it died before the signal was armed
            os._exit(1)
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.dup2(stdin, 0)
        _volunteer_for_oom_kill()
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"keeper: cannot start {argv[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _volunteer_for_oom_kill() -> None:
    """When the node runs out of memory, the worker goes first, not the runner or somebody else's job."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def prctl(option: int, argument: int) -> None:
    """prctl(2); raises OSError where the kernel refuses."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option} was refused")


class Relative(NamedTuple):
    """A process as /proc shows it; one that is not `alive` is a zombie, or exits already."""

    parent: int
    alive: bool


def relatives() -> dict[int, Relative]:
    """Every process that can be seen, by its number."""
    found: dict[int, Relative] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                found[int(name)] = _relative(name)
    return found


def living() -> dict[int, int]:
    """The parent of every living process that can be seen, zombies and processes already exiting left out."""
    return {pid: each.parent for pid, each in relatives().items() if each.alive}


def _relative(pid: str) -> Relative:
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()  # the name before it may hold anything, also ")"
    # A zombie with threads is a process whose main thread has ended while others go on.
    return Relative(int(fields[1]), fields[0] not in (b"Z", b"X") or int(fields[17]) > 1)


def descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    """Whether `ancestor` is above `pid` in a map from each process to its parent."""
    seen = {pid}
    while pid in parents:
        pid = parents[pid]
        if pid == ancestor:
            return True
        if pid in seen:
            return False
        seen.add(pid)
    return False


def environment(pid: int) -> set[bytes]:
    """The NAME=value entries that a process was started with; empty where they cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return set(file.read().split(b"\0"))
    except OSError:  # it ended, or belongs to somebody else
        return set()


def oom_kills(membership: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int | None:
    """How many processes of our memory cgroup the kernel has killed so far; None where that cannot be read.

    cgroup v1 says so in memory.oom_control, v2 in memory.events, both as a line "oom_kill N". In a container the
    cgroup's own folder may be mounted as the root, so both places are tried.
    """
    for path in _memory_cgroup_files(membership, root):
        with contextlib.suppress(OSError, ValueError):
            with open(path, encoding="ascii") as file:
                counts = dict(line.split() for line in file)
            if "oom_kill" in counts:
                return int(counts["oom_kill"])
    return None


def _memory_cgroup_files(membership: str, root: str) -> list[str]:
    try:
        with open(membership, encoding="utf-8", errors="surrogateescape") as file:
            rows = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return []
    legacy = [path for _, controllers, path in rows if "memory" in controllers.split(",")]
    unified = [path for number, controllers, path in rows if (number, controllers) == ("0", "")]
    folders = [(f"{root}/memory", "memory.oom_control", path) for path in legacy]
    folders += [(root, "memory.events", path) for path in unified]
    return [f"{folder}{place}/{name}" for folder, name, path in folders for place in (path.rstrip("/"), "")]


def _drain(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(descriptor, 4096):
            pass


def _write_report(report: dict[str, object]) -> None:
    """One line, with a newline first so that a torn line before it costs nothing."""
    line = b"\n" + json.dumps(report, separators=(",", ":")).encode() + b"\n"
    with contextlib.suppress(OSError):
        os.set_blocking(1, True)  # the worker shared this pipe and may have changed it
        while line:
            line = line[os.write(1, line) :]


if __name__ == "__main__":
    sys.exit(main())
