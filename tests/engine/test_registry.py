"""Discovery of scenarios, and how they and their parameters are named."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import registry
from engine.errors import AibenchError
from engine.plan import ScenarioChoice
from tests.engine.plan_cases import FAKES, assert_one_line, find_fake

SCENARIO = """
from engine.worker.card import Card, Variant
CARD = Card(id="{id}", title="t", measures="m", metrics=(), parameters=(), frameworks=("python",),
            depends_on="d", source="s")
def variants(parameters, device_kind):
    return [Variant("only")]
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An importable, empty package of scenarios, in a folder of its own."""
    name = f"scenarios_{abs(hash(request.node.nodeid))}"
    root = tmp_path / name
    root.mkdir()
    (root / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield root
    for module in [module for module in sys.modules if module.split(".")[0] == name]:
        del sys.modules[module]


def add(root: Path, name: str, text: str) -> None:
    path = root / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    (path.parent / "__init__.py").touch()
    path.write_text(text, encoding="utf-8")


def test_every_module_with_a_card_is_a_scenario_and_its_helpers_are_not(package: Path) -> None:
    add(package, "disk/read", SCENARIO.format(id="disk/read"))
    add(package, "compute/matmul", SCENARIO.format(id="compute/matmul"))
    add(package, "compute/shapes", "SHAPES = [1]\n")
    found = registry.discover(package.name)
    assert list(found) == ["compute/matmul", "disk/read"]
    assert found["disk/read"].variants({}, "cpu")[0].name == "only"


def test_an_empty_package_has_no_scenarios_and_says_so(package: Path) -> None:
    with pytest.raises(AibenchError, match="none is installed"):
        registry.pick(registry.discover(package.name), "gemm")


def test_a_card_with_a_foreign_id_is_refused(package: Path) -> None:
    add(package, "disk/read", SCENARIO.format(id="disk/write"))
    with pytest.raises(AibenchError, match="scenario disk/read says its id is 'disk/write'; set it to 'disk/read'"):
        registry.discover(package.name)


def test_full_ids_and_last_parts_name_a_scenario() -> None:
    assert find_fake("alpha/mul") is FAKES["alpha/mul"]
    assert find_fake("mul") is FAKES["alpha/mul"]
    assert find_fake("beta/copy") is FAKES["beta/copy"]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("copy", "scenario: 'copy' is ambiguous; say which: alpha/copy, beta/copy"),
        ("mull", "scenario: 'mull' is not known; did you mean 'mul'? there are: alpha/mul, alpha/copy, beta/copy"),
        ("", "scenario: '' is not known; there are: "),
        ("alpha", "scenario: 'alpha' is not known; "),
        ("a\x1b[2J\n" + "x" * 9999, "scenario: 'a"),
    ],
)
def test_a_name_that_is_not_one_scenario_is_refused_with_the_list(name: str, line: str) -> None:
    with pytest.raises(AibenchError) as caught:
        find_fake(name)
    assert str(caught.value).startswith(line)
    assert_one_line(caught.value)


def test_variants_come_in_the_plans_order() -> None:
    choices = (ScenarioChoice("mul", {"size": [3, 2]}), ScenarioChoice("idle"))
    found = registry.plan_variants(choices, "cuda", find=find_fake)
    assert [(card.id, variant.name) for card, variant in found] == [
        ("alpha/mul", "size 3"),
        ("alpha/mul", "size 2"),
        ("beta/idle", "size 1"),
    ]


@pytest.mark.parametrize(
    ("choices", "line"),
    [
        (
            (ScenarioChoice("mul", {"sise": 1}),),
            "plan: scenario[0].parameters.sise: unknown parameter; did you mean 'size'? alpha/mul takes: size",
        ),
        (
            (ScenarioChoice("mul"), ScenarioChoice("idle", {"size": "big"})),
            "plan: scenario[1].parameters: size: 'big' is not allowed; allowed: whole numbers",
        ),
        (
            (ScenarioChoice("mul"), ScenarioChoice("alpha/mul", {"size": [2, 1]})),
            "plan: scenario[1]: gives alpha/mul 'size 1' again; each variant may come once; remove one of them",
        ),
        (
            (ScenarioChoice("mule"),),
            (
                "plan: scenario[0].id: scenario: 'mule' is not known; did you mean 'mul'? "
                "there are: alpha/mul, alpha/copy, beta/copy, beta/idle"
            ),
        ),
    ],
)
def test_a_choice_that_no_scenario_takes_is_refused(choices: tuple[ScenarioChoice, ...], line: str) -> None:
    with pytest.raises(AibenchError) as caught:
        registry.plan_variants(choices, "cpu", find=find_fake)
    assert str(caught.value) == line


def test_a_scenario_cannot_change_the_plan_through_a_list() -> None:
    choice = ScenarioChoice("mul", {"size": [1, 2]})
    found = registry.plan_variants((choice,), "cpu", find=find_fake)
    found[0][1].parameters["size"] = 99
    assert choice.parameters == {"size": [1, 2]}


def test_the_programs_own_scenarios_have_variants_on_every_device_kind() -> None:
    assert set(registry.scenarios()) >= {"compute/gemm", "memory/stream", "harness/floor"}
    for name, module in registry.scenarios().items():
        for kind in ("cpu", "cuda"):
            names = [variant.name for variant in module.variants({}, kind)]
            assert names, (name, kind)
            assert len(set(names)) == len(names), (name, kind)
