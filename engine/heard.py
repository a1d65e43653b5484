"""What the worker of one trial has said, as far as it can be believed; the rest fails the trial, not the run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from engine import wire
from engine.analysis.durations import Durations
from engine.analysis.summary import NoFigure, check
from engine.events import Event, Iterations, MetricResult, WorkerHello, WorkerPhase, WorkerResult

MAX_LINES = 50_000
"""More protocol lines than this from one process are no measurement; 100 000 durations take about 300."""

MAX_BYTES = 64 * 1024**2
"""About what a trial may add to the journal; 100 000 durations take less than 3 MB."""

DURATION_BYTES = 16
"""What a duration counts beside its text: a journal writes 2 characters as up to 25."""

MAX_METRICS = 64
"""Durations of each are kept until the trial ends, in at most 2 MB."""

MAX_OFFSET_S = 1e9
"""Between the clocks of two machines lie their uptimes; no machine has been up for thirty years."""

MAX_UNCERTAINTY_S = 60.0
SLACK_S = 5.0
"""How far, beside the uncertainty, a line's time may lie outside the time in which it can have been written."""

WINDOW_SLACK = 1.05
WINDOW_SLACK_S = 0.05
"""Durations may add up to a little more than their window: device and host have their own clocks."""


@dataclass
class Heard:
    """The lines of one worker, rank 0, of a trial that began at `begin_s` of our clock."""

    begin_s: float
    offset_s: float = 0.0
    phase: str = "start"
    hello: wire.Hello | None = None
    result: wire.Result | None = None
    failure: wire.Failure | None = None
    report: wire.KeeperReport | None = None
    bye: bool = False
    lost: int = 0
    lines: int = 0
    size: int = 0
    last: wire.WireLine | None = None
    entered: dict[str, float] = field(default_factory=dict)
    durations: dict[str, Durations] = field(default_factory=dict)

    def take(self, message: wire.Line, size: int, now: float) -> str:
        """Take a line of `size` bytes in that was read at our second `now`; or say why it cannot be believed."""
        self.lines += 1
        self.size += size + (DURATION_BYTES * len(message.durations_s) if isinstance(message, wire.Durations) else 0)
        if self.lines > MAX_LINES:
            return f"it sent more than {MAX_LINES} protocol lines"
        if self.size > MAX_BYTES:
            return f"it sent more than {MAX_BYTES // 1024**2} MiB of protocol lines"
        if isinstance(message, wire.KeeperReport):
            self.report = message
            return ""
        return self._number(message) or self._time(message, now) or self._content(message)

    def our_time(self, t: float) -> float:
        """A second of the worker's clock by ours."""
        return t + self.offset_s

    def _number(self, message: wire.WireLine) -> str:
        """Lines are numbered from 0; a gap means that one was torn, a number seen before that one is not genuine."""
        if message.rank != 0:
            return f"a line of rank {message.rank} in a trial of one worker"
        self.lost += abs(message.seq - (-1 if self.last is None else self.last.seq) - 1)
        return ""

    def _time(self, message: wire.WireLine, now: float) -> str:
        """A worker's clock never goes backwards, and what it says of itself lies within the trial."""
        if self.last is not None and message.t < self.last.t:
            return f"its clock went backwards, from {self.last.t:g} to {message.t:g} s"
        self.last = message
        if isinstance(message, wire.Hello):
            if self.hello is not None:
                return "it said hello twice"
            if abs(message.clock_offset_s) > MAX_OFFSET_S or not 0 <= message.clock_uncertainty_s <= MAX_UNCERTAINTY_S:
                offset = f"{message.clock_offset_s:g} s +- {message.clock_uncertainty_s:g} s"
                return f"its clock is off by {offset}, which cannot be"
            self.hello, self.offset_s = message, message.clock_offset_s
        return self._outside(message, now)

    def _outside(self, message: wire.WireLine, now: float) -> str:
        if isinstance(message, wire.Ping):  # it does not know our clock yet
            return ""
        slack_s = SLACK_S + (self.hello.clock_uncertainty_s if self.hello else 0.0)
        after_s = self.our_time(message.t) - self.begin_s
        if -slack_s <= after_s <= now - self.begin_s + slack_s:
            return ""
        return f"a line of {after_s:g} s after the trial's begin came {now - self.begin_s:.3g} s after it"

    def _content(self, message: wire.WireLine) -> str:
        if isinstance(message, wire.Phase):
            return self._enter(message)
        if isinstance(message, wire.Durations):
            return self._add(message)
        if isinstance(message, wire.Result):
            return self._conclude(message)
        if isinstance(message, wire.Failure):
            self.failure = self.failure or message
        elif isinstance(message, wire.Bye):
            self.bye = True
        return ""

    def _enter(self, message: wire.Phase) -> str:
        if message.name not in wire.PHASES:
            return f"it entered phase {message.name[:40]!r}, which is none"
        if message.name in self.entered:
            return f"it entered phase {message.name} twice"
        self.phase = message.name
        self.entered[message.name] = self.our_time(message.t)
        return ""

    def _add(self, message: wire.Durations) -> str:
        if message.metric not in self.durations and len(self.durations) == MAX_METRICS:
            return f"it sent durations of more than {MAX_METRICS} metrics"
        self.durations.setdefault(message.metric, Durations()).add(message.durations_s, message.group)
        return ""

    def _conclude(self, message: wire.Result) -> str:
        if self.result is not None:
            return "it sent two results"
        self.result = message
        return ""

    def no_figures(self) -> str:
        """Why its result makes no figures, by the very rule by which a session's are made; "" where it does."""
        metrics = self.result.metrics if self.result else ()
        if not metrics:
            return "its result has no metrics"
        try:
            for metric in metrics:
                check(metric, self.durations.get(metric.metric, Durations()))
        except NoFigure as problem:
            return str(problem)
        return self._mismatch(metrics) or self._overlong(metrics)

    def _mismatch(self, metrics: tuple[MetricResult, ...]) -> str:
        """A result names each metric once, and each iteration has sent its duration (the last group may be smaller)."""
        names = [metric.metric for metric in metrics]
        for name in dict.fromkeys([*names, *self.durations]):
            if names.count(name) != 1:
                return f"its result names {name} {names.count(name)} times"
        for metric in metrics:
            durations = self.durations[metric.metric]
            if not 0 <= durations.n - metric.count < max(durations.weights):
                return f"its result counts {metric.count} iterations of {metric.metric}, its durations {durations.n}"
        return ""

    def _overlong(self, metrics: tuple[MetricResult, ...]) -> str:
        if "measure" not in self.entered:
            return "it never entered phase measure"
        window_s = self.entered.get("check", math.inf) - self.entered["measure"]
        total_s = math.fsum(_seconds(self.durations[metric.metric], metric.count) for metric in metrics)
        if total_s <= window_s * WINDOW_SLACK + WINDOW_SLACK_S:
            return ""
        return f"its durations add up to {total_s:.4g} s, but it measured for {window_s:.4g} s"


def _seconds(durations: Durations, count: int) -> float:
    """All durations together; the last one stands for as many iterations as `count` leaves to it."""
    whole_s = math.fsum(s * weight for s, weight in zip(durations.seconds, durations.weights, strict=True))
    return whole_s - durations.seconds[-1] * (durations.n - count)


def event_of(message: wire.Line, trial: str, now: float) -> Event | None:
    """The journal's event of a line, None where it keeps none."""
    if isinstance(message, wire.Hello):
        return WorkerHello(
            t=now,
            trial=trial,
            rank=message.rank,
            pid=message.pid,
            python=message.python,
            clock_offset_s=message.clock_offset_s,
            clock_uncertainty_s=message.clock_uncertainty_s,
        )
    if isinstance(message, wire.Phase):
        return WorkerPhase(t=now, trial=trial, rank=message.rank, name=message.name)
    if isinstance(message, wire.Durations):
        return Iterations(
            t=now,
            trial=trial,
            rank=message.rank,
            metric=message.metric,
            group=message.group,
            durations_s=message.durations_s,
        )
    if isinstance(message, wire.Result):
        return WorkerResult(t=now, trial=trial, rank=message.rank, metrics=message.metrics, facts=message.facts)
    return None
