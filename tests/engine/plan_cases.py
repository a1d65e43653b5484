"""Scenarios and devices of their own for the tests of plans and schedules."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import AibenchError
from engine.registry import ScenarioModule, pick
from engine.session import Device
from engine.text import clean
from engine.worker.card import BadParameter, Card, Frameworks, Metric, Parameter, Value, Variant


@dataclass(frozen=True)
class FakeScenario:
    """A scenario with one parameter, `size`, a whole number or a list of them; "cpu" refuses those above 100."""

    CARD: Card

    def variants(self, parameters: dict[str, Value], device_kind: str) -> list[Variant]:
        size = parameters.get("size", 1)
        sizes = size if isinstance(size, list) else [size]
        for item in sizes:
            if isinstance(item, bool) or not isinstance(item, int) or (device_kind == "cpu" and item > 100):
                raise BadParameter(f"size: {item!r} is not allowed; allowed: whole numbers")
        return [Variant(f"size {item}", {"size": item}) for item in sizes]


def fake_card(name: str, frameworks: tuple[Frameworks, ...] = ("torch", "jax"), seconds: float = 10.0) -> Card:
    """A card with one metric and the parameter `size`."""
    return Card(
        id=name,
        title=name,
        measures="nothing",
        metrics=(Metric("rate", "1/s", "higher", "call", 1.0, "one a call"),),
        parameters=(Parameter("size", "how large", {"": 1}, form="a whole number"),),
        frameworks=frameworks,
        depends_on="nothing",
        source="none",
        seconds=seconds,
    )


FAKES: dict[str, ScenarioModule] = {
    "alpha/mul": FakeScenario(fake_card("alpha/mul")),
    "alpha/copy": FakeScenario(fake_card("alpha/copy", seconds=3.0)),
    "beta/copy": FakeScenario(fake_card("beta/copy")),
    "beta/idle": FakeScenario(fake_card("beta/idle", frameworks=("python",))),
}


def find_fake(name: str) -> ScenarioModule:
    """`engine.registry.find` among the fakes."""
    return pick(FAKES, name)


def device(index: int, kind: str = "cuda", name: str = "NVIDIA H200") -> Device:
    """A device as discovery gives it: an accelerator from 0, or the CPU as -1."""
    uuid = "cpu" if kind == "cpu" else f"GPU-{index:08x}-1111-2222-3333-444444444444"
    return Device(device=uuid, index=index, kind=kind, name=name, facts={})


CPU = device(-1, "cpu", "a CPU")


def assert_one_line(error: AibenchError) -> None:
    """What every error owes a terminal, however hostile its cause."""
    text = str(error)
    assert error.code == 2
    assert 0 < len(text) <= 400, text
    assert clean(text) == text
