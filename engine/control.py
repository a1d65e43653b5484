"""The control socket of a run: stop, skip, pause, resume, from a terminal of the same user or of root.

JSON lines over a Unix socket in the runtime folder; one reply a line. One connection at a time is the controller: the
first that claims it or gives a command, until it goes; to the others the run is read-only.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import stat
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine import exits
from engine.errors import AibenchError
from engine.locks import runtime_folder, user_name
from engine.text import clean, clean_tree

ORDERS = frozenset({"stop", "skip", "pause", "resume"})
COMMANDS = ORDERS | {"claim", "status"}

SOCKET_SUFFIX = ".sock"
MAX_LINE = 4096
MAX_PATH = 107
MAX_CLIENTS = 32
PAUSE_S = 0.02
"""The least time between two commands of a client: one that floods the socket must not take the runner's time."""

SLOW_S = 2.0
"""A client that does not take a reply within this is let go."""

CLIENT_LIMIT_S = 5.0

_CREDENTIALS = struct.Struct("3i")


def socket_path(run: str) -> Path:
    """Where a run's control socket is. Raises AibenchError (code 4) where the runtime folder cannot be used."""
    path = runtime_folder() / f"{run}{SOCKET_SUFFIX}"
    if len(os.fsencode(path)) > MAX_PATH:
        what = f"the control socket's path is longer than {MAX_PATH} bytes: {clean(str(path))}"
        raise AibenchError(what, "set AIBENCH_RUNTIME_DIR to a shorter folder", code=exits.NOT_READY)
    return path


class ControlServer:
    """The runner's end. `on_command(command, by)` carries an order out and returns "" or why it refuses."""

    def __init__(self, run: str, on_command: Callable[[str, str], str]) -> None:
        self._run = run
        self._on_command = on_command
        self._path: Path | None = None
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.Task[None], str] = {}
        self._controller: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. A socket that a dead run left is replaced; raises AibenchError (code 4) for anything else there."""
        path = socket_path(self._run)
        _make_room(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(path))
            os.chmod(path, 0o600)
            self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=MAX_LINE)
        except OSError as error:
            listener.close()
            what = f"the control socket {clean(str(path))} cannot be made: {error.strerror}"
            raise AibenchError(what, "check the folder", code=exits.NOT_READY) from error
        self._path = path

    async def stop(self) -> None:
        """Close every connection and remove the socket."""
        if self._server is None or self._path is None:
            return
        self._server.close()
        for client in list(self._clients):
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        self._path.unlink(missing_ok=True)
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, whatever comes over it; its end frees the run for another controller."""
        client = asyncio.current_task()
        who = _peer(writer.get_extra_info("socket"))
        if client is None or not who or len(self._clients) >= MAX_CLIENTS:
            writer.close()
            return
        self._clients[client] = who
        try:
            await self._converse(client, reader, writer)
        except (OSError, asyncio.TimeoutError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            del self._clients[client]
            if self._controller is client:
                self._controller = None
            writer.close()

    async def _converse(
        self, client: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while True:
            try:
                line = await reader.readline()
            except ValueError:  # a line above MAX_LINE: where the next one begins is not known
                await self._reply(writer, f"a command is at most {MAX_LINE} bytes")
                return
            if not line.endswith(b"\n"):
                return
            await self._reply(writer, self._obey(client, _command(line)))
            await asyncio.sleep(PAUSE_S)

    def _obey(self, client: asyncio.Task[None], command: str) -> str:
        """Carry a command out; "" or why not."""
        if command not in COMMANDS:
            return f"no such command; there are {', '.join(sorted(COMMANDS))}"
        if command == "status":
            return ""
        if self._controller not in (None, client):
            return f"{self._controller_name()} controls this run"
        self._controller = client
        return self._on_command(command, self._clients[client]) if command in ORDERS else ""

    def _controller_name(self) -> str:
        return "" if self._controller is None else self._clients[self._controller]

    async def _reply(self, writer: asyncio.StreamWriter, refusal: str) -> None:
        reply = {"ok": not refusal, "reason": refusal, "run": self._run, "controller": self._controller_name()}
        writer.write(json.dumps(reply).encode() + b"\n")
        await asyncio.wait_for(writer.drain(), SLOW_S)


def _make_room(path: Path) -> None:
    """Remove a socket that nobody listens to; refuse what is anything else."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise AibenchError(f"{clean(str(path))} is not a socket of ours", "remove it", code=exits.NOT_READY)
    if not is_dead_socket(path):
        raise AibenchError(
            f"{clean(str(path))} belongs to a run that is going on", "stop it first", code=exits.NOT_READY
        )
    path.unlink(missing_ok=True)


def is_dead_socket(path: Path) -> bool:
    """Whether a path is a socket that nobody listens to any more."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        return stat.S_ISSOCK(path.lstat().st_mode) and client.connect_ex(str(path)) == errno.ECONNREFUSED
    return False


def _peer(connection: Any) -> str:
    """Who is at the other end, by the kernel's word; "" for a user who has no say here."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(packed)
    if uid not in (0, os.geteuid()):
        return ""
    return f"{'root' if uid == 0 else clean(user_name(), 40)} (pid {pid})"


def _command(line: bytes) -> str:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    command = message.get("command") if isinstance(message, dict) else None
    return command if isinstance(command, str) else ""


class ControlClient:
    """The other end, for a terminal: blocking, each call under a time limit. Keep it open to stay the controller.

    Raises AibenchError (code 4) where the run does not answer.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._rest = b""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(CLIENT_LIMIT_S)
        try:
            self._socket.connect(str(socket_path(run)))
        except OSError as error:
            self._socket.close()
            raise self._unanswered(error.strerror or str(error)) from error

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Go, and free the run for another controller."""
        self._socket.close()

    def send(self, command: str) -> dict[str, Any]:
        """Give a command and return the reply: `ok`, `reason` (why it was refused), `run`, `controller`."""
        try:
            self._socket.sendall(json.dumps({"command": command}).encode() + b"\n")
            reply = json.loads(self._line(time.monotonic() + CLIENT_LIMIT_S))
        except (OSError, ValueError, RecursionError) as error:
            raise self._unanswered(str(error)) from error
        if not isinstance(reply, dict):
            raise self._unanswered("its reply cannot be read")
        cleaned: dict[str, Any] = clean_tree(reply)
        return cleaned

    def _line(self, end: float) -> bytes:
        while b"\n" not in self._rest:
            self._socket.settimeout(max(end - time.monotonic(), 0.001))
            data = self._socket.recv(MAX_LINE)
            if not data or len(self._rest) > 2 * MAX_LINE:
                raise ValueError("it has closed the connection")
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        return line

    def _unanswered(self, why: str) -> AibenchError:
        what = f"run {clean(self._run, 80)} does not answer: {clean(why, 200)}"
        return AibenchError(what, "`aibench-tui list` shows what is running", code=exits.NOT_READY)
