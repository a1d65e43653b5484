"""How numbers are written for people: four digits that count, in the unit that a person would choose."""

from __future__ import annotations

import math

from engine.values import Missing

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def figure(value: float | Missing) -> str:
    """A number with four significant digits and groups of three; a missing one says n/a."""
    if isinstance(value, Missing):
        return "n/a"
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if not -4 <= magnitude < 7:
        return f"{value:.3e}"
    return f"{value:,.{max(3 - magnitude, 0)}f}".replace(",", " ")


def readable_unit(value: float, unit: str) -> tuple[float, str]:
    """(factor, unit) that bring a value of `unit` between 1 and 1000 where the unit is seconds; else (1, unit)."""
    if unit != "s" or value <= 0:
        return 1.0, unit
    size, name = next(((size, name) for size, name in _SECONDS if value >= size), _SECONDS[-1])
    return 1 / size, name


def percent(fraction: float | Missing) -> str:
    """A fraction as a percentage with one decimal."""
    return "n/a" if isinstance(fraction, Missing) else f"{100 * fraction:.1f} %"


def span(seconds: float | Missing) -> str:
    """A duration as a person would say it."""
    if isinstance(seconds, Missing):
        return "n/a"
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 100 else f"{minutes / 60:.1f} h"
