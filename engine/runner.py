"""The runner: the one process that owns a run, starts its trials one after the other and writes the run folder.

It knows nothing of a screen. Whoever started it holds the other end of the owner pipe (engine.owner); without one,
and unless the plan says "continue", it stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import shutil
import time
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import msgspec

from engine import exits, files, runfolder
from engine.control import ControlServer
from engine.errors import AibenchError, remedy
from engine.events import (
    Control,
    DeviceSeen,
    Event,
    Fingerprint,
    HandleClosed,
    HandleOpened,
    Notice,
    RunEnd,
    RunEnded,
    RunResumed,
    RunStarted,
    TrialEnd,
    TrialEnded,
    TrialStarted,
)
from engine.guard import Guard
from engine.journal import JournalWriter
from engine.launch import launcher_for, oci
from engine.launch.base import Launch, TrialFiles
from engine.locks import DeviceLocks
from engine.plan import PlannedTrial
from engine.sensors import Sensors
from engine.series import SeriesWriter
from engine.setup import Setup, anchor, chosen, group_of, python_of
from engine.stage import stage
from engine.strays import Strays
from engine.text import clean
from engine.trial import Ended, TrialRun
from engine.trial_log import TrialLog
from engine.version import VERSION
from engine.worker.keeper import PR_SET_CHILD_SUBREAPER, prctl


def unexpected(error: Exception, otherwise: str) -> str:
    """A line about what nobody foresaw: what helps where a limit of the system is behind it, else `otherwise`."""
    words = f"{type(error).__name__}: {clean(str(error), 200)}"
    return f"{words}; {remedy(words) or otherwise}"


class Runner:
    """One run, from its first event to its last. `run` returns the exit code; `stop` may be called at any time."""

    def __init__(self, setup: Setup, folder: Path, locks: DeviceLocks) -> None:
        self._setup = setup
        self._ground = setup.ground
        self._plan = setup.ground.plan
        self._run_id = setup.ground.run
        self._folder = folder
        self._locks = locks
        past = setup.ground.past
        self._outcomes: dict[str, TrialEnd] = dict(past.finished) if past else {}
        self._counts = dict(past.counts) if past else {}
        self._journal = JournalWriter(folder)
        self._strays = Strays(self._run_id)
        self._current: TrialRun | None = None
        self._end: tuple[RunEnd, str] | None = None
        self._go_on = asyncio.Event()
        self._go_on.set()
        self._sensors = Sensors(
            tuple(device.device for device in setup.ground.devices),
            SeriesWriter(folder / runfolder.SERIES),
            self._journal.append,
        )
        self._control = ControlServer(self._run_id, self._obey)

    def stop(self, outcome: RunEnd, reason: str) -> None:
        """End the run: the current trial at once, the others never. The first reason stands."""
        if self._end is None:
            self._end = (outcome, reason)
        self._go_on.set()
        if self._current is not None:
            self._current.stop("aborted", f"the run was stopped: {reason}")

    def owner_is_gone(self) -> None:
        """Whoever started the run has ended or let go."""
        if self._plan.on_owner_exit == "stop":
            self.stop("aborted", 'its owner is gone (on_owner_exit = "stop")')

    async def run(self) -> int:
        """All trials, then the end; whatever happens in between, the journal gets its last event if the disk can."""
        try:
            self._open()
            await asyncio.to_thread(self._journal.sync)
            self._sensors.start()
            await self._control.start()
            limit = asyncio.get_running_loop().call_later(
                self._plan.hard_end_s, self.stop, "aborted", f"its hard end of {self._plan.hard_end_s:g} s was reached"
            )
            await self._run_trials()
            limit.cancel()
        except AibenchError as error:
            self.stop("failed", str(error))
        except Exception as error:  # whatever broke, finished trials and a reason must reach the disk
            self._trace(error)
            self.stop("failed", unexpected(error, f"its traceback is in {runfolder.RUNNER_LOG}"))
        return await self._close()

    def _open(self) -> None:
        now = anchor()
        if self._ground.past is not None:
            self._record(RunResumed(t=now.monotonic_s, version=VERSION, anchor=now))
        else:
            self._record(
                RunStarted(
                    t=now.monotonic_s,
                    run=self._run_id,
                    version=VERSION,
                    anchor=now,
                    plan=msgspec.to_builtins(self._plan),
                    trials=self._setup.trials,
                )
            )
        for device in self._ground.devices:
            self._record(
                DeviceSeen(
                    t=now.monotonic_s,
                    device=device.device,
                    index=device.index,
                    kind=device.kind,
                    name=device.name,
                    facts=device.facts,
                )
            )
        self._record(Fingerprint(t=now.monotonic_s, facts=self._setup.fingerprint))
        for problem in self._ground.inventory.problems:
            self._notice("warning", "probe", problem)
        for (_, kind), python in self._setup.pythons.items():
            self._notice("info", "workers", chosen(python, kind))

    async def _run_trials(self) -> None:
        stage_folder = await asyncio.to_thread(stage, self._folder)
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # what a killed keeper leaves becomes ours: engine.strays
        async with Guard(self._folder, self._run_id, functools.partial(self._notice, "warning", "guard")):
            for trial in self._setup.trials:
                await self._go_on.wait()
                if self._end is not None:
                    return
                if trial.trial not in self._outcomes:
                    await self._run_trial(trial, stage_folder)

    async def _run_trial(self, trial: PlannedTrial, stage_folder: Path) -> None:
        token = secrets.token_hex(8)
        async with self._scratch(trial.trial) as scratch:
            try:
                launch = await asyncio.to_thread(self._launch, trial, token, stage_folder, scratch)
            except AibenchError as error:
                ended = Ended("failed", str(error), 0.0, {}, 0, 0)
            else:
                ended = await self._follow(trial, token, launch)
        self._record(
            TrialEnded(
                t=time.monotonic(),
                trial=trial.trial,
                outcome=ended.outcome,
                reason=ended.reason,
                seconds=ended.seconds,
                log_bytes=ended.log_bytes,
                log_dropped_bytes=ended.log_dropped_bytes,
            )
        )
        await asyncio.to_thread(self._journal.sync)
        self._outcomes[trial.trial] = ended.outcome
        if ended.stuck:
            raise AibenchError(f"trial {trial.trial}: {ended.reason}", "see dmesg", code=exits.INCOMPLETE)
        if self._journal.problem:  # what is on disk is safe, and the end still fits into the reserve
            raise AibenchError(self._journal.problem, code=exits.INCOMPLETE)
        if ended.outcome == "completed":
            self._counts.setdefault(group_of(trial), ended.counts)

    async def _follow(self, trial: PlannedTrial, token: str, launch: Launch) -> Ended:
        """Start a prepared trial; a handle that can outlive its keeper is in the journal, durable, before the start."""
        deadline_s = self._plan.repetition.trial_timeout_s
        python = python_of(self._setup.pythons, trial.framework, self._kind(trial.device)).path
        counts = self._counts.get(group_of(trial), {})
        self._record(
            TrialStarted(t=time.monotonic(), trial=trial.trial, python=python, deadline_s=deadline_s, counts=counts)
        )
        if launch.handle:
            self._record(
                HandleOpened(t=time.monotonic(), trial=trial.trial, runtime=launch.runtime, name=launch.handle)
            )
            await asyncio.to_thread(self._journal.sync)
        log = TrialLog(runfolder.trial_log(self._folder, trial.trial))
        self._current = TrialRun(
            self._run_id, trial.trial, token, deadline_s, log, self._sensors, self._strays, self._record
        )
        ended = await self._current.run(launch, self._locks.fds)
        self._current = None
        if launch.handle:
            await self._close_handle(trial.trial, launch)
        for summary in self._sensors.trial_ends(trial.trial, trial.device):
            self._record(summary)
        if log.problem:
            self._notice("warning", "log", log.problem)
        return ended

    async def _close_handle(self, trial: str, launch: Launch) -> None:
        """See to it that the trial's container is gone; one that stays is left to the guard and to `clean`."""
        if await asyncio.to_thread(oci.remove, launch.runtime, launch.handle, self._run_id):
            self._record(HandleClosed(t=time.monotonic(), trial=trial, name=launch.handle))
        else:
            self._notice("error", launch.runtime, f"container {launch.handle} could not be removed")

    def _launch(self, trial: PlannedTrial, token: str, stage_folder: Path, scratch: Path) -> Launch:
        kind = self._kind(trial.device)
        environment = next(each for each in self._plan.environments if each.label == trial.environment)
        launcher = launcher_for(
            environment, python_of(self._setup.pythons, trial.framework, kind).path, trial.device, kind
        )
        spec = scratch / "trial.json"
        files.write_private(spec, msgspec.json.encode(self._spec(trial, token, kind)))
        deadline_s = self._plan.repetition.trial_timeout_s
        return launcher.prepare(
            self._run_id, trial.trial, token, deadline_s, TrialFiles(stage=stage_folder, spec=spec, scratch=scratch)
        )

    def _spec(self, trial: PlannedTrial, token: str, kind: str) -> dict[str, object]:
        repetition = self._plan.repetition
        return {
            "token": token,
            "run": self._run_id,
            "trial": trial.trial,
            "scenario": trial.scenario,
            "parameters": trial.parameters,
            "framework": trial.framework,
            "device": {"kind": kind, "index": 0},
            "seed": repetition.seed,
            "seconds": repetition.seconds,
            "counts": self._counts.get(group_of(trial), {}),
        }

    @contextlib.asynccontextmanager
    async def _scratch(self, trial: str) -> AsyncIterator[Path]:
        """A trial's own empty folder, gone after it: a cache that one arm filled must not serve the other."""
        folder = self._folder / runfolder.SCRATCH / trial
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        await asyncio.to_thread(files.make_private_folder, folder)
        try:
            yield folder
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _kind(self, device: str) -> str:
        return next(each.kind for each in self._ground.devices if each.device == device)

    def _obey(self, command: str, by: str) -> str:
        """A command from the control socket; the answer is "" or why not, and stands in the journal."""
        refusal = self._carry_out(command, by)
        self._record(Control(t=time.monotonic(), command=command, by=by, accepted=not refusal, reason=refusal))
        return refusal

    def _carry_out(self, command: str, by: str) -> str:
        """Do what was ordered; the control server lets nothing but these four through."""
        if command == "stop":
            self.stop("aborted", f"stopped by {by}")
        elif command == "skip":
            if self._current is None:
                return "no trial is running"
            self._current.stop("skipped", f"skipped by {by}")
        elif command == "pause":
            self._go_on.clear()
        elif command == "resume":
            self._go_on.set()
        return ""

    async def _close(self) -> int:
        """End what the run still holds, and write the last event; nothing that fails here may cost that event."""
        outcome, reason = self._end or ("completed", self._what_failed())
        code = self._completed_code() if outcome == "completed" else exits.INCOMPLETE
        for part in (self._control.stop(), self._sensors.stop()):
            try:
                await part
            except Exception as error:
                self._trace(error)
        self._record(RunEnded(t=time.monotonic(), outcome=outcome, reason=reason, exit_code=code))
        await asyncio.to_thread(self._journal.close)
        return code

    def _what_failed(self) -> str:
        failed = list(self._outcomes.values()).count("failed")
        return f"{failed} of {len(self._setup.trials)} trials failed" if failed else ""

    def _completed_code(self) -> int:
        """A run of which nothing completed has shown nothing, so it has failed."""
        outcomes = list(self._outcomes.values())
        return exits.FAILED if "failed" in outcomes or "completed" not in outcomes else exits.DONE

    def _record(self, event: Event) -> None:
        self._journal.append(event)

    def _notice(self, level: Literal["info", "warning", "error"], source: str, text: str) -> None:
        self._record(Notice(t=time.monotonic(), level=level, source=source, text=clean(text, 400)))

    def _trace(self, error: Exception) -> None:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        with contextlib.suppress(OSError):
            files.append_bytes(self._folder / runfolder.RUNNER_LOG, text.encode())
