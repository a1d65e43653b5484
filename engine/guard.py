"""The guard: a process that outlives a killed runner just long enough to end the containers that it left.

`python -m engine.guard RUN_FOLDER RUN_ID`, with a pipe from the runner as stdin. The line "done" ends it; end-of-file
without it means that the runner died, and every handle that the journal shows opened and not closed is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

from engine import exits, runfolder
from engine.children import python_command
from engine.errors import AibenchError
from engine.events import HandleClosed, HandleOpened
from engine.journal import JournalReader
from engine.launch import oci

DONE = b"done\n"

WATCH_S = 5.0
"""How long removal is repeated: a client that was starting a container when its runner died may finish doing so."""

PAUSE_S = 0.25
END_S = 10.0


class Guard:
    """The runner's side: `async with Guard(...)` keeps a guard process during the block, if one is needed."""

    def __init__(self, folder: Path, run: str, *, needed: bool) -> None:
        self._command = python_command("engine.guard", str(folder), run) if needed else []
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The guard's process, None where none is needed."""
        return None if self._process is None else self._process.pid

    async def __aenter__(self) -> Guard:
        if self._command:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Tell it that nothing is left to guard."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError, asyncio.TimeoutError):
            await asyncio.wait_for(self._process.communicate(DONE), END_S)
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


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


def stop_open_handles(folder: Path, run: str) -> bool:
    """End what a dead runner left, again and again for WATCH_S; True if all of it was gone at the last look."""
    handles = open_handles(folder / runfolder.JOURNAL)
    end = time.monotonic() + WATCH_S
    while True:
        gone = [oci.remove(handle.runtime, handle.name, run) for handle in handles]
        if not handles or time.monotonic() > end:
            return all(gone)
        time.sleep(PAUSE_S)


def main() -> int:
    """The guard's process; 3 where something could not be ended."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # whatever ends the runner must not end its guard
    folder, run = Path(sys.argv[1]), sys.argv[2]
    if sys.stdin.buffer.readline() == DONE:
        return exits.DONE
    try:
        return exits.DONE if stop_open_handles(folder, run) else exits.INCOMPLETE
    except AibenchError:
        return exits.INCOMPLETE


if __name__ == "__main__":
    sys.exit(main())
