"""What the measuring itself costs: a call that does nothing, timed through the very same path as every other one."""

from __future__ import annotations

from collections.abc import Mapping

from engine.worker.adapters.base import Adapter
from engine.worker.card import Card, Metric, Scalar, Value, Variant, chosen
from engine.worker.work import Kernel, Work

MAX_SECONDS = 0.05

CARD = Card(
    id="harness/floor",
    title="Cost of measuring",
    measures="the time that one timed call takes when it does nothing; no figure below it means anything",
    metrics=(
        Metric(
            name="call_overhead",
            unit="s",
            better="lower",
            work_unit="call",
            scale=0.0,
            counting="one call of an empty Python function, with the loop around it; calls are timed in groups",
        ),
    ),
    parameters=(),
    frameworks=("python",),
    depends_on="the interpreter and the processor's clock",
    source="the harness row of bucketbench (estesp/bucketbench), which runs an empty command to show its own ceiling",
    seconds=0.1,
)


def variants(parameters: Mapping[str, Value], device_kind: str) -> list[Variant]:
    """The one variant there is. Raises BadParameter for any parameter."""
    chosen(CARD, parameters, device_kind)
    return [Variant("no-op")]


def _nothing() -> None:
    """The work."""


def _check(rounds: int) -> dict[str, Scalar]:
    return {}


def prepare(parameters: Mapping[str, Value], adapter: Adapter, seed: int) -> Work:
    """A call that does nothing."""
    return Work((Kernel("call_overhead", _nothing, 1.0),), _check, max_seconds=MAX_SECONDS)
