"""Journals for tests: a small run whose figures are known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from engine import runfolder
from engine.events import (
    Anchor,
    AnyEvent,
    DeviceSeen,
    Event,
    Fingerprint,
    Iterations,
    MetricResult,
    RunEnded,
    RunStarted,
    TelemetrySummary,
    TrialEnd,
    TrialEnded,
    TrialStarted,
    TrialTelemetry,
    WorkerHello,
    WorkerPhase,
    WorkerResult,
)
from engine.journal import JournalWriter, encode
from engine.plan import PlannedTrial
from engine.values import Missing, Scalar

BOOT = "3f2b8c1e-0000-4000-8000-000000000001"
METRIC = MetricResult(
    metric="rate",
    unit="TFLOP/s",
    better="higher",
    work=2e12,
    work_unit="FLOP",
    scale=1e12,
    count=10,
    timer="device events",
)
DURATIONS = tuple([0.002] * 10)
"""2e12 FLOP in 2 ms are 1000 TFLOP/s."""


def planned(number: int) -> PlannedTrial:
    return PlannedTrial(
        trial=f"t{number:04}",
        scenario="compute/gemm",
        variant="bf16 8192x8192x8192",
        parameters={"dtype": "bf16", "m": 8192},
        environment="bare",
        device="GPU-1",
        framework="torch",
        repeat=number,
        pair=number,
        slot=0,
    )


def longest_planned(number: int) -> PlannedTrial:
    """A trial with the longest names that a plan, a device and a scenario can have."""
    return msgspec.structs.replace(
        planned(number),
        scenario=f"compute/{'s' * 24}",
        variant="fp32 1048576x1048576x1048576",
        parameters={"dtype": "fp32", "shape": "1048576x1048576x1048576"},
        environment="\N{DESKTOP COMPUTER}" * 64,  # a label has 64 characters, of four bytes at most
        device="G" * 128,
        framework="python",
        repeat=1000,
        pair=1000,
        slot=16,
    )


def anchor(monotonic_s: float = 100.0, wall_s: float = 1_700_000_000.0, boot_id: str = BOOT) -> Anchor:
    return Anchor(monotonic_s=monotonic_s, wall_s=wall_s, boot_id=boot_id)


def run_started(trials: int) -> RunStarted:
    return RunStarted(
        t=100.0,
        run="20260101-000000-abcdef",
        version="0.1.0",
        anchor=anchor(),
        plan={"name": "case", "schema": 1},
        trials=tuple(planned(number) for number in range(1, trials + 1)),
    )


def setting() -> list[AnyEvent]:
    facts: dict[str, Scalar | Missing] = {
        "driver": "570.1",
        "memory_bytes": 150_000_000_000,
        "numa": Missing("no such file", "sysfs"),
    }
    return [
        DeviceSeen(t=100.0, device="GPU-1", index=0, kind="cuda", name="H200", facts=facts),
        Fingerprint(t=100.0, facts=facts),
    ]


def started(trial: str, t: float = 101.0) -> TrialStarted:
    return TrialStarted(t=t, trial=trial, python="/usr/bin/python3", deadline_s=300.0, counts={})


def iterations(trial: str, durations: tuple[float, ...] = DURATIONS, group: int = 1) -> Iterations:
    return Iterations(t=103.0, trial=trial, rank=0, metric="rate", group=group, durations_s=durations)


def result(trial: str, metric: MetricResult = METRIC) -> WorkerResult:
    facts: dict[str, Scalar] = {"framework": "torch", "check_error": 0.0}
    return WorkerResult(t=104.0, trial=trial, rank=0, metrics=(metric,), facts=facts)


def telemetry(trial: str) -> TrialTelemetry:
    return TrialTelemetry(
        t=105.0,
        trial=trial,
        device="GPU-1",
        begin_s=102.0,
        end_s=103.5,
        summaries={
            "power_w": TelemetrySummary(n=15, mean=650.0, min=600.0, max=700.0, delta=3.5, source="nvml", span_s=1.4),
            "fan_percent": Missing("not supported", "nvml"),
        },
    )


def ended(trial: str, outcome: TrialEnd = "completed", reason: str = "") -> TrialEnded:
    return TrialEnded(t=106.0, trial=trial, outcome=outcome, reason=reason, seconds=5.0)


def trial_events(trial: str) -> list[AnyEvent]:
    return [
        started(trial),
        WorkerHello(t=101.5, trial=trial, rank=0, pid=7, python="3.11", clock_offset_s=0.0, clock_uncertainty_s=1e-4),
        WorkerPhase(t=102.0, trial=trial, rank=0, name="measure"),
        iterations(trial),
        result(trial),
        telemetry(trial),
        ended(trial),
    ]


def run_ended() -> RunEnded:
    return RunEnded(t=110.0, outcome="completed", reason="", exit_code=0)


def run_events(trials: int) -> Iterator[AnyEvent]:
    yield run_started(trials)
    yield from setting()
    for number in range(1, trials + 1):
        yield from trial_events(f"t{number:04}")
    yield run_ended()


def journal_bytes(*events: Event) -> bytes:
    return b"".join(encode(event) for event in events)


def write_journal(folder: Path, *events: Event) -> Path:
    writer = JournalWriter(folder)
    for event in events:
        writer.append(event)
    writer.close()
    return folder / runfolder.JOURNAL
