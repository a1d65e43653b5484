"""Plans as files: what is read, what comes back, and the line for everything that is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import AibenchError
from engine.plan import Environment, Output, Plan, Repetition, ScenarioChoice, Target
from engine.plan_file import check_plan, dump_plan, load_plan, parse_plan, plan_template
from tests.engine.plan_cases import assert_one_line, find_fake

FULL = """
schema = 1
name = "node-check.1"
on_owner_exit = "continue"
hard_end_s = 3600
[target]
devices = ["cpu", "GPU-0"]
framework = "jax"
python = "/usr/bin/python3"
[[environment]]
kind = "bare"
[[environment]]
kind = "podman"
name = "half"
image = "docker.io/library/debian:12"
cpus = 0.5
memory = "2g"
cpuset = "0-3,8"
shm = "512m"
network = "none"
[[scenario]]
id = "mul"
parameters = { size = [1, 2] }
[[scenario]]
id = "beta/copy"
[repetition]
repeat = 6
seconds = 1.5
seed = 9223372036854775807
trial_timeout_s = 60
[output]
folder = "/tmp/out"
json = true
"""

LIMITS = {"image": "docker.io/library/debian:12", "cpus": 0.5, "memory": "2g", "cpuset": "0-3,8", "shm": "512m"}
FULL_PLAN = Plan(
    name="node-check.1",
    target=Target(("cpu", "GPU-0"), "jax", "/usr/bin/python3"),
    environments=(
        Environment(),
        msgspec.convert({"kind": "podman", "name": "half", "network": "none", **LIMITS}, Environment),
    ),
    scenarios=(ScenarioChoice("mul", {"size": [1, 2]}), ScenarioChoice("beta/copy")),
    repetition=Repetition(6, 1.5, 2**63 - 1, 60.0),
    output=Output("/tmp/out", True),
    on_owner_exit="continue",
    hard_end_s=3600.0,
)


def refused(text: str) -> str:
    """The line for a plan that the loader refuses."""
    with pytest.raises(AibenchError) as caught:
        parse_plan(text, "plan.toml")
    assert_one_line(caught.value)
    return str(caught.value)


def test_every_key_is_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(FULL, encoding="utf-8")
    assert load_plan(path) == FULL_PLAN
    check_plan(FULL_PLAN, find=find_fake)


def test_an_empty_plan_is_all_defaults() -> None:
    assert parse_plan("", "plan.toml") == Plan()


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)
NUMBERS = st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.booleans() | NUMBERS | NAMES
CHOICES = st.builds(
    ScenarioChoice,
    id=NAMES,
    parameters=st.dictionaries(NAMES, SCALARS | st.lists(SCALARS, min_size=1, max_size=4), max_size=3),
)
ENVIRONMENTS = st.builds(
    Environment,
    kind=st.sampled_from(["podman", "docker", "nerdctl"]),
    name=NAMES,
    image=st.sampled_from(["", "debian:12", "r.io/a/b@sha256:00"]),
    cpus=st.floats(0, 4096),
    memory=st.sampled_from(["", "2g", "1048576"]),
    cpuset=st.sampled_from(["", "0", "0-3,8"]),
    network=st.sampled_from(["host", "none"]),
)
PLANS = st.builds(
    Plan,
    name=NAMES,
    target=st.builds(Target, devices=st.lists(NAMES, min_size=1, max_size=3).map(tuple)),
    environments=st.lists(ENVIRONMENTS, min_size=1, max_size=3).map(tuple),
    scenarios=st.lists(CHOICES, max_size=3).map(tuple),
    repetition=st.builds(
        Repetition,
        repeat=st.integers(1, 1000),
        seconds=st.floats(0, 3600, exclude_min=True),
        seed=st.integers(0, 2**63 - 1),
    ),
    on_owner_exit=st.sampled_from(["stop", "continue"]),
)


@given(PLANS)
def test_what_is_written_reads_back_the_same(plan: Plan) -> None:
    text = dump_plan(plan)
    assert parse_plan(text, "plan.toml") == plan
    assert dump_plan(parse_plan(text, "plan.toml")) == text


def test_the_template_reads_back_the_same_and_explains_every_key() -> None:
    text = plan_template(FULL_PLAN, find=find_fake)
    assert parse_plan(text, "plan.toml") == FULL_PLAN
    keys = [line for line in text.splitlines() if " = " in line]
    assert all("  # " in line for line in keys)
    for key in ("hard_end_s", "devices", "cpuset", "size", "trial_timeout_s", "json"):
        assert any(line.removeprefix("# ").startswith(f"{key} = ") for line in keys), key


def test_a_template_shows_what_is_not_set_as_a_comment_that_holds_when_uncommented() -> None:
    plan = Plan(environments=(Environment(kind="podman"),), scenarios=(ScenarioChoice("mul"),))
    text = plan_template(plan, find=find_fake)
    assert '# memory = ""  # memory limit; empty: none' in text
    assert "# size = 1  # how large: a whole number" in text
    head, _, rest = text.partition("[target]")
    uncommented = head + "[target]" + rest.replace("\n# ", "\n")
    assert parse_plan(uncommented, "plan.toml").scenarios == (ScenarioChoice("mul", {"size": 1}),)


TABLES = "allowed: an array of tables, each under [[...]], 1 to 16 long"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[repetition]\nrepeats = 3",
            (
                "plan.toml: repetition.repeats: unknown key; did you mean 'repeat'? "
                "allowed: repeat, seconds, seed, trial_timeout_s"
            ),
        ),
        (
            "[repetition]\nrepeat = 0",
            "plan.toml: repetition.repeat: 0 is not allowed; allowed: a whole number, 1 to 1000",
        ),
        (
            "[repetition]\nrepeat = true",
            "plan.toml: repetition.repeat: true is not allowed; allowed: a whole number, 1 to 1000",
        ),
        (
            '[repetition]\nseconds = "2"',
            "plan.toml: repetition.seconds: '2' is not allowed; allowed: a number, above 0 to 3600",
        ),
        (
            "[repetition]\nseconds = 0",
            "plan.toml: repetition.seconds: 0 is not allowed; allowed: a number, above 0 to 3600",
        ),
        (
            "[repetition]\nseed = -1",
            "plan.toml: repetition.seed: -1 is not allowed; allowed: a whole number, 0 to 9223372036854775807",
        ),
        (
            '[[environment]]\nkind = "podmn"',
            (
                "plan.toml: environment[0].kind: 'podmn' is not allowed; did you mean 'podman'? "
                "allowed: bare, podman, docker, nerdctl"
            ),
        ),
        (
            '[[environment]]\n[[environment]]\nkind = "podman"\nmemory = "two gigs"',
            (
                "plan.toml: environment[1].memory: 'two gigs' is not allowed; "
                "allowed: a whole number of bytes, or one with b, k, m or g, such as 2g or 512m"
            ),
        ),
        (
            "environment = []",
            f"plan.toml: environment: an array of 0 is not allowed; {TABLES}",
        ),
        (
            "environment = 3",
            f"plan.toml: environment: 3 is not allowed; {TABLES}",
        ),
        (
            "[environment]\nkind = 'bare'",
            f"plan.toml: environment: a table is not allowed; {TABLES}",
        ),
        ("target = 3", "plan.toml: target: 3 is not allowed; allowed: a table"),
        (
            "[target]\ndevices = ['a b']",
            ("plan.toml: target.devices[0]: 'a b' is not allowed; allowed: auto, cpu, an index, or a UUID"),
        ),
        ("[[scenario]]", "plan.toml: scenario[0]: key 'id' is missing; allowed: id, parameters"),
        (
            "[[scenario]]\nid = 'x'\nparameters = { when = 2026-01-01 }",
            (
                "plan.toml: scenario[0].parameters.when: 2026-01-01 is not allowed; "
                "allowed: true or false or a whole number or a number or a string or an array, 1 to 64 long"
            ),
        ),
        (
            "[[scenario]]\nid = 'x'\nparameters = { m = [1, [2]] }",
            (
                "plan.toml: scenario[0].parameters.m[1]: an array of 1 is not allowed; "
                "allowed: true or false or a whole number or a number or a string"
            ),
        ),
        (
            "schema = 2\nfuture = true",
            (
                "plan.toml: schema: 2 is newer than this program knows (1); "
                "use a newer aibench-tui, or make a plan with 'aibench-tui plan init'"
            ),
        ),
        ("schema = 0", "plan.toml: schema: 0 is not allowed; allowed: a whole number, 1 to 1"),
        ("schema = '1'", "plan.toml: schema: '1' is not allowed; allowed: a whole number, 1 to 1"),
        (
            "name = '../../etc'",
            (
                "plan.toml: name: '../../etc' is not allowed; "
                "allowed: 1 to 64 of A-Z a-z 0-9 . _ -, with a letter or digit first"
            ),
        ),
        (
            "[[scenario]]\nid = 'x'\nparameters = { n = 9223372036854775808 }",
            (
                "plan.toml: scenario[0].parameters.n: 9223372036854775808 is not allowed; "
                "allowed: whole numbers to 9223372036854775807"
            ),
        ),
        (
            "[[environment]]\nkind = 'podman'\nimage = '--privileged'",
            (
                "plan.toml: environment[0].image: '--privileged' "
                "is not allowed; allowed: an image reference such as docker.io/library/debian:12"
            ),
        ),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_is_allowed(text: str, line: str) -> None:
    assert refused(text) == line


def test_a_number_that_is_not_finite_is_refused() -> None:
    for value in ("inf", "-inf", "nan", "1e999"):
        assert "plan.toml" in refused(f"[repetition]\nseconds = {value}")


def test_a_control_character_in_a_file_becomes_visible() -> None:
    assert parse_plan('[target]\npython = "a\\u001b[2J"', "plan.toml").target.python == "a␛[2J"


def test_the_end_of_a_long_file_name_is_kept(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 200) / "the-plan.toml"
    path.parent.mkdir()
    path.write_text("x = 1", encoding="utf-8")
    with pytest.raises(AibenchError, match=r"^….*/the-plan\.toml: x: unknown key; ") as caught:
        load_plan(path)
    assert_one_line(caught.value)


def test_a_plan_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(AibenchError, match="missing") as caught:
        load_plan(tmp_path / "missing.toml")
    assert_one_line(caught.value)


def test_a_folder_or_a_pipe_given_as_a_plan_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(AibenchError) as caught:
            load_plan(path)
        assert_one_line(caught.value)


BARE = Plan(scenarios=(ScenarioChoice("mul"),))


def changed(**fields: Any) -> Plan:
    return msgspec.structs.replace(BARE, **fields)


def arms(*environments: Environment) -> Plan:
    return changed(environments=environments)


@pytest.mark.parametrize(
    ("plan", "line"),
    [
        (
            changed(scenarios=()),
            "flags: no scenario is chosen; add a [[scenario]] with an id, or use --scenario",
        ),
        (
            changed(repetition=Repetition(repeat=1001)),
            ("flags: repetition.repeat: 1001 is not allowed; allowed: a whole number, 1 to 1000"),
        ),
        (
            changed(repetition=Repetition(seconds=float("nan"))),
            ("flags: repetition.seconds: nan is not allowed; allowed: finite numbers"),
        ),
        (
            changed(target=Target(python="a\x1b[2J")),
            ("flags: target.python: 'a\\x1b[2J' holds control or invisible characters, or over 4096; remove them"),
        ),
        (
            changed(name="a/b"),
            ("flags: name: 'a/b' is not allowed; allowed: 1 to 64 of A-Z a-z 0-9 . _ -, with a letter or digit first"),
        ),
        (
            changed(repetition=Repetition(seconds=300.0)),
            (
                "flags: repetition.trial_timeout_s: 300 s is no longer than repetition.seconds; "
                "every trial would time out; raise it"
            ),
        ),
        (
            arms(Environment(), Environment(kind="podman", name="bare")),
            "flags: environment[1].name: 'bare' names an earlier environment too; give each a name of its own",
        ),
        (
            arms(Environment(cpus=2.0, image="debian:12")),
            (
                "flags: environment[0]: a bare environment takes no image, cpus; "
                "use kind podman, docker or nerdctl, or leave it out"
            ),
        ),
        (arms(Environment(name=" a")), "flags: environment[0].name: ' a' is not allowed; allowed: printable text"),
        (
            arms(Environment(kind="podman", cpus=-1.0)),
            ("flags: environment[0].cpus: -1.0 is not allowed; allowed: a number, 0 to 4096"),
        ),
        (
            arms(Environment(kind="podman", cpus=0.001)),
            ("flags: environment[0].cpus: 0.001 is not allowed; allowed: 0.01 and more, or 0 for no limit"),
        ),
        (
            arms(Environment(kind="podman", cpuset="3-0")),
            ("flags: environment[0].cpuset: '3-0' runs backwards; such as 0-3"),
        ),
        (
            changed(scenarios=(ScenarioChoice("mul", {"sizes": 1}),)),
            "flags: scenario[0].parameters.sizes: unknown parameter; did you mean 'size'? alpha/mul takes: size",
        ),
        (
            changed(scenarios=(ScenarioChoice("mul", {"size": 1.5}),)),
            "flags: scenario[0].parameters: size: 1.5 is not allowed; allowed: whole numbers",
        ),
        (
            changed(scenarios=(ScenarioChoice("mul", {"size": 101}),), target=Target(("cpu",))),
            "flags: scenario[0].parameters: size: 101 is not allowed; allowed: whole numbers",
        ),
        (
            changed(
                scenarios=(ScenarioChoice("mul", {"size": list(range(21))}),),
                repetition=Repetition(repeat=1000),
            ),
            "flags: 21000 trials planned; at most 2400; lower repeat, or split the plan",
        ),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(plan: Plan, line: str) -> None:
    with pytest.raises(AibenchError) as caught:
        check_plan(plan, "flags", find=find_fake)
    assert_one_line(caught.value)
    assert str(caught.value) == line


def test_a_value_that_one_kind_of_device_takes_is_left_for_the_devices_that_are_found() -> None:
    check_plan(changed(scenarios=(ScenarioChoice("mul", {"size": 101}),)), find=find_fake)
