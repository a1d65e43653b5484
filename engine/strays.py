"""What a trial's dead keeper left to the runner: children that the kernel handed over, whatever their environment.

A keeper ends all that descends from it. If it is killed itself, its worker's processes become children of the runner,
which is their subreaper (prctl 36), so that even one that emptied its environment is known by its descent.
"""

from __future__ import annotations

import asyncio
import os
import time

from engine.kill import is_helper, send_kill
from engine.worker.keeper import UNKILLABLE_S, Relative, descends, environment, living, relatives

PAUSE_S = 0.02

RUNTIME_S = 5.0
"""How long a container's runtime may take to end by itself once its container is gone."""


class Strays:
    """The runner's own children tell who is a stray: use it in the event loop's thread alone.

    asyncio starts processes in that thread, so a look never sees one between its fork and its program, when it has no
    id of the run in its environment yet.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._not_of_trial: set[int] = set()

    def trial_begins(self) -> None:
        """What descends from us now is not of the trial that begins, such as the daemons of a container's runtime."""
        own, parents = os.getpid(), living()
        self._not_of_trial = {pid for pid in parents if descends(pid, own, parents)}

    async def end(self, keeper: int) -> list[int]:
        """SIGKILL and reap the trial's strays until there are none; returns those that the kernel does not let go."""
        reaper, killed = _Reaper(keeper), set[int]()
        last_new = time.monotonic()
        while True:
            family = relatives()
            victims = self._strays(family)
            if not reaper.reap(family) and not victims:
                return []
            now = time.monotonic()
            last_new = last_new if victims <= killed else now
            if now - last_new > UNKILLABLE_S:
                return sorted(victims)
            killed |= victims
            for pid in victims:
                send_kill(pid)
            await asyncio.sleep(PAUSE_S)

    async def await_runtime(self, client: int) -> None:
        """Let what a container's client left end by itself: others may use it, so it is never killed.

        A container whose monitor was killed is ours to reap: until then its runtime takes it for alive.
        """
        reaper, end = _Reaper(client), time.monotonic() + RUNTIME_S
        while time.monotonic() < end:
            family = relatives()
            if not reaper.reap(family) and not self._strays(family):
                return
            await asyncio.sleep(PAUSE_S)

    def _strays(self, family: dict[int, Relative]) -> set[int]:
        """Children that are neither older than the trial nor helpers that the runner started meanwhile, and theirs."""
        own, parents = os.getpid(), _parents(family)
        roots = {
            pid
            for pid, parent in parents.items()
            if parent == own and pid not in self._not_of_trial and not is_helper(self._run, environment(pid))
        }
        return {pid for pid in parents if pid in roots or any(descends(pid, root, parents) for root in roots)}


class _Reaper:
    """Reaps zombies that nobody else waits for.

    Whoever waits for a child of his own takes its status at once, so what is seen twice is waited for by nobody.
    """

    def __init__(self, keeper: int) -> None:
        self._keeper = keeper
        self._seen: set[int] = set()

    def reap(self, family: dict[int, Relative]) -> bool:
        """Reap those seen before; True if there are zombies that may have to be reaped at the next look."""
        own = os.getpid()
        zombies = {pid for pid, each in family.items() if each.parent == own and not each.alive} - {self._keeper}
        for pid in zombies & self._seen:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # somebody did wait for it
                continue
        self._seen = zombies
        return bool(zombies)


def _parents(family: dict[int, Relative]) -> dict[int, int]:
    return {pid: each.parent for pid, each in family.items() if each.alive}
