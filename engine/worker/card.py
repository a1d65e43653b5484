"""A scenario's card: what it measures, in which unit, with which parameters, and where its method comes from.

Standard library only: the card is read by the engine and travels to the worker with its scenario.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Union

Scalar = Union[bool, int, float, str]
Value = Union[Scalar, "list[Scalar]"]
Frameworks = Literal["torch", "jax", "python"]


@dataclass(frozen=True)
class Metric:
    """One figure of a scenario. rate = work / duration / scale; `counting` says exactly what is counted as work."""

    name: str
    unit: str
    better: Literal["higher", "lower"]
    work_unit: str
    scale: float
    counting: str


@dataclass(frozen=True)
class Parameter:
    """One knob: its meaning, the default per device kind ("" is every other kind), and what is allowed.

    `allowed` is a list of values for a closed set, or empty; then `form` says in words what a value looks like.
    """

    name: str
    meaning: str
    defaults: dict[str, Value]
    allowed: tuple[Scalar, ...] = ()
    form: str = ""

    def default(self, device_kind: str) -> Value:
        """The default for a device kind ("cpu", "cuda")."""
        return self.defaults.get(device_kind, self.defaults[""])


@dataclass(frozen=True)
class Card:
    """Everything about a scenario but its code.

    `id` is folder/name. `frameworks` are the bodies it has; "python" needs no framework. `seconds` is what a trial
    takes beside its measured time, for the plan's estimate.
    """

    id: str
    title: str
    measures: str
    metrics: tuple[Metric, ...]
    parameters: tuple[Parameter, ...]
    frameworks: tuple[Frameworks, ...]
    depends_on: str
    source: str
    seconds: float = 10.0


@dataclass(frozen=True)
class Variant:
    """One point of a scenario's parameters, run by one fresh process, such as "bf16 8192x8192x8192"."""

    name: str
    parameters: dict[str, Value] = field(default_factory=dict)


class BadParameter(ValueError):
    """A parameter's value that a scenario cannot take; the text names key, value and what is allowed."""


def chosen(card: Card, given: Mapping[str, Value], device_kind: str) -> dict[str, list[Scalar]]:
    """Every parameter of a card as a list: what was given, else its default for this kind of device.

    Raises BadParameter for a key that the card does not have, an empty list, and a value outside a closed set.
    """
    known = {parameter.name: parameter for parameter in card.parameters}
    for key in given:
        if key not in known:
            raise BadParameter(f"{card.id} has no parameter {key!r}; it has: {', '.join(known) or 'none'}")
    return {name: _values(card, known[name], given.get(name, known[name].default(device_kind))) for name in known}


def _values(card: Card, parameter: Parameter, value: Value) -> list[Scalar]:
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    allowed = ", ".join(str(one) for one in parameter.allowed) or parameter.form
    if not values:
        raise BadParameter(f"{card.id}: {parameter.name} is empty; allowed: {allowed}")
    for one in values:
        if parameter.allowed and one not in parameter.allowed:
            raise BadParameter(f"{card.id}: {parameter.name} has {one!r}; allowed: {allowed}")
    return values
