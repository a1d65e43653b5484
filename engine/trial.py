"""One trial: a keeper is started, its lines become events, and it ends with one outcome and a reason, always."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from engine import wire
from engine.children import pipe
from engine.events import Event, Iterations, MetricResult, TrialEnd, WorkerHello, WorkerPhase, WorkerResult
from engine.launch.base import Launch
from engine.sensors import Sensors
from engine.sweep import kill_trial
from engine.trial_log import FLOOD_BYTES, TrialLog

KEEPER_GRACE_S = 10.0
"""How long after its own deadline a keeper may still be there before it is ended from outside."""

PIPE_GRACE_S = 2.0
"""How long after the keeper's end its pipes may stay open (a container client passes on the last lines)."""

READ_BYTES = 65_536

MAX_LINES = 50_000
"""More protocol lines than this from one process are no measurement; 100 000 durations take about 300."""

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


@dataclass
class _Heard:
    """What the trial's processes have said so far."""

    phase: str = "start"
    offset_s: float = 0.0
    metrics: tuple[MetricResult, ...] = ()
    failure: wire.Failure | None = None
    bye: bool = False
    report: wire.KeeperReport | None = None
    lines: int = 0
    seen: dict[int, int] = field(default_factory=dict)
    lost: int = 0
    unreadable: str = ""
    stuck: list[int] = field(default_factory=list)


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
        record: Callable[[Event], None],
    ) -> None:
        self._run = run
        self._trial = trial
        self._token = token
        self._deadline_s = deadline_s
        self._log = log
        self._sensors = sensors
        self._record = record
        self._heard = _Heard()
        self._stopped: tuple[TrialEnd, str] | None = None
        self._process: asyncio.subprocess.Process | None = None

    def stop(self, outcome: TrialEnd, reason: str) -> None:
        """End the trial at once: its keeper sees end-of-file and ends everything."""
        if self._stopped is None:
            self._stopped = (outcome, reason)
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def run(self, launch: Launch, lock_fds: Iterable[int]) -> Ended:
        """Start the keeper and stay until all of the trial is gone."""
        begin = time.monotonic()
        self._sensors.trial_begins()
        try:
            await self._start(launch, lock_fds)
            await self._follow()
        except OSError as error:
            self.stop("failed", f"{launch.argv[0]} could not be started: {error.strerror}")
        finally:
            self._heard.stuck = await asyncio.to_thread(kill_trial, self._run, self._trial)
        await asyncio.to_thread(self._log.close)
        outcome, reason = self._verdict()
        counts = {metric.metric: metric.count for metric in self._heard.metrics} if outcome == "completed" else {}
        stuck = tuple(self._heard.stuck)
        return Ended(outcome, reason, time.monotonic() - begin, counts, self._log.written, self._log.dropped, stuck)

    async def _start(self, launch: Launch, lock_fds: Iterable[int]) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *launch.argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=launch.env,
            cwd=launch.cwd,
            start_new_session=True,
            pass_fds=tuple(lock_fds),
        )
        if self._stopped is not None:
            self.stop(*self._stopped)

    async def _follow(self) -> None:
        process = pipe(self._process)
        readers = [
            asyncio.create_task(self._read_lines(pipe(process.stdout))),
            asyncio.create_task(self._read_log(pipe(process.stderr))),
        ]
        try:
            await self._wait(process)
            await asyncio.wait(readers, timeout=PIPE_GRACE_S)
        finally:
            for reader in readers:
                reader.cancel()
            for problem in await asyncio.gather(*readers, return_exceptions=True):
                if isinstance(problem, Exception):
                    self._heard.unreadable = f"its output could not be followed: {type(problem).__name__}: {problem}"

    async def _wait(self, process: asyncio.subprocess.Process) -> None:
        """Wait for the keeper, or end it and its trial where it outlives its deadline or dies without its work."""
        try:
            await asyncio.wait_for(process.wait(), self._deadline_s + KEEPER_GRACE_S)
        except asyncio.TimeoutError:
            self.stop("failed", f"its keeper was still there {KEEPER_GRACE_S:.0f} s after the deadline")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), KEEPER_GRACE_S)
        await asyncio.to_thread(kill_trial, self._run, self._trial)

    async def _read_lines(self, stream: asyncio.StreamReader) -> None:
        splitter = wire.LineSplitter()
        while data := await stream.read(READ_BYTES):
            for line, whole in splitter.feed(data):
                self._take(line, whole)
        for line, whole in splitter.end():
            self._take(line, whole)

    async def _read_log(self, stream: asyncio.StreamReader) -> None:
        while data := await stream.read(READ_BYTES):
            self._keep(data)

    def _take(self, line: bytes, whole: bool) -> None:
        message = wire.decode(line, self._token) if whole else None
        if message is None:
            if line:
                self._keep(line + b"\n" if whole else line)
            return
        if not isinstance(message, wire.KeeperReport):
            self._count(message)
        self._hear(message)

    def _keep(self, data: bytes) -> None:
        self._log.write(data)
        if self._log.flooded:
            limit = FLOOD_BYTES // 1024**2
            self.stop("failed", f"it flooded its log: more than {limit} MiB, which disturbs what is measured")

    def _count(self, message: wire.WireLine) -> None:
        """Lines are numbered per rank; a gap means that one was torn, a number seen before that one is not genuine."""
        heard = self._heard
        heard.lines += 1
        if heard.lines > MAX_LINES:
            self.stop("failed", f"it sent more than {MAX_LINES} protocol lines")
        heard.lost += abs(message.seq - heard.seen.get(message.rank, -1) - 1)
        heard.seen[message.rank] = message.seq

    def _hear(self, message: wire.Line) -> None:
        heard, now = self._heard, time.monotonic()
        if isinstance(message, wire.Ping):
            self._answer(message.n)
        elif isinstance(message, wire.Hello):
            heard.offset_s = message.clock_offset_s
            self._record(_hello_event(now, self._trial, message))
        elif isinstance(message, wire.Phase):
            self._enter(message, now)
        elif isinstance(message, wire.Durations):
            self._record(_iterations_event(now, self._trial, message))
        elif isinstance(message, wire.Result):
            heard.metrics = message.metrics
            self._record(
                WorkerResult(t=now, trial=self._trial, rank=message.rank, metrics=message.metrics, facts=message.facts)
            )
        elif isinstance(message, wire.Failure):
            heard.failure = heard.failure or message
        elif isinstance(message, wire.Bye):
            heard.bye = True
        else:
            heard.report = message

    def _answer(self, n: int) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(json.dumps({"pong": n, "t": time.monotonic()}).encode() + b"\n")

    def _enter(self, message: wire.Phase, now: float) -> None:
        at = message.t + self._heard.offset_s
        if message.name == "measure":
            self._sensors.window_begins(at)
        elif self._heard.phase == "measure":
            self._sensors.window_ends(at)
        self._heard.phase = message.name
        self._record(WorkerPhase(t=now, trial=self._trial, rank=message.rank, name=message.name))

    def _verdict(self) -> tuple[TrialEnd, str]:
        """The one outcome, from the strongest evidence down."""
        heard = self._heard
        if self._stopped is not None:
            return self._stopped
        if heard.stuck:
            pids = ", ".join(map(str, heard.stuck))
            return "failed", f"its processes {pids} cannot be ended (a hung driver?) and may still load the device"
        if heard.unreadable:
            return "failed", heard.unreadable
        if heard.failure is not None:
            outcome, prefix = _OUTCOME_OF_CAUSE[heard.failure.cause]
            return outcome, prefix + heard.failure.reason
        if heard.report is None:
            return "failed", f"its keeper was killed in phase {heard.phase}" + self._words()
        if heard.bye and heard.metrics and heard.report.exit_code == 0:
            return (
                ("completed", "") if heard.lost == 0 else ("failed", f"{heard.lost} protocol lines were torn or lost")
            )
        return "failed", _how_it_ended(heard.report, heard.phase, self._deadline_s) + self._words()

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


def _hello_event(now: float, trial: str, message: wire.Hello) -> WorkerHello:
    return WorkerHello(
        t=now,
        trial=trial,
        rank=message.rank,
        pid=message.pid,
        python=message.python,
        clock_offset_s=message.clock_offset_s,
        clock_uncertainty_s=message.clock_uncertainty_s,
    )


def _iterations_event(now: float, trial: str, message: wire.Durations) -> Iterations:
    return Iterations(
        t=now,
        trial=trial,
        rank=message.rank,
        metric=message.metric,
        group=message.group,
        durations_s=message.durations_s,
    )
