"""The guard: a process that outlives a killed runner just long enough to end what the runner left.

`python -m engine.guard RUN_FOLDER RUN_ID`, with a pipe from the runner as stdin. The line "done" ends it; end-of-file
without it means that the runner died. Then every process that carries the run's id and a trial's is killed, whether
its keeper is dead, stopped or at work, and every container is removed that the journal shows opened and not closed.
It sleeps in a read until then. What it cannot see: a runner that is merely stopped (SIGSTOP) is not dead, so its
trial goes on until its keeper's deadline; and a process that emptied its environment, of a keeper that is killed
together with the runner.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from engine import exits, runfolder
from engine.children import pipe, python_command
from engine.errors import AibenchError
from engine.events import HandleClosed, HandleOpened
from engine.journal import JournalReader
from engine.kill import kill_trials
from engine.launch import oci
from engine.locks import is_running

READY = b"ready\n"
DONE = b"done\n"

KEEPER_GRACE_S = 0.3
"""Keepers see the same end-of-file and end their trials with a report; what is left after this is killed."""

STRAGGLERS_S = 1.0
"""How long new processes are looked for: a keeper that was being started when its runner died."""

WATCH_S = 5.0
"""How long with containers: a client that was starting one when its runner died may finish doing so."""

PAUSE_S = 0.25
START_S = 10.0
END_S = 10.0
RESTARTS = 5
RESTART_PAUSE_S = 1.0


class Guard:
    """The runner's side: `async with Guard(...)` keeps a guard process during the block, also if it is killed.

    `warn` gets a line for the operator where that does not succeed.
    """

    def __init__(self, folder: Path, run: str, warn: Callable[[str], None]) -> None:
        self._command = python_command("engine.guard", str(folder), run)
        self._warn = warn
        self._process: asyncio.subprocess.Process | None = None
        self._settled = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The guard's process, None while there is none."""
        return None if self._process is None else self._process.pid

    async def __aenter__(self) -> Guard:
        """Start it, and wait until it sleeps: its start must not disturb a trial."""
        self._task = asyncio.create_task(self._keep())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._settled.wait(), START_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Tell it that nothing is left to guard."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError, asyncio.TimeoutError):
            await asyncio.wait_for(process.communicate(DONE), END_S)
        if process.returncode is None:
            process.kill()
            await process.wait()

    async def _keep(self) -> None:
        for left in range(RESTARTS, -1, -1):
            try:
                why = await self._one_process()
            except OSError as error:
                why = f"could not be started: {error.strerror}"
                self._settled.set()
            then = "restarted" if left else "given up: if the runner is killed, use `aibench-tui clean`"
            self._warn(f"the guard process {why}; {then}")
            await asyncio.sleep(RESTART_PAUSE_S)

    async def _one_process(self) -> str:
        """Start it and wait for an end that nobody asked for; says how it ended."""
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        await pipe(process.stdout).readline()
        self._settled.set()
        code = await process.wait()
        self._process = None
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def open_handles(journal: Path) -> list[HandleOpened]:
    """The handles that a journal shows opened and not closed."""
    reader = JournalReader(journal)
    handles: dict[str, HandleOpened] = {}
    while events := reader.poll():
        for event in events:
            if isinstance(event, HandleOpened):
                handles[event.name] = event
            elif isinstance(event, HandleClosed):
                handles.pop(event.name, None)
    return list(handles.values())


def end_run(folder: Path, run: str) -> bool:
    """End what a dead runner left, again and again for a while; True if all of it was gone at the last look.

    A run that was resumed meanwhile is left to its new runner.
    """
    gone = _end_processes(folder, run)
    handles = open_handles(folder / runfolder.JOURNAL)
    end = time.monotonic() + (WATCH_S if handles else STRAGGLERS_S)
    while time.monotonic() < end and not is_running(folder):
        removed = [oci.remove(handle.runtime, handle.name, run) for handle in handles]
        time.sleep(PAUSE_S)
        gone = _end_processes(folder, run) and all(removed)
    return gone


def _end_processes(folder: Path, run: str) -> bool:
    return is_running(folder) or not kill_trials(run)


def main() -> int:
    """The guard's process; 3 where something could not be ended."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # whatever ends the runner must not end its guard
    folder, run = Path(sys.argv[1]), sys.argv[2]
    with contextlib.suppress(BrokenPipeError):  # the runner is dead already
        os.write(1, READY)
    if sys.stdin.buffer.readline() == DONE:
        return exits.DONE
    time.sleep(KEEPER_GRACE_S)
    try:
        return exits.DONE if end_run(folder, run) else exits.INCOMPLETE
    except AibenchError:
        return exits.INCOMPLETE


if __name__ == "__main__":
    sys.exit(main())
