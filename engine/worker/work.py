"""What a scenario hands to the timing: the calls to time, how to check them, and the ways in which it can fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from engine.worker.card import Scalar

Cause = Literal["error", "unsupported", "incorrect", "out_of_memory", "protocol"]


class WorkerError(Exception):
    """A failure of a trial with a reason in one line; `cause` tells the runner what kind it is."""

    cause: ClassVar[Cause] = "error"


class Unsupported(WorkerError):
    """The device, the framework or its build cannot do this; nothing was measured and nothing was emulated."""

    cause = "unsupported"


class IncorrectResult(WorkerError):
    """The measured work gave a wrong result, so its speed means nothing."""

    cause = "incorrect"


class OutOfMemory(WorkerError):
    """The work does not fit; the text has the bytes that it needs and the bytes that are free."""

    cause = "out_of_memory"


class ProtocolError(WorkerError):
    """The runner's side of the protocol (spec, pong) is not what it should be."""

    cause = "protocol"


@dataclass(frozen=True)
class Kernel:
    """One metric's iteration: `call` enqueues it and does `work` of the metric's unit; in JAX it returns its result.

    Calling it twice in a row must leave the same state as calling it once: short calls are timed in groups.
    """

    metric: str
    call: Callable[[], object]
    work: float


@dataclass(frozen=True)
class Work:
    """A prepared trial. A round is one call of each kernel in turn.

    `check(rounds)` gets how many rounds ran since the preparation, warm-up included; it returns facts for the
    result and raises IncorrectResult. `max_seconds` caps the measuring budget of work that needs less.
    """

    kernels: tuple[Kernel, ...]
    check: Callable[[int], dict[str, Scalar]]
    facts: dict[str, Scalar] = field(default_factory=dict)
    max_seconds: float = math.inf
