"""The scenarios there are: every module with a card in the `scenarios` tree. A new file there is a new scenario."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Protocol, cast

from engine.errors import AibenchError
from engine.plan import Parameter, ScenarioChoice
from engine.schema import join, nearest, refusal, shown
from engine.text import clean
from engine.worker.card import BadParameter, Card, Value, Variant


class ScenarioModule(Protocol):
    """What the engine needs of a scenario's module; its bodies are for the worker alone."""

    @property
    def CARD(self) -> Card:  # noqa: N802 - the module's constant
        """What it measures."""
        ...

    def variants(self, parameters: dict[str, Value], device_kind: str) -> list[Variant]:
        """The points that `parameters` ask for on a device kind ("cpu", "cuda"). Raises BadParameter."""
        ...


Find = Callable[[str], ScenarioModule]
"""How a scenario is found by name: `find`, or a test's own."""


@functools.lru_cache(maxsize=8)
def discover(package: str) -> Mapping[str, ScenarioModule]:
    """The scenarios of a package by id, in order of id; modules without a CARD are their helpers.

    Raises AibenchError (code 2) where a card's id is not its folder and file, since a trial is started by that id.
    """
    found = {name: module for name, module in _modules(package) if hasattr(module, "CARD")}
    for name, module in found.items():
        if module.CARD.id != name:
            raise AibenchError(f"scenario {name} says its id is {shown(module.CARD.id)}", f"set it to '{name}'")
    return {name: cast("ScenarioModule", found[name]) for name in sorted(found)}


def _modules(package: str) -> Iterator[tuple[str, ModuleType]]:
    """Every module of a package's folders with its id, folder/name."""
    root = importlib.import_module(package)
    for info in pkgutil.walk_packages(root.__path__, f"{package}."):
        if not info.ispkg:
            yield info.name[len(package) + 1 :].replace(".", "/"), importlib.import_module(info.name)


def scenarios() -> Mapping[str, ScenarioModule]:
    """Every scenario of this program by its id, in order of id."""
    return discover("scenarios")


def find(name: str) -> ScenarioModule:
    """The scenario with this full id or last part.

    Raises AibenchError (code 2) with the nearest name and the list, where there is none or more than one.
    """
    return pick(scenarios(), name)


def pick(among: Mapping[str, ScenarioModule], name: str) -> ScenarioModule:
    """`find` in any set of scenarios."""
    matches = [key for key in among if name in (key, key.rpartition("/")[2])]
    if name in among:
        return among[name]
    if len(matches) == 1:
        return among[matches[0]]
    if matches:
        raise refusal("scenario", "", f"{shown(name)} is ambiguous", f"say which: {', '.join(matches)}")
    words = [*among, *(key.rpartition("/")[2] for key in among)]
    there = ", ".join(among) or "none is installed"
    raise refusal("scenario", "", f"{shown(name)} is not known", f"{nearest(name, words)}there are: {there}")


def plan_variants(
    choices: Sequence[ScenarioChoice], device_kind: str, *, what: str = "plan", find: Find = find
) -> list[tuple[Card, Variant]]:
    """Every variant that a plan's scenarios give on a device kind, in the plan's order.

    Raises AibenchError (code 2) for an unknown scenario or parameter, a value its scenario cannot take, and a variant
    that comes twice: its trials could not be told apart.
    """
    found: list[tuple[Card, Variant]] = []
    seen: set[tuple[str, str]] = set()
    for index, choice in enumerate(choices):
        card, variants = _choice_variants(choice, device_kind, what, f"scenario[{index}]", find)
        for variant in variants:
            if (card.id, variant.name) in seen:
                problem = f"gives {card.id} {shown(variant.name)} again"
                raise refusal(what, f"scenario[{index}]", problem, "each variant may come once; remove one of them")
            seen.add((card.id, variant.name))
            found.append((card, variant))
    return found


def _choice_variants(
    choice: ScenarioChoice, device_kind: str, what: str, path: str, find: Find
) -> tuple[Card, list[Variant]]:
    try:
        module = find(choice.id)
    except AibenchError as error:
        raise refusal(what, f"{path}.id", error.what, error.do) from None
    _check_keys(module.CARD, choice.parameters, what, f"{path}.parameters")
    try:
        return module.CARD, module.variants(_values(choice.parameters), device_kind)
    except BadParameter as error:
        raise refusal(what, f"{path}.parameters", clean(str(error), 240)) from None


def _check_keys(card: Card, parameters: Mapping[str, Parameter], what: str, path: str) -> None:
    allowed = [parameter.name for parameter in card.parameters]
    for key in parameters:
        if key not in allowed:
            do = f"{nearest(key, allowed)}{card.id} takes: {', '.join(allowed) or 'no parameter'}"
            raise refusal(what, join(path, key), "unknown parameter", do)


def _values(parameters: Mapping[str, Parameter]) -> dict[str, Value]:
    """Parameters as a scenario may take them: its own copies, so that no scenario can change the plan."""
    return {key: list(value) if isinstance(value, list) else value for key, value in parameters.items()}
