"""A session: what a run measured, folded from its journal (its TOML form: engine.session_file; fields are only added).

The fold is total: whatever a journal holds, damaged or contradictory, every planned trial comes out once, with one
outcome and a reason, and only a completed trial with a result comes out with measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from engine.analysis.durations import Durations
from engine.analysis.summary import NoFigure, summarise
from engine.events import (
    Anchor,
    AnyEvent,
    DeviceSeen,
    Event,
    Fingerprint,
    Iterations,
    MetricResult,
    Notice,
    RunEnd,
    RunEnded,
    RunResumed,
    RunStarted,
    TelemetrySummary,
    TrialEnd,
    TrialEnded,
    TrialStarted,
    TrialTelemetry,
    WorkerResult,
)
from engine.plan import PlannedTrial
from engine.telemetry.samples import HOST
from engine.timeline import run_seconds, span, utc
from engine.values import Missing, Reading, Scalar

SCHEMA = 1
MAX_NOTICES = 200

NOT_RUN = Missing("it did not run")
NO_END = Missing("it has no end in the journal")
NO_WINDOW = Missing("no telemetry of its window")
DIED = "the runner ended without a word (killed or power lost)"

_REOPENED: frozenset[TrialEnd] = frozenset({"aborted", "not_run"})
"""Outcomes that a resumed run may replace."""


class Device(msgspec.Struct, frozen=True):
    """A device of the run as it was seen before the first trial."""

    device: str
    index: int
    kind: str
    name: str
    facts: dict[str, Scalar | Missing]


class Trial(msgspec.Struct, frozen=True):
    """A planned trial and its one outcome; there are as many as the plan has, whatever happened.

    "running" and "planned" stand in the session of a living runner alone.
    """

    trial: str
    scenario: str
    variant: str
    environment: str
    device: str
    framework: str
    repeat: int
    pair: int
    slot: int
    outcome: TrialEnd | Literal["running", "planned"]
    reason: str
    seconds: Reading


class Measurement(msgspec.Struct, frozen=True):
    """One metric of one completed trial.

    `median`, `best`, `p95` and `p99` are values of the metric in `unit`; percentiles are of durations, so a rate's p95
    is work / p95 duration. `n` counts the iterations of the steady segment, each reading of the timer is the mean of
    `group` of them, `cv` is the readings' coefficient of variation (a fraction), `steady` says "yes" or why not.
    `telemetry` covers the trial's measured window, per device (or "host") and quantity.
    """

    trial: str
    scenario: str
    variant: str
    metric: str
    unit: str
    better: Literal["higher", "lower"]
    environment: str
    device: str
    framework: str
    repeat: int
    pair: int
    slot: int
    n: int
    median: float
    best: float
    p95: Reading
    p99: Reading
    cv: Reading
    warmup_n: int
    steady: str
    work: float
    work_unit: str
    timer: str
    window_s: Reading
    facts: dict[str, Scalar]
    telemetry: dict[str, dict[str, TelemetrySummary | Missing]]
    group: int = 1


class Session(msgspec.Struct, frozen=True):
    """A run's result. `outcome` is "aborted" with a reason where the journal has no end and no runner lives."""

    schema: int
    run: str
    name: str
    seed: int
    version: str
    outcome: RunEnd | Literal["running"]
    reason: str
    started: str
    seconds: Reading
    fingerprint: dict[str, Scalar | Missing]
    devices: tuple[Device, ...]
    trials: tuple[Trial, ...]
    measurements: tuple[Measurement, ...]
    notices: tuple[str, ...]


def fold(events: Iterable[AnyEvent], *, alive: bool = False) -> Session:
    """The session of a journal's events. `alive`: whether its runner still holds the run."""
    result = Fold()
    for event in events:
        result.add(event)
    return result.session(alive)


@dataclass
class _Trial:
    """What is known of one planned trial. Durations are let go when it ends; its figures stay."""

    planned: PlannedTrial
    started: bool = False
    outcome: TrialEnd | None = None
    reason: str = ""
    seconds: Reading = NOT_RUN
    reopened: bool = False
    results: dict[int, WorkerResult] = field(default_factory=dict)
    durations: dict[tuple[int, str], Durations] = field(default_factory=dict)
    telemetry: dict[str, TrialTelemetry] = field(default_factory=dict)
    measurements: tuple[Measurement, ...] = ()

    def may_start(self) -> bool:
        """Whether a start is news: the first one, or one of a resumed run."""
        return self.reopened or (self.outcome is None and not self.started)

    def end(self, outcome: TrialEnd, reason: str, seconds: Reading) -> None:
        """The first end stands, except that what a resumed run may take up again can end again."""
        if self.outcome is not None and not self.reopened:
            return
        self.outcome, self.reason, self.seconds, self.reopened = outcome, reason, seconds, False
        if outcome == "completed":
            self._measure()
        elif not reason:
            self.reason = "no reason was given"
        self.results, self.durations = {}, {}

    def resume(self) -> None:
        """The run was taken up again by another process: what ran then does not run any more."""
        if self.started and self.outcome is None:
            self.end("aborted", DIED, NO_END)
        self.reopened = self.outcome in _REOPENED

    def hear(self, event: Iterations | WorkerResult) -> None:
        """Take in what a worker said, as long as the trial has not ended."""
        if self.outcome is not None:
            return
        if isinstance(event, WorkerResult):
            self.results.setdefault(event.rank, event)
        else:
            self.durations.setdefault((event.rank, event.metric), Durations()).add(event.durations_s, event.group)

    def report(self, planned: PlannedTrial, run_outcome: str, run_reason: str) -> Trial:
        """`planned` as the session has it; one without an end gets the outcome that follows from the run's."""
        outcome: TrialEnd | Literal["running", "planned"]
        outcome, reason, seconds = self.outcome or "aborted", self.reason, self.seconds
        if self.outcome is None:
            if run_outcome == "running":
                outcome, reason = ("running", "") if self.started else ("planned", "")
            else:
                outcome, reason = ("aborted", "while it ran") if self.started else ("not_run", "before it")
                reason = f"the run ended {reason}: {run_reason or run_outcome}"
            seconds = NO_END if self.started else seconds
        return Trial(outcome=outcome, reason=reason, seconds=seconds, **_identity(planned, Trial))

    def measured(self) -> Iterable[Measurement]:
        """Its measurements, with the telemetry that is known by now."""
        telemetry = {name: event.summaries for name, event in self.telemetry.items() if event.summaries}
        window = self.telemetry.get(self.planned.device) or self.telemetry.get(HOST)
        window_s = span(window.end_s - window.begin_s) if window else NO_WINDOW
        for each in self.measurements:
            yield msgspec.structs.replace(each, telemetry=telemetry, window_s=window_s)

    def _measure(self) -> None:
        """A trial that claims to be complete without figures to show is a failed one."""
        try:
            self.measurements = tuple(self._figures())
        except NoFigure as problem:
            self.outcome, self.reason = "failed", str(problem)

    def _figures(self) -> Iterable[Measurement]:
        if not self.results:
            raise NoFigure("the journal has no result of it")
        rank = min(self.results)
        result = self.results[rank]
        if not result.metrics:
            raise NoFigure("its result has no metrics")
        for metric in {each.metric: each for each in result.metrics}.values():
            yield self._measurement(metric, self.durations.get((rank, metric.metric), Durations()), result.facts)

    def _measurement(self, metric: MetricResult, durations: Durations, facts: dict[str, Scalar]) -> Measurement:
        return Measurement(
            metric=metric.metric,
            unit=metric.unit,
            better=metric.better,
            work=metric.work,
            work_unit=metric.work_unit,
            timer=metric.timer,
            facts=facts,
            telemetry={},
            window_s=NO_WINDOW,
            **_identity(self.planned, Measurement),
            **msgspec.structs.asdict(summarise(metric, durations)),
        )


def _identity(planned: PlannedTrial, kind: type[Trial | Measurement]) -> dict[str, Any]:
    """The fields that say which trial it is."""
    return {name: getattr(planned, name) for name in kind.__struct_fields__ if hasattr(planned, name)}


class Fold:
    """The session so far, event by event; its memory is that of the plan, the figures and the trials that run."""

    def __init__(self) -> None:
        self._started: RunStarted | None = None
        self._trials: dict[str, _Trial] = {}
        self._devices: dict[str, Device] = {}
        self._fingerprint: dict[str, Scalar | Missing] = {}
        self._notices: dict[str, None] = {}
        self._end: RunEnded | None = None
        self._anchor: Anchor | None = None
        self._last_t = 0.0
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            RunStarted: self._start,
            RunResumed: self._resume,
            RunEnded: self._finish,
            DeviceSeen: self._see_device,
            Fingerprint: self._see_fingerprint,
            Notice: self._take_notice,
            TrialStarted: self._start_trial,
            TrialEnded: self._end_trial,
            TrialTelemetry: self._see_telemetry,
            Iterations: self._hear,
            WorkerResult: self._hear,
        }

    def add(self, event: AnyEvent) -> None:
        """Take in the next event; one that contradicts an earlier one changes nothing."""
        self._last_t = event.t
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def session(self, alive: bool = False) -> Session:
        """The session as of now. `alive`: whether the runner still holds the run."""
        start = self._started
        outcome, reason = self._outcome(alive)
        planned = start.trials if start else ()
        return Session(
            schema=SCHEMA,
            run=start.run if start else "",
            name=str(start.plan.get("name", "")) if start else "",
            seed=_seed(start.plan) if start else 0,
            version=start.version if start else "",
            outcome=outcome,
            reason=reason,
            started=utc(start.anchor.wall_s) if start else "",
            seconds=self._seconds(),
            fingerprint=self._fingerprint,
            devices=tuple(self._devices.values()),
            trials=tuple(self._trials[each.trial].report(each, outcome, reason) for each in planned),
            measurements=tuple(figure for trial in self._trials.values() for figure in trial.measured()),
            notices=tuple(self._notices),
        )

    def measurements(self, trial: str) -> list[Measurement]:
        """The figures of one trial so far."""
        known = self._trials.get(trial)
        return list(known.measured()) if known else []

    def _outcome(self, alive: bool) -> tuple[RunEnd | Literal["running"], str]:
        if self._started is None:
            return ("running", "") if alive else ("failed", "it has no start: the journal's first line is lost")
        if self._end is None:
            return ("running", "") if alive else ("aborted", DIED)
        endless = sum(trial.outcome is None for trial in self._trials.values())
        if self._end.outcome == "completed" and endless:
            return "failed", f"{endless} trials have no end in the journal"
        return self._end.outcome, self._end.reason

    def _seconds(self) -> Reading:
        if self._started is None or self._anchor is None:
            return Missing("its journal has no start")
        return run_seconds(self._started.anchor, self._anchor, self._last_t)

    def _start(self, event: RunStarted) -> None:
        if self._started is None:
            self._started, self._anchor = event, event.anchor
            self._trials = {planned.trial: _Trial(planned) for planned in event.trials}

    def _resume(self, event: RunResumed) -> None:
        self._anchor, self._end = event.anchor, None
        for trial in self._trials.values():
            trial.resume()

    def _finish(self, event: RunEnded) -> None:
        self._end = self._end or event

    def _see_device(self, event: DeviceSeen) -> None:
        device = Device(device=event.device, index=event.index, kind=event.kind, name=event.name, facts=event.facts)
        self._devices.setdefault(event.device, device)

    def _see_fingerprint(self, event: Fingerprint) -> None:
        """The first one counts; a resumed run on a changed machine says what changed."""
        for key, value in event.facts.items():
            known = self._fingerprint.get(key, value) if self._fingerprint else value
            if known != value:
                self._note(f"warning: fingerprint: {key} changed in a resumed run: {known} is now {value}")
        self._fingerprint = self._fingerprint or event.facts

    def _take_notice(self, event: Notice) -> None:
        if event.level != "info":
            self._note(f"{event.level}: {event.source}: {event.text}")

    def _note(self, text: str) -> None:
        if len(self._notices) < MAX_NOTICES:
            self._notices.setdefault(text)
        elif len(self._notices) == MAX_NOTICES:
            self._notices.setdefault("warning: further notices are in the journal alone")

    def _start_trial(self, event: TrialStarted) -> None:
        trial = self._trials.get(event.trial)
        if trial is not None and trial.may_start():
            self._trials[event.trial] = _Trial(trial.planned, started=True)

    def _end_trial(self, event: TrialEnded) -> None:
        if event.trial in self._trials:
            self._trials[event.trial].end(event.outcome, event.reason, event.seconds)

    def _see_telemetry(self, event: TrialTelemetry) -> None:
        if event.trial in self._trials:
            self._trials[event.trial].telemetry.setdefault(event.device, event)

    def _hear(self, event: Iterations | WorkerResult) -> None:
        if event.trial in self._trials:
            self._trials[event.trial].hear(event)


def _seed(plan: dict[str, Any]) -> int:
    """The seed of the order and the inputs, out of a plan that may come from a damaged journal."""
    repetition = plan.get("repetition")
    seed = repetition.get("seed") if isinstance(repetition, dict) else None
    return seed if isinstance(seed, int) else 0
