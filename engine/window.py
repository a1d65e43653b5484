"""Telemetry over the measured window of a trial: one pass, constant memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from engine.events import TelemetrySummary, TrialTelemetry
from engine.telemetry.samples import Sample
from engine.values import Missing, Reading

COUNTERS = ("_j", "_pressure_s", "_errors", "_replays")
"""How the names of quantities end that only ever rise."""


@dataclass
class _Quantity:
    n: int = 0
    total: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    first: float = 0.0
    last: float = 0.0
    first_t: float = 0.0
    last_t: float = 0.0
    fell: bool = False

    def add(self, t: float, value: float) -> None:
        if self.n == 0:
            self.first, self.first_t = value, t
        self.fell = self.fell or (self.n > 0 and value < self.last)
        self.n += 1
        self.total += value
        self.low, self.high = min(self.low, value), max(self.high, value)
        self.last, self.last_t = value, t

    def summary(self, name: str, source: str) -> TelemetrySummary:
        return TelemetrySummary(
            n=self.n,
            mean=self.total / self.n,
            min=self.low,
            max=self.high,
            delta=self._delta(name),
            source=source,
            span_s=self.last_t - self.first_t,
        )

    def _delta(self, name: str) -> Reading:
        # a reloaded driver and a restarted telemetry process begin anew: what was counted before is unknown
        if self.fell and name.endswith(COUNTERS):
            return Missing("the counter began anew inside the window")
        return self.last - self.first


@dataclass
class Window:
    """The samples between `begin_s` and `end_s` (our monotonic clock), summed up per device and quantity."""

    begin_s: float
    end_s: float = math.inf
    _devices: dict[str, dict[str, _Quantity]] = field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        """Take a sample in, if it was read inside the window."""
        if not self.begin_s <= sample.t <= self.end_s:
            return
        quantities = self._devices.setdefault(sample.device, {})
        for name, value in sample.values.items():
            quantities.setdefault(name, _Quantity()).add(sample.t, value)

    def event(
        self, t: float, trial: str, device: str, sources: dict[str, str], missing: dict[str, str]
    ) -> TrialTelemetry:
        """What the journal keeps for one device; a quantity that should have been read and was not is missing."""
        read = self._devices.get(device, {})
        summaries: dict[str, TelemetrySummary | Missing] = {
            name: read[name].summary(name, source) if name in read else Missing("no sample inside the window", source)
            for name, source in sources.items()
        }
        summaries.update({name: Missing(reason) for name, reason in missing.items() if name not in summaries})
        return TrialTelemetry(
            t=t, trial=trial, device=device, begin_s=self.begin_s, end_s=self.end_s, summaries=summaries
        )
