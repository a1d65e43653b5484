"""One trial: a keeper is started, its lines become events, and it ends with one outcome and a reason, always."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterable

import msgspec

from engine import wire
from engine.events import Event, TrialEnd
from engine.heard import Heard, event_of
from engine.keeper_process import KeeperProcess, vanished
from engine.kill import kill_trial
from engine.launch.base import Launch
from engine.sensors import Sensors
from engine.strays import Strays
from engine.trial_log import FLOOD_BYTES, TrialLog

KEEPER_GRACE_S = 10.0
"""How long a keeper may take to end what it keeps, after its own deadline or once it is told to."""

PIPE_GRACE_S = 2.0
"""How long after the keeper's end its pipes may stay open (a container client passes on the last lines)."""

READ_BYTES = 65_536

_OUTCOME_OF_CAUSE: dict[str, tuple[TrialEnd, str]] = {
    "unsupported": ("unsupported", ""),
    "incorrect": ("failed", "incorrect result: "),
    "out_of_memory": ("failed", "out of memory: "),
    "protocol": ("failed", "protocol: "),
    "error": ("failed", ""),
}


class Ended(msgspec.Struct, frozen=True):
    """How a trial ended, and the iteration counts it fixed for its successors (empty where it did not complete).

    `stuck` are process ids that could not be ended.
    """

    outcome: TrialEnd
    reason: str
    seconds: float
    counts: dict[str, int]
    log_bytes: int
    log_dropped_bytes: int
    stuck: tuple[int, ...] = ()


class TrialRun:
    """Runs one trial. `stop(outcome, reason)` ends it early; nothing that it started is left when `run` returns."""

    def __init__(
        self,
        run: str,
        trial: str,
        token: str,
        deadline_s: float,
        log: TrialLog,
        sensors: Sensors,
        strays: Strays,
        record: Callable[[Event], None],
    ) -> None:
        self._run = run
        self._trial = trial
        self._token = token
        self._deadline_s = deadline_s
        self._log = log
        self._sensors = sensors
        self._strays = strays
        self._record = record
        self._heard = Heard(time.monotonic())
        self._stopped: tuple[TrialEnd, str] | None = None
        self._told = asyncio.Event()
        self._greeted = asyncio.Event()
        self._keeper: KeeperProcess | None = None
        self._stuck: list[int] = []

    def stop(self, outcome: TrialEnd, reason: str) -> None:
        """End the trial at once: its keeper sees end-of-file and ends everything."""
        if self._stopped is None:
            self._stopped = (outcome, reason)
        self._told.set()
        if self._keeper is not None:
            self._keeper.end()

    async def run(self, launch: Launch, lock_fds: Iterable[int]) -> Ended:
        """Start the keeper and stay until all of the trial is gone."""
        begin = time.monotonic()
        self._heard.begin_s = begin
        self._strays.trial_begins()
        self._sensors.trial_begins()
        try:
            self._keeper = await KeeperProcess.start(launch, lock_fds)
        except OSError as error:
            self.stop("failed", f"{launch.argv[0]} could not be started: {error.strerror}")
        else:
            await self._follow(self._keeper, launch)
        await asyncio.to_thread(self._log.close)
        outcome, reason = await asyncio.to_thread(self._verdict)
        metrics = self._heard.result.metrics if self._heard.result else ()
        counts = {metric.metric: metric.count for metric in metrics} if outcome == "completed" else {}
        seconds = time.monotonic() - begin
        return Ended(outcome, reason, seconds, counts, self._log.written, self._log.dropped, tuple(self._stuck))

    async def _follow(self, keeper: KeeperProcess, launch: Launch) -> None:
        if self._stopped is not None:  # while it was being started
            keeper.end()
        readers = [
            asyncio.create_task(self._read(keeper.stdout, self._line_taker())),
            asyncio.create_task(self._read(keeper.stderr, self._keep)),
        ]
        try:
            await self._await_end(keeper, launch)
            await self._end_all(keeper, launch)
            await asyncio.wait(readers, timeout=PIPE_GRACE_S)
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
            keeper.close()

    async def _await_end(self, keeper: KeeperProcess, launch: Launch) -> None:
        """Wait for the keeper, or end it where it does not end as it should."""
        exited = asyncio.create_task(keeper.exited.wait())
        waits = [exited, asyncio.create_task(self._overdue()), asyncio.create_task(self._deaf())]
        if launch.handle:
            waits.append(asyncio.create_task(self._gone()))
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not exited.done():
            keeper.kill()
            await asyncio.wait([exited], timeout=KEEPER_GRACE_S)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    async def _overdue(self) -> None:
        await asyncio.sleep(self._deadline_s + KEEPER_GRACE_S)
        self.stop("failed", f"its keeper was still there {KEEPER_GRACE_S:.0f} s after the deadline")

    async def _deaf(self) -> None:
        await self._told.wait()
        await asyncio.sleep(KEEPER_GRACE_S)

    async def _gone(self) -> None:
        """A container whose monitor is killed ends without a word to its client, which then waits for ever."""
        await self._greeted.wait()
        await vanished(self._run, self._trial)
        if self._heard.report is None:
            self.stop("failed", "its container is gone and its client hangs")
        else:
            await asyncio.sleep(KEEPER_GRACE_S)  # all is said: it removes the container, which takes its time

    async def _end_all(self, keeper: KeeperProcess, launch: Launch) -> None:
        """End what the keeper should have ended. A container has a process namespace, which nothing gets out of."""
        stuck = await asyncio.to_thread(kill_trial, self._run, self._trial)
        if launch.handle:
            await self._strays.await_runtime(keeper.pid)
        else:
            stuck += await self._strays.end(keeper.pid)
        self._stuck = sorted(set(stuck))

    async def _read(self, stream: asyncio.StreamReader, take: Callable[[bytes], None]) -> None:
        """Hand on what comes; a pipe that nobody reads would hold up the trial, so what cannot be handed on ends it."""
        try:
            while data := await stream.read(READ_BYTES):
                take(data)
            take(b"")
        except Exception as error:
            self.stop("failed", f"its output could not be followed: {type(error).__name__}: {error}")

    def _line_taker(self) -> Callable[[bytes], None]:
        splitter = wire.LineSplitter()

        def take(data: bytes) -> None:
            for line, whole in splitter.feed(data) if data else splitter.end():
                self._take(line, whole)

        return take

    def _take(self, line: bytes, whole: bool) -> None:
        message = wire.decode(line, self._token) if whole else None
        if message is None:
            if line:
                self._keep(line + b"\n" if whole else line)
        elif self._stopped is None or isinstance(message, wire.KeeperReport):  # else nobody asks any more
            self._believe(message, len(line))

    def _believe(self, message: wire.Line, size: int) -> None:
        now = time.monotonic()
        problem = self._heard.take(message, size, now)
        if problem:
            self.stop("failed", f"protocol: {problem}")
            return
        event = event_of(message, self._trial, now)
        if event is not None:
            self._record(event)
        if isinstance(message, wire.Ping) and self._keeper is not None:
            self._keeper.say(json.dumps({"pong": message.n, "t": now}).encode() + b"\n")
        elif isinstance(message, wire.Hello):
            self._greeted.set()
        elif isinstance(message, wire.Phase):
            self._tell_sensors(message)

    def _tell_sensors(self, message: wire.Phase) -> None:
        at = self._heard.our_time(message.t)
        if message.name == "measure":
            self._sensors.window_begins(at)
        else:
            self._sensors.window_ends(at)

    def _keep(self, data: bytes) -> None:
        self._log.write(data)
        if self._log.flooded:
            limit = FLOOD_BYTES // 1024**2
            self.stop("failed", f"it flooded its log: more than {limit} MiB, which disturbs what is measured")

    def _verdict(self) -> tuple[TrialEnd, str]:
        """The one outcome, from the strongest evidence down."""
        heard = self._heard
        if self._stopped is not None:
            return self._stopped
        if self._stuck:
            pids = ", ".join(map(str, self._stuck))
            return "failed", f"its processes {pids} cannot be ended (a hung driver?) and may still load the device"
        if heard.failure is not None:
            outcome, prefix = _OUTCOME_OF_CAUSE[heard.failure.cause]
            return outcome, prefix + heard.failure.reason
        if heard.report is None:
            return "failed", f"its keeper was killed in phase {heard.phase}" + self._words()
        if not (heard.bye and heard.result and heard.report.exit_code == 0):
            return "failed", _how_it_ended(heard.report, heard.phase, self._deadline_s) + self._words()
        if heard.lost:
            return "failed", f"{heard.lost} protocol lines were torn or lost"
        problem = heard.no_figures()
        return ("failed", problem) if problem else ("completed", "")

    def _words(self) -> str:
        words = wire.last_words(self._log.recent())
        return f"; its last words: {words}" if words else ""


def _how_it_ended(report: wire.KeeperReport, phase: str, deadline_s: float) -> str:
    if report.oom_kills:
        return f"out of memory: the kernel ended it in phase {phase}"
    if report.cause == "deadline":
        return f"no end within {deadline_s:g} s (repetition.trial_timeout_s), stuck in phase {phase}"
    if report.cause == "eof":
        return f"its keeper was told to stop in phase {phase}"
    if report.signal is not None:
        return f"killed by {_signal_name(report.signal)} in phase {phase}"
    return f"ended with exit code {report.exit_code} in phase {phase} without a result"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
