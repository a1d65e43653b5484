"""Spans and instants of a run, from its anchors; a clock that was set and a damaged journal are told, not hidden."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Literal

from engine.events import Anchor
from engine.values import Missing, Reading


def run_seconds(first: Anchor, latest: Anchor, t: float) -> Reading:
    """From the `first` anchor to `t`, a time after the `latest` one.

    By the monotonic clock in one boot, by the wall clock across boots.
    """
    if first.boot_id == latest.boot_id:
        return span(t - first.monotonic_s)
    return span(latest.wall_s + (t - latest.monotonic_s) - first.wall_s)


def span(seconds: float) -> Reading:
    """A length of time, which is never negative."""
    return seconds if 0 <= seconds < math.inf else Missing("the clock went backwards")


def utc(wall_s: float, timespec: Literal["seconds", "milliseconds"] = "seconds") -> str:
    """ISO 8601 in UTC; what no calendar knows is said so."""
    try:
        return datetime.fromtimestamp(wall_s, timezone.utc).isoformat(timespec=timespec)
    except (OverflowError, ValueError, OSError):
        return f"{wall_s:g} s after 1970, which is no date"
