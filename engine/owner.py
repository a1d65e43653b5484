"""The owner pipe: a socket pair between a runner and whoever started it. Its end-of-file means that one is gone."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import time
from pathlib import Path

import msgspec

from engine import exits
from engine.children import python_command
from engine.errors import AibenchError
from engine.text import clean

MAX_LINE = 2 * 1024 * 1024
START_LIMIT_S = 300.0
"""Looking for devices and for an interpreter with the framework is bounded by this."""


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


class StartedRun:
    """The owner's end: a run that was started and is now on its own."""

    def __init__(self, process: subprocess.Popen[bytes], end: socket.socket) -> None:
        self._process = process
        self._socket = end
        self._buffer = b""
        self.ended: Reply | None = None
        first = self._next(START_LIMIT_S)
        if first is None:
            raise AibenchError("the runner ended before it could start", self._last_words(), code=exits.INCOMPLETE)
        if first.kind == "error":
            raise AibenchError(clean(first.text), code=first.code)
        self.run, self.folder = first.run, Path(first.folder)

    def poll(self, wait_s: float) -> bool:
        """Wait up to `wait_s` seconds for the end of the run; True once the runner has ended (`ended` says how)."""
        reply = self._next(wait_s)
        if reply is not None and reply.kind in ("ended", "error"):
            self.ended = reply
        return self.ended is not None or self._process.poll() is not None

    def stop(self, why: str) -> None:
        """Ask the run to end, for the reason `why`; a runner that has ended already is no error."""
        with contextlib.suppress(OSError):
            self._socket.sendall(why.encode() + b"\n")

    def detach(self) -> None:
        """Let go; with on_owner_exit = "stop" the run ends."""
        self._socket.close()

    def _next(self, wait_s: float) -> Reply | None:
        deadline = time.monotonic() + wait_s
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left < 0 or not select.select([self._socket], [], [], left)[0]:
                return None
            data = self._socket.recv(65_536)
            if not data:
                self._process.wait()
                return None
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return msgspec.json.decode(line, type=Reply)

    def _last_words(self) -> str:
        code = self._process.poll()
        return "try again" if code is None else f"it ended with code {code}; try again"


def start_runner(request: Request) -> StartedRun:
    """Start a runner in a session of its own and wait until it runs.

    Raises AibenchError with the runner's own line and exit code where it cannot.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            python_command("engine.runner_main", str(theirs.fileno())),
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    try:
        ours.sendall(msgspec.json.encode(request) + b"\n")
        return StartedRun(process, ours)
    except BaseException:  # whoever gives up before the run is known to have started must not leave it behind
        process.terminate()
        raise
