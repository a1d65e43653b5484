"""Facts with reasons: every reader of the probe gives a value or says why there is none."""

from __future__ import annotations

from collections.abc import Callable

from engine.telemetry.provider import DeviceLost, Unreadable
from engine.text import clean
from engine.values import Missing, Scalar

Fact = Scalar | Missing
Facts = dict[str, Fact]


def fact(read: Callable[[], Fact], source: str) -> Fact:
    """What `read` gives; strings are cleaned. Its failure becomes Missing with the reason; DeviceLost passes."""
    try:
        value = read()
    except DeviceLost:
        raise
    except Unreadable as error:
        return Missing(str(error), source)
    except Exception as error:  # vendors' bindings and odd kernels raise anything; one fact must not cost the others
        return Missing(clean(f"{type(error).__name__}: {error}", 300), source)
    return clean(value, 300) if isinstance(value, str) else value


def facts(source: str, readers: dict[str, Callable[[], Fact]]) -> Facts:
    """Several facts of one source."""
    return {name: fact(read, source) for name, read in readers.items()}
