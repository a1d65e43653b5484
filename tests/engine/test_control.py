"""The control socket with real sockets: honest clients, hostile ones, and planted files."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import control, exits
from engine.control import ControlClient, ControlServer, socket_path
from engine.errors import AibenchError

RUN = "20261201-120000-abc123"


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short one: pytest's own folders are too long for sockets."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "r"
        monkeypatch.setenv("AIBENCH_RUNTIME_DIR", str(folder))
        yield folder


class Orders:
    """What a runner would be told."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.by = ""

    def __call__(self, command: str, by: str) -> str:
        self.seen.append(command)
        self.by = by
        return "no trial is running" if command == "skip" else ""


def served(scene: Callable[[Orders], Any]) -> Orders:
    """Run a blocking scene in a thread beside a server."""

    async def main() -> Orders:
        orders = Orders()
        server = ControlServer(RUN, orders)
        await server.start()
        try:
            await asyncio.wait_for(asyncio.to_thread(scene, orders), 30)
        finally:
            await server.stop()
        return orders

    return asyncio.run(main())


def connected() -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(20)
    client.connect(str(socket_path(RUN)))
    return client


def test_orders_reach_the_runner_with_who_gave_them() -> None:
    def scene(orders: Orders) -> None:
        with ControlClient(RUN) as client:
            for command in ("pause", "resume", "stop"):
                reply = client.send(command)
                assert (reply["ok"], reply["reason"], reply["run"]) == (True, "", RUN)

    orders = served(scene)
    assert orders.seen == ["pause", "resume", "stop"]
    assert orders.by.endswith(f"(pid {os.getpid()})")


def test_a_refusal_of_the_runner_comes_back_with_its_reason() -> None:
    def scene(orders: Orders) -> None:
        with ControlClient(RUN) as client:
            assert client.send("skip") | {"controller": ""} == {
                "ok": False,
                "reason": "no trial is running",
                "run": RUN,
                "controller": "",
            }

    assert served(scene).seen == ["skip"]


def test_one_controls_and_the_others_look_on_until_it_goes() -> None:
    def scene(orders: Orders) -> None:
        second = ControlClient(RUN)
        with ControlClient(RUN) as first:
            assert second.send("status")["controller"] == ""
            assert first.send("claim")["ok"]
            refused = second.send("stop")
            assert not refused["ok"]
            assert refused["reason"] == f"{refused['controller']} controls this run"
            assert second.send("status")["ok"]
            assert first.send("pause")["ok"]
        while second.send("status")["controller"]:
            pass
        assert second.send("stop")["ok"]
        second.close()

    assert served(scene).seen == ["pause", "stop"]


GARBAGE = [b"\n", b"stop\n", b"[]\n", b'{"command": 1}\n', b'{"command": "rm"}\n', b"\xff\xfe\n", b"[" * 4000 + b"\n"]


@pytest.mark.parametrize("line", GARBAGE)
def test_garbage_is_refused_and_does_no_harm(line: bytes) -> None:
    def scene(orders: Orders) -> None:
        with connected() as client:
            client.sendall(line)
            reply = json.loads(client.recv(4096))
            assert not reply["ok"]
            assert reply["reason"].startswith("no such command; there are claim, pause")
        with ControlClient(RUN) as client:
            assert client.send("pause")["ok"]

    assert served(scene).seen == ["pause"]


def test_a_line_above_the_limit_ends_its_connection_and_no_other() -> None:
    def scene(orders: Orders) -> None:
        with connected() as client:
            client.sendall(b"x" * 3 * control.MAX_LINE)
            assert b"a command is at most 4096 bytes" in client.makefile("rb").readline()
        with ControlClient(RUN) as client:
            assert client.send("pause")["ok"]

    assert served(scene).seen == ["pause"]


def test_clients_that_say_nothing_half_a_line_or_vanish() -> None:
    def scene(orders: Orders) -> None:
        idle = [connected() for _ in range(10)]
        idle[0].sendall(b'{"command": "st')
        idle[1].sendall(b'{"command": "stop"')
        idle[1].close()
        with ControlClient(RUN) as client:
            assert client.send("pause")["ok"]
        for client_socket in idle:
            client_socket.close()

    assert served(scene).seen == ["pause"]


def flood(client: socket.socket) -> None:
    while True:
        client.sendall(b'{"command": "status"}\n' * 1000)


def test_a_client_that_floods_and_never_reads_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "PAUSE_S", 0.0)
    monkeypatch.setattr(control, "SLOW_S", 0.1)

    def scene(orders: Orders) -> None:
        with connected() as client, pytest.raises(OSError, match=r"Broken pipe|reset"):
            flood(client)
        with ControlClient(RUN) as client:
            assert client.send("pause")["ok"]

    assert served(scene).seen == ["pause"]


def test_more_clients_than_there_is_room_for() -> None:
    def scene(orders: Orders) -> None:
        clients = [ControlClient(RUN) for _ in range(control.MAX_CLIENTS)]
        assert all(client.send("status")["ok"] for client in clients)
        with pytest.raises(AibenchError), ControlClient(RUN) as extra:
            extra.send("status")
        clients[0].send("pause")
        for client in clients:
            client.close()

    assert served(scene).seen == ["pause"]


def test_the_socket_is_for_its_owner_alone_and_gone_after_the_run(runtime: Path) -> None:
    def scene(orders: Orders) -> None:
        assert stat.S_IMODE(socket_path(RUN).stat().st_mode) == 0o600

    served(scene)
    assert list(runtime.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as another user needs root")
def test_another_user_is_turned_away(runtime: Path) -> None:
    """Even one who can reach the socket, by opened permissions."""

    def scene(orders: Orders) -> None:
        runtime.chmod(0o755)
        path = runtime / f"{RUN}.sock"
        path.chmod(0o666)
        code = (
            "import os, socket, sys\n"
            "client = socket.socket(socket.AF_UNIX)\n"
            "client.settimeout(20)\n"
            f"os.chdir({str(runtime)!r})\n"
            "os.setgid(65534); os.setuid(65534)\n"
            f"client.connect({path.name!r})\n"
            "sys.exit(client.recv(100) != b'')\n"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
        runtime.chmod(0o700)

    assert served(scene).seen == []


def test_the_socket_of_a_killed_run_is_replaced(runtime: Path) -> None:
    path = socket_path(RUN)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()

    def scene(orders: Orders) -> None:
        with ControlClient(RUN) as client:
            assert client.send("pause")["ok"]

    assert served(scene).seen == ["pause"]


def started(run: str) -> Coroutine[Any, Any, None]:
    return ControlServer(run, lambda command, by: "").start()


def test_the_socket_of_a_living_run_is_not_taken() -> None:
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(socket_path(RUN)))
        living.listen()
        with pytest.raises(AibenchError, match="belongs to a run that is going on") as error:
            asyncio.run(started(RUN))
    assert error.value.code == exits.NOT_READY


@pytest.mark.parametrize("kind", ["file", "link"])
def test_something_planted_in_the_place_of_the_socket_is_refused(tmp_path: Path, kind: str) -> None:
    path, precious = socket_path(RUN), tmp_path / "precious"
    precious.write_text("keep")
    if kind == "file":
        path.write_text("keep")
    else:
        path.symlink_to(precious)
    with pytest.raises(AibenchError, match="is not a socket of ours"):
        asyncio.run(started(RUN))
    assert path.read_text() == precious.read_text() == "keep"


def test_a_runtime_folder_that_others_can_enter(runtime: Path) -> None:
    runtime.mkdir(mode=0o777)
    runtime.chmod(0o777)
    with pytest.raises(AibenchError, match="others can enter it"):
        asyncio.run(started(RUN))


def test_a_path_that_is_too_long_for_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIBENCH_RUNTIME_DIR", str(tmp_path / ("long" * 30)))
    with pytest.raises(AibenchError, match="longer than 107 bytes"):
        asyncio.run(started(RUN))


def test_a_run_that_is_not_there() -> None:
    with pytest.raises(AibenchError, match="does not answer") as error:
        ControlClient("no-such-run")
    assert error.value.code == exits.NOT_READY


def test_a_run_that_does_not_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "CLIENT_LIMIT_S", 0.1)
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(socket_path(RUN)))
        hung.listen()
        with ControlClient(RUN) as client, pytest.raises(AibenchError, match="does not answer"):
            client.send("status")
