"""Telemetry over the measured window of a trial: one pass, constant memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from engine.events import TelemetrySummary, TrialTelemetry
from engine.telemetry.samples import Sample
from engine.values import Missing


@dataclass
class _Quantity:
    n: int = 0
    total: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    first: float = 0.0
    last: float = 0.0

    def add(self, value: float) -> None:
        if self.n == 0:
            self.first = value
        self.n += 1
        self.total += value
        self.low, self.high, self.last = min(self.low, value), max(self.high, value), value

    def summary(self, source: str) -> TelemetrySummary:
        return TelemetrySummary(
            n=self.n, mean=self.total / self.n, min=self.low, max=self.high, delta=self.last - self.first, source=source
        )


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
            quantities.setdefault(name, _Quantity()).add(value)

    def event(
        self, t: float, trial: str, device: str, sources: dict[str, str], missing: dict[str, str]
    ) -> TrialTelemetry:
        """What the journal keeps for one device; a quantity that should have been read and was not is missing."""
        read = self._devices.get(device, {})
        summaries: dict[str, TelemetrySummary | Missing] = {
            name: read[name].summary(source) if name in read else Missing("no sample inside the window", source)
            for name, source in sources.items()
        }
        summaries.update({name: Missing(reason) for name, reason in missing.items() if name not in summaries})
        return TrialTelemetry(
            t=t, trial=trial, device=device, begin_s=self.begin_s, end_s=self.end_s, summaries=summaries
        )
