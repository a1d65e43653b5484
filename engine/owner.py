"""The owner pipe: a socket pair between a runner and whoever started it. Its end-of-file means that one is gone."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine import exits, files
from engine.children import python_command
from engine.errors import AibenchError, remedy
from engine.text import clean

MAX_LINE = 2 * 1024 * 1024
START_LIMIT_S = 300.0
"""Looking for devices and for an interpreter with the framework is bounded by this."""

LEAST_OPEN_FILES = 64
"""A runner holds about half as many."""

GLANCE_S = 0.1
LOOK = "see `aibench-tui doctor`"
STDERR_BYTES = 65_536
"""All that a pipe holds."""


class Request(msgspec.Struct, frozen=True):
    """What an owner asks of its runner: a plan (TOML) to run in a new folder below `folder`, or `folder` to resume."""

    folder: str
    plan: str = ""
    resume: bool = False


class Reply(msgspec.Struct, frozen=True):
    """What a runner says: where the run is ("ready"), why there is none ("error"), or how it ended ("ended")."""

    kind: str
    run: str = ""
    folder: str = ""
    text: str = ""
    code: int = 0


class OwnerEnd:
    """The runner's end of the pipe."""

    def __init__(self, fd: int) -> None:
        self.socket = socket.socket(fileno=fd)

    def request(self) -> Request:
        """The owner's request, waited for."""
        with self.socket.makefile("rb") as stream:
            return msgspec.json.decode(stream.readline(MAX_LINE), type=Request)

    def heard(self) -> str | None:
        """Why the owner wants the run to end ("" where it wants nothing yet), or None once it has closed its end."""
        try:
            data = self.socket.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return ""
        except OSError:
            return None
        return clean(data.strip(), 100) if data else None

    def say(self, reply: Reply) -> None:
        """Tell the owner; one who is gone is no error."""
        try:
            self.socket.sendall(msgspec.json.encode(reply) + b"\n")
        except OSError:
            return


class NotWanted(Exception):
    """The run was given up before it had started; nothing of it is left running."""


class StartedRun:
    """The owner's end: a run that was started and is now on its own. No method waits longer than it is told to."""

    def __init__(self, process: subprocess.Popen[bytes], end: socket.socket, stderr: int) -> None:
        self._process = process
        self._socket = end
        self._stderr = stderr
        self._incoming = b""
        self._outgoing = b""
        self._closed = False
        self.ended: Reply | None = None
        self.run, self.folder = "", Path()

    def begin(self, request: Request, give_up: Callable[[], bool]) -> None:
        """Hand the request over and wait until the run is under way. Raises AibenchError or NotWanted."""
        self._outgoing = msgspec.json.encode(request) + b"\n"
        deadline = time.monotonic() + START_LIMIT_S
        while (first := self._next(GLANCE_S)) is None:
            if give_up():
                raise NotWanted
            if self._process.poll() is not None:
                raise self._early_end()
            if time.monotonic() > deadline:
                what = f"the runner did not start the run within {START_LIMIT_S:g} s"
                raise AibenchError(what, LOOK, code=exits.INCOMPLETE)
        if first.kind == "error":
            raise AibenchError(clean(first.text), code=first.code)
        self.run, self.folder = first.run, Path(first.folder)

    @property
    def pid(self) -> int:
        """The runner's process."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether the runner has said how the run ended, or is gone."""
        return self.ended is not None or self._process.poll() is not None

    def poll(self, wait_s: float) -> bool:
        """Wait up to `wait_s` seconds for the end of the run; True once the runner has ended (`ended` says how)."""
        reply = self._next(wait_s)
        if reply is not None and reply.kind in ("ended", "error"):
            self.ended = reply
        return self.is_over

    def why(self) -> str:
        """What the runner said of its end, or the last line on the stderr of one that died; "" for nothing."""
        if self.ended is not None:
            return self.ended.text
        words = self._last_words()
        return f"the runner died: {words}; {remedy(words) or LOOK}" if words else ""

    def stop(self, why: str) -> None:
        """Ask the run to end, for the reason `why`; a runner that has ended already is no error."""
        self._outgoing += why.encode() + b"\n"
        self._send()

    def let_go(self) -> None:
        """Leave it alone; with on_owner_exit = "stop" the run ends."""
        self._socket.close()
        os.close(self._stderr)

    def _next(self, wait_s: float) -> Reply | None:
        """The runner's next line; None where there is none within `wait_s` seconds, or will be none."""
        deadline = time.monotonic() + wait_s
        while b"\n" not in self._incoming:
            left = max(deadline - time.monotonic(), 0.0)
            if self._closed:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(left)
                return None
            readable, writable, _ = select.select([self._socket], [self._socket] if self._outgoing else [], [], left)
            if writable:
                self._send()
            if readable:
                self._receive()
            elif not left:
                return None
        line, self._incoming = self._incoming.split(b"\n", 1)
        return msgspec.json.decode(line, type=Reply)

    def _receive(self) -> None:
        try:
            data = self._socket.recv(65_536)
        except ConnectionError:  # the runner died with our words unread
            data = b""
        self._closed = not data
        self._incoming += data

    def _send(self) -> None:
        """As much as the socket takes now: a runner that stands still must not make its owner stand still."""
        try:
            self._outgoing = self._outgoing[self._socket.send(self._outgoing, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            return
        except OSError:
            self._outgoing = b""

    def _early_end(self) -> AibenchError:
        code = self._process.returncode
        ended = f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"exit code {code}"
        what = f"the runner ended before it could start: {self._last_words() or ended}"
        return AibenchError(what, remedy(what) or LOOK, code=exits.INCOMPLETE)

    def _last_words(self) -> str:
        if self._process.poll() is not None:
            with contextlib.suppress(BlockingIOError):  # something that the runner left still holds the other end
                if lines := os.read(self._stderr, STDERR_BYTES).strip().splitlines():
                    return clean(lines[-1], 300)
        return ""


def start_runner(request: Request, give_up: Callable[[], bool] = lambda: False) -> StartedRun:
    """Start a runner in a session of its own and wait until it runs.

    Raises AibenchError with the runner's own line and exit code where it cannot, NotWanted once `give_up` says so.
    """
    _refuse_few_files()
    with files.explained("the runner", "start", code=exits.NOT_READY):
        process, end, stderr = _start()
    run = StartedRun(process, end, stderr)
    try:
        run.begin(request, give_up)
    except BaseException:  # whoever gives up before the run is known to have started must not leave it behind
        process.terminate()
        run.let_go()
        raise
    return run


def _refuse_few_files() -> None:
    """Refuse a limit under which every trial would fail, each in its own way."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < LEAST_OPEN_FILES:
        what = f"a run needs {LEAST_OPEN_FILES} open files and the limit is {limit}"
        raise AibenchError(what, "raise the limit of open files (ulimit -n)", code=exits.NOT_READY)


def _start() -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """The runner's process, our end of the owner pipe and of its stderr. Raises OSError and leaves nothing open."""
    with contextlib.ExitStack() as ours:
        end, theirs = socket.socketpair()
        ours.enter_context(end)
        with theirs:
            reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)  # nobody reads it while the runner lives
            ours.callback(os.close, reading)
            with os.fdopen(writing, "wb") as stderr:
                process = subprocess.Popen(
                    python_command("engine.runner_main", str(theirs.fileno())),
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    cwd="/",
                    start_new_session=True,
                )
        ours.pop_all()
        return process, end, reading
