"""The presets are plans like any other, and the node can run them."""

from __future__ import annotations

import pytest

from engine.errors import AibenchError
from engine.plan_file import check_plan, dump_plan, parse_plan, plan_template
from engine.presets import preset, preset_names
from engine.schedule import estimate_s, expand
from tests.engine.plan_cases import CPU, assert_one_line, device


def test_quick_runs_gemm_and_stream_once_with_their_defaults() -> None:
    plan = preset("quick")
    assert [choice.id for choice in plan.scenarios] == ["compute/gemm", "memory/stream"]
    assert all(not choice.parameters for choice in plan.scenarios)
    assert (plan.repetition.repeat, plan.repetition.seconds) == (1, 1.0)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_a_plan_that_says_its_own_name_and_reads_back(name: str) -> None:
    plan = preset(name)
    assert plan.name == name
    assert parse_plan(dump_plan(plan), name) == plan


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_passes_the_check_and_gives_trials_on_cpu_and_accelerator(name: str) -> None:
    plan = preset(name)
    check_plan(plan)
    assert parse_plan(plan_template(plan), name) == plan
    for found in (CPU, device(0)):
        trials = expand(plan, [found], "torch")
        assert trials
        assert estimate_s(plan, trials) > 0


@pytest.mark.parametrize("name", ["quik", "", "../quick", "quick.toml", "\x1b[2J" * 99])
def test_a_preset_that_is_not_there_is_refused_with_the_list(name: str) -> None:
    with pytest.raises(AibenchError, match=r"^there is no preset .*there are: floor, quick$") as caught:
        preset(name)
    assert_one_line(caught.value)
