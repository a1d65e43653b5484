"""A trial's keeper, or the container client in front of it, as the runner holds it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable

from engine.children import pipe
from engine.kill import trial_marks
from engine.launch.base import Launch
from engine.worker.keeper import environment, living

LOOK_S = 1.0
GONE_S = 3.0
"""How long nothing of a container's trial may be seen before it counts as gone; a client ends within one second."""


class _Protocol(asyncio.subprocess.SubprocessStreamProtocol):
    """Tells when the process itself has ended; asyncio's own wait() lasts until its pipes are closed by all who have
    them, and what a killed keeper leaves behind has them."""

    def __init__(self) -> None:
        super().__init__(limit=65_536, loop=asyncio.get_running_loop())
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()


class KeeperProcess:
    """The process of a launch, its pipes, and when it ended."""

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: _Protocol) -> None:
        self._transport = transport
        self._stdin = pipe(protocol.stdin)
        self.pid = transport.get_pid()
        self.exited = protocol.exited
        self.stdout = pipe(protocol.stdout)
        self.stderr = pipe(protocol.stderr)

    @classmethod
    async def start(cls, launch: Launch, lock_fds: Iterable[int]) -> KeeperProcess:
        """Start it in a session of its own. Raises OSError."""
        transport, protocol = await asyncio.get_running_loop().subprocess_exec(
            _Protocol,
            *launch.argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=launch.env,
            cwd=launch.cwd,
            start_new_session=True,
            pass_fds=tuple(lock_fds),
        )
        return cls(transport, protocol)

    def say(self, line: bytes) -> None:
        """Write a line for the worker, unless it was told to end."""
        if not self._stdin.is_closing():
            self._stdin.write(line)

    def end(self) -> None:
        """End-of-file at once, before anything that a worker has not read yet: the keeper ends the trial."""
        if not self._stdin.is_closing():  # a second time would close a descriptor that is not there
            self._stdin.transport.abort()

    def kill(self) -> None:
        """SIGKILL, for one that does not end."""
        with contextlib.suppress(ProcessLookupError):
            self._transport.kill()

    def close(self) -> None:
        """Let go of its pipes, whoever else has them."""
        self._transport.close()


async def vanished(run: str, trial: str) -> None:
    """Return once a trial's processes could be seen and none has been there for GONE_S.

    Never returns where they cannot be seen, such as those of another user's daemon. Between looks at all of /proc only
    a process that was found before is looked at, so that a trial in a container is disturbed no more than a bare one.
    """
    marks = trial_marks(run, trial)
    known = await asyncio.to_thread(_bearers, marks)
    if not known:
        await asyncio.Event().wait()
    seen_s = time.monotonic()
    while time.monotonic() - seen_s < GONE_S:
        await asyncio.sleep(LOOK_S)
        if not any(marks <= environment(pid) for pid in known):
            known = await asyncio.to_thread(_bearers, marks)
        if known:
            seen_s = time.monotonic()


def _bearers(marks: set[bytes]) -> list[int]:
    return [pid for pid in living() if marks <= environment(pid)]
