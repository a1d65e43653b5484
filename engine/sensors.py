"""The runner's side of the telemetry process: started, read, restarted when it dies, never waited for."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from engine.children import pipe, python_command
from engine.events import Event, Notice, TelemetrySources, TrialTelemetry
from engine.series import SeriesWriter
from engine.telemetry.samples import HOST, Line, Sample, Sources, Stalled
from engine.text import clean_tree
from engine.window import Window

HZ = 10
RESTARTS = 5
HEALTHY_S = 60.0
"""A process that lived this long does not count among the RESTARTS in a row after which telemetry is given up."""

RESTART_PAUSE_S = 1.0
STOP_S = 1.0

_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class Sensors:
    """Telemetry of a run. `record` puts an event into the journal; sensors that fail cost their readings alone."""

    def __init__(self, devices: tuple[str, ...], series: SeriesWriter, record: Callable[[Event], None]) -> None:
        self._devices = devices
        self._series = series
        self._record = record
        self._sources: dict[tuple[str, str], Sources] = {}
        self._window: Window | None = None
        self._in_trial = False
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read, in the background."""
        self._task = asyncio.create_task(self._keep_reading())

    async def stop(self) -> None:
        """End the process: by end-of-file, then by force. One that hangs in a driver is left to the kernel."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._end_process()
        self._series.close()

    def trial_begins(self) -> None:
        """From now on every sample is kept."""
        self._in_trial, self._window = True, None

    def window_begins(self, t: float) -> None:
        """The trial's measured window starts at our monotonic second `t`."""
        self._window = Window(begin_s=t)

    def window_ends(self, t: float) -> None:
        """The measured window is over; later samples do not count."""
        if self._window is not None and self._window.end_s > t:
            self._window.end_s = t

    def trial_ends(self, trial: str, device: str) -> list[TrialTelemetry]:
        """What was read of the trial's device and of the host inside the window; nothing where it never began."""
        window, self._window, self._in_trial = self._window, None, False
        if window is None:
            return []
        now = time.monotonic()
        window.end_s = min(window.end_s, now)
        return [self._summary(window, now, trial, name) for name in dict.fromkeys((device, HOST))]

    def _summary(self, window: Window, now: float, trial: str, device: str) -> TrialTelemetry:
        sources: dict[str, str] = {}
        missing: dict[str, str] = {}
        for known in self._sources.values():
            if known.device == device:
                sources.update(known.sources)
                missing.update(known.missing)
        return window.event(now, trial, device, sources, missing)

    async def _keep_reading(self) -> None:
        attempt = 0
        while attempt <= RESTARTS:
            begin = time.monotonic()
            try:
                reason = await self._read_one_process()
            except OSError as error:
                reason = f"could not be started: {error.strerror}"
            attempt = 0 if time.monotonic() - begin > HEALTHY_S else attempt + 1
            next_step = "restarted" if attempt <= RESTARTS else "given up: telemetry is missing from here on"
            self._notice("warning", f"the telemetry process ended ({reason}); {next_step}")
            await asyncio.sleep(RESTART_PAUSE_S)

    async def _read_one_process(self) -> str:
        arguments = ["--hz", str(HZ)]
        for device in self._devices:
            arguments += ["--device", device]
        self._process = process = await asyncio.create_subprocess_exec(
            *python_command("engine.telemetry.process", *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        with contextlib.suppress(ValueError):  # a line beyond the stream's limit: the process is not ours any more
            async for line in pipe(process.stdout):
                self._take(line)
        return await self._end_process()

    async def _end_process(self) -> str:
        process, self._process = self._process, None
        if process is None:
            return "not started"
        pipe(process.stdin).close()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_S)
        code = process.returncode
        return "stuck in a driver" if code is None else f"signal {-code}" if code < 0 else f"exit code {code}"

    def _take(self, raw: bytes) -> None:
        try:
            line = _decoder.decode(raw)
        except (msgspec.MsgspecError, RecursionError):
            return
        if isinstance(line, Sample):
            problem = self._series.add(line, self._in_trial)
            if problem:
                self._notice("warning", problem)
            if self._window is not None:
                self._window.add(line)
        elif isinstance(line, Sources):
            self._learn(msgspec.convert(clean_tree(msgspec.to_builtins(line), 200), Sources))
        else:
            self._tell_stall(line)

    def _learn(self, line: Sources) -> None:
        self._sources[line.device, line.provider] = line
        self._record(
            TelemetrySources(
                t=line.t, device=line.device, provider=line.provider, sources=line.sources, missing=line.missing
            )
        )

    def _tell_stall(self, line: Stalled) -> None:
        if line.seconds:
            self._notice("warning", f"{line.provider} has not answered for {line.seconds:.0f} s on {line.device}")
        else:
            self._notice("info", f"{line.provider} answers again on {line.device}")

    def _notice(self, level: Literal["info", "warning"], text: str) -> None:
        self._record(Notice(t=time.monotonic(), level=level, source="telemetry", text=text))
