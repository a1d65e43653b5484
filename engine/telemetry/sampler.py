"""One thread for one provider, on absolute deadlines, and a watchdog over all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from engine.telemetry.provider import Provider, following
from engine.telemetry.samples import Line, Sample, Sources, Stalled

SLOW_PERIOD_S = 1.0
REPEAT_STALLED_S = 10.0
CHECK_PERIOD_S = 0.25

Emit = Callable[[Line], None]


class Sampler:
    """Reads one provider for ever: its fast set each `period_s`, its slow set each second, both on absolute deadlines.

    A round that ends late costs the deadlines it ran over and shifts none. A sample's time is the middle of its
    round. `busy_since` is the monotonic second the round in progress began, None between rounds.
    """

    def __init__(self, provider: Provider, period_s: float, emit: Emit, *, phase_s: float = 0.0) -> None:
        self.provider = provider
        self.busy_since: float | None = None
        self._period_s = period_s
        self._emit = emit
        self._phase_s = phase_s
        self._described: tuple[dict[str, str], dict[str, str]] = ({}, {})

    def start(self) -> None:
        """Starts the thread; as a daemon, since a vendor's call may never return."""
        threading.Thread(target=self._run, name=f"{self.provider.name} {self.provider.device}", daemon=True).start()

    def _run(self) -> None:
        deadline = time.monotonic() + self._phase_s
        slow_at = deadline
        while True:
            time.sleep(max(0.0, deadline - time.monotonic()))
            self._round(self.provider.fast)
            if deadline >= slow_at:
                self._round(self.provider.slow)
                slow_at = following(slow_at, time.monotonic(), SLOW_PERIOD_S)
            self._describe()
            deadline = following(deadline, time.monotonic(), self._period_s)

    def _round(self, read: Callable[[], dict[str, float]]) -> None:
        began = self.busy_since = time.monotonic()
        values = read()
        self.busy_since = None
        if values:
            middle = (began + time.monotonic()) / 2
            self._emit(Sample(middle, self.provider.device, self.provider.name, values))

    def _describe(self) -> None:
        described = (self.provider.sources(), self.provider.missing())
        if described != self._described:
            self._described = described
            self._emit(Sources(time.monotonic(), self.provider.device, self.provider.name, *described))


class Watchdog:
    """Says which providers do not answer: once after `limit_s`, then every REPEAT_STALLED_S, and when they are back."""

    def __init__(self, samplers: Sequence[Sampler], limit_s: float, emit: Emit) -> None:
        self._samplers = samplers
        self._limit_s = limit_s
        self._emit = emit
        self._said: dict[int, float] = {}

    def check(self, now: float) -> None:
        """Looks at every sampler at monotonic second `now`."""
        for place, sampler in enumerate(self._samplers):
            since = sampler.busy_since
            seconds = now - since if since is not None else 0.0
            if seconds > self._limit_s:
                if now >= self._said.get(place, float("-inf")) + REPEAT_STALLED_S:
                    self._said[place] = now
                    self._say(sampler, now, seconds)
            elif self._said.pop(place, None) is not None:
                self._say(sampler, now, 0.0)

    def run(self) -> None:
        """Checks for ever."""
        while True:
            time.sleep(CHECK_PERIOD_S)
            self.check(time.monotonic())

    def _say(self, sampler: Sampler, now: float, seconds: float) -> None:
        provider = sampler.provider
        self._emit(Stalled(now, provider.device, provider.name, seconds, provider.doing if seconds else ""))
