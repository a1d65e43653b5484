"""The events of a run, as the journal keeps them: one JSON object a line, tagged by `event`.

Times `t` are seconds of the monotonic clock of the latest anchor before them. All outside text in an event is
clean already (engine.text). Fields may be added with a default; a field is never renamed and never changes meaning.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.plan import PlannedTrial
from engine.values import Missing, Reading, Scalar

SCHEMA = 1

TrialEnd = Literal["completed", "failed", "unsupported", "skipped", "aborted", "not_run"]
"""How a trial ended. unsupported: the device or framework cannot do it; skipped: the operator said so; aborted: the
run ended while it ran; not_run: the run ended before it."""

RunEnd = Literal["completed", "aborted", "failed"]


class Event(msgspec.Struct, frozen=True, tag_field="event", kw_only=True):
    """The base of every event."""

    t: float


class Anchor(msgspec.Struct, frozen=True):
    """One instant on both clocks of one boot, so that times of a resumed run can be ordered."""

    monotonic_s: float
    wall_s: float
    boot_id: str


class RunStarted(Event, frozen=True, tag="run_started", kw_only=True):
    """The first event: what will run, so that N trials planned are N trials reported."""

    run: str
    version: str
    schema: int = SCHEMA
    anchor: Anchor
    plan: dict[str, Any]
    trials: tuple[PlannedTrial, ...]


class RunResumed(Event, frozen=True, tag="run_resumed", kw_only=True):
    """A later process took the run up again; times after it count from its anchor."""

    version: str
    anchor: Anchor


class DeviceSeen(Event, frozen=True, tag="device", kw_only=True):
    """A device of this run as the probe saw it. `facts` are numbers and strings with units in their names."""

    device: str
    index: int
    kind: str
    name: str
    facts: dict[str, Scalar | Missing]


class Fingerprint(Event, frozen=True, tag="fingerprint", kw_only=True):
    """What must agree before two sessions are compared: kernel, driver, interpreter, framework builds and more."""

    facts: dict[str, Scalar | Missing]


class TelemetrySources(Event, frozen=True, tag="telemetry_sources", kw_only=True):
    """Which reader gives which quantity of a device, and why the others are missing."""

    device: str
    provider: str
    sources: dict[str, str]
    missing: dict[str, str]


class TrialStarted(Event, frozen=True, tag="trial_started", kw_only=True):
    """A keeper is about to start. `counts`: iterations per metric fixed by the calibration trial; empty in that one."""

    trial: str
    python: str
    deadline_s: float
    counts: dict[str, int]


class HandleOpened(Event, frozen=True, tag="handle_opened", kw_only=True):
    """Something that can outlive its keeper (a container) is about to be started; the guard stops what stays open."""

    trial: str
    runtime: str
    name: str


class HandleClosed(Event, frozen=True, tag="handle_closed", kw_only=True):
    """The handle's work is known to be gone."""

    trial: str
    name: str


class WorkerHello(Event, frozen=True, tag="hello", kw_only=True):
    """A worker is up. The clock offset maps its monotonic clock to ours: ours = its + offset_s, +- uncertainty_s."""

    trial: str
    rank: int
    pid: int
    python: str
    clock_offset_s: float
    clock_uncertainty_s: float


class WorkerPhase(Event, frozen=True, tag="phase", kw_only=True):
    """A worker entered a phase: import, setup, calibrate, warmup, measure, check."""

    trial: str
    rank: int
    name: str


class Iterations(Event, frozen=True, tag="iterations", kw_only=True):
    """Durations in seconds, in order. With `group` above 1 each is the mean of that many consecutive iterations."""

    trial: str
    rank: int
    metric: str
    group: int
    durations_s: tuple[float, ...]


class MetricResult(msgspec.Struct, frozen=True):
    """What one iteration of a metric does, so that a rate can be recomputed: rate = work / duration / scale.

    `work` is in `work_unit` ("FLOP", "B", "call"); `unit` is the rate's ("TFLOP/s") and `scale` its size in
    work_unit/s (1e12). With `scale` 0 the metric is the duration itself in seconds and `better` is "lower".
    """

    metric: str
    unit: str
    better: Literal["higher", "lower"]
    work: float
    work_unit: str
    scale: float
    count: int
    timer: str


class WorkerResult(Event, frozen=True, tag="result", kw_only=True):
    """A worker measured and checked its result. `facts`: framework, builds, device name, algorithm, check error."""

    trial: str
    rank: int
    metrics: tuple[MetricResult, ...]
    facts: dict[str, Scalar]


class TelemetrySummary(msgspec.Struct, frozen=True, tag_field="is", tag="summary"):
    """One quantity over a trial's measured window.

    `delta` is last minus first, for counters such as energy; it is missing where a counter began anew in between.
    `span_s` is the time between the two, which is less than the window: mean power is the energy's delta / span_s. 0:
    there was one sample, or the journal is older than the field.
    """

    n: int
    mean: float
    min: float
    max: float
    delta: Reading
    source: str
    span_s: float = 0.0


class TrialTelemetry(Event, frozen=True, tag="trial_telemetry", kw_only=True):
    """The measured window of a trial as the sensors saw it, per quantity, for one device (or "host")."""

    trial: str
    device: str
    begin_s: float
    end_s: float
    summaries: dict[str, TelemetrySummary | Missing]


class TrialEnded(Event, frozen=True, tag="trial_ended", kw_only=True):
    """The one outcome of a trial, with its reason in a line; durable on disk before the next trial starts."""

    trial: str
    outcome: TrialEnd
    reason: str
    seconds: float
    log_bytes: int = 0
    log_dropped_bytes: int = 0


class Control(Event, frozen=True, tag="control", kw_only=True):
    """The acknowledgement of a command (stop, skip, pause, resume) that came over the control socket."""

    command: str
    by: str
    accepted: bool
    reason: str = ""


class Notice(Event, frozen=True, tag="notice", kw_only=True):
    """Something an operator should know that is no outcome: a stalled sensor, a nearly full disk."""

    level: Literal["info", "warning", "error"]
    source: str
    text: str


class RunEnded(Event, frozen=True, tag="run_ended", kw_only=True):
    """The last event. Without it the run died, and the fold says so."""

    outcome: RunEnd
    reason: str
    exit_code: int


AnyEvent = (
    RunStarted
    | RunResumed
    | DeviceSeen
    | Fingerprint
    | TelemetrySources
    | TrialStarted
    | HandleOpened
    | HandleClosed
    | WorkerHello
    | WorkerPhase
    | Iterations
    | WorkerResult
    | TrialTelemetry
    | TrialEnded
    | Control
    | Notice
    | RunEnded
)
"""Every event of this version. A reader skips tags that are not here: they come from a newer one."""
