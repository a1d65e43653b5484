"""What a telemetry provider is: readers of quantities, a named source for each, and a reason for each one missing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.text import clean
from engine.values import Missing, Reading

RETRY_S = 60.0
"""How long a reader that said "unsupported" is left alone: a driver may be told to support it meanwhile (MIG)."""


class Unreadable(Exception):
    """A reader has no answer; the text is the reason that operators see. `lasting`: asking again soon is pointless."""

    def __init__(self, reason: str, *, lasting: bool = False) -> None:
        super().__init__(reason)
        self.lasting = lasting


class DeviceLost(Exception):
    """The whole device stopped answering; the text is the reason. The provider opens it again after a while."""


@dataclass(frozen=True)
class Reader:
    """One call: the quantities it gives, in order, and how to name it as their source.

    `read` returns one number or Missing for each quantity. It raises Unreadable where none can be had, DeviceLost
    where no reader of this device can work. With `period_s` it is asked no oftener than that, for costly calls.
    """

    quantities: tuple[str, ...]
    source: str
    read: Callable[[], Sequence[Reading]]
    period_s: float = 0.0


class Provider(Protocol):
    """Reads one device. Every method may block in a vendor's library, so only the device's own thread calls them."""

    name: str
    device: str

    @property
    def doing(self) -> str:
        """The call in progress, "" where none is or it is not known; the one member that any thread may read."""
        ...

    def fast(self) -> dict[str, float]:
        """Quantities that move within a second."""
        ...

    def slow(self) -> dict[str, float]:
        """Quantities that are costly to read or seldom move."""
        ...

    def sources(self) -> dict[str, str]:
        """The source of each quantity that can be read now."""
        ...

    def missing(self) -> dict[str, str]:
        """The reason for each quantity that cannot be read now."""
        ...


class ReaderSet:
    """Readers in order of preference: the first that gives a quantity is its source, later ones stand by for it."""

    def __init__(self, readers: Sequence[Reader], clock: Callable[[], float] = time.monotonic) -> None:
        self._readers = tuple(readers)
        self._clock = clock
        self._resting: dict[int, tuple[float, str]] = {}
        self._due: dict[int, float] = {}
        self.sources: dict[str, str] = {}
        self.missing: dict[str, str] = {}

    def read(self) -> dict[str, float]:
        """One round: what can be read now; `sources` and `missing` describe it afterwards."""
        values: dict[str, float] = {}
        sources: dict[str, str] = {}
        missing: dict[str, str] = {}
        for place, reader in enumerate(self._readers):
            if all(quantity in values for quantity in reader.quantities):
                continue
            if not self._is_due(place, reader):
                sources |= {name: self.sources[name] for name in reader.quantities if name in self.sources}
                missing |= {name: self.missing[name] for name in reader.quantities if name in self.missing}
                continue
            for quantity, reading in zip(reader.quantities, self._ask(place, reader), strict=True):
                if quantity in values:
                    continue
                if isinstance(reading, Missing):
                    missing.setdefault(quantity, reading.missing)
                else:
                    values[quantity] = reading
                    sources[quantity] = reader.source
        self.sources = sources
        self.missing = {quantity: reason for quantity, reason in missing.items() if quantity not in values}
        return values

    def lose(self, reason: str) -> None:
        """Every quantity is missing, for one reason."""
        self.sources = {}
        self.missing = {quantity: reason for reader in self._readers for quantity in reader.quantities}

    def _is_due(self, place: int, reader: Reader) -> bool:
        if not reader.period_s:
            return True
        now = self._clock()
        due = self._due.setdefault(place, now)
        if now >= due:
            self._due[place] = following(due, now, reader.period_s)
        return now >= due

    def _ask(self, place: int, reader: Reader) -> Sequence[Reading]:
        until, reason = self._resting.get(place, (0.0, ""))
        if self._clock() < until:
            return _none(reader, reason)
        try:
            return [_finite(reading) for reading in reader.read()]
        except DeviceLost:
            raise
        except Unreadable as error:
            if error.lasting:
                self._resting[place] = (self._clock() + RETRY_S, str(error))
            return _none(reader, str(error))
        except Exception as error:  # vendors' bindings raise anything, KeyError for a missing library among it
            return _none(reader, clean(f"the reader failed: {type(error).__name__}: {error}", 300))


def following(deadline: float, now: float, period: float) -> float:
    """The first deadline of the series deadline + n * period that lies after `now`."""
    later = deadline + period * (max(0, int((now - deadline) // period)) + 1)
    return later if later > now else later + period  # the division may round to the deadline that is now


def _none(reader: Reader, reason: str) -> list[Reading]:
    return [Missing(reason, reader.source)] * len(reader.quantities)


def _finite(reading: Reading) -> Reading:
    if isinstance(reading, Missing) or math.isfinite(reading):
        return reading
    return Missing(f"the reading is {reading}, which is no number")
