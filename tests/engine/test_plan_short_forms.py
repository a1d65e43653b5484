"""The command line's short forms of environments and devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import AibenchError
from engine.plan import Environment
from engine.schedule import parse_devices, parse_environment
from tests.engine.plan_cases import assert_one_line


def test_the_short_form_of_an_environment_is_one_environment_table() -> None:
    assert parse_environment("podman,cpus=0.5,memory=2g,name=half") == Environment(
        kind="podman", cpus=0.5, memory="2g", name="half"
    )
    assert parse_environment("bare") == Environment()
    assert parse_environment("docker, cpuset=0-3,8,11 ,image=a/b:1") == Environment(
        kind="docker", cpuset="0-3,8,11", image="a/b:1"
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "--env : kind: '' is not allowed; allowed: bare, podman, docker, nerdctl"),
        (
            "podmann",
            (
                "--env podmann: kind: 'podmann' is not allowed; did you mean 'podman'? "
                "allowed: bare, podman, docker, nerdctl"
            ),
        ),
        (
            "podman,cpu=1",
            (
                "--env podman,cpu=1: cpu: unknown key; did you mean 'cpus'? "
                "allowed: kind, name, image, cpus, memory, cpuset, shm, network"
            ),
        ),
        ("podman,cpus=lots", "--env podman,cpus=lots: cpus: 'lots' is not allowed; allowed: a number, 0 to 4096"),
        ("podman,cpus=nan", "--env podman,cpus=nan: cpus: nan is not allowed; allowed: finite numbers"),
        ("podman,half", "--env podman,half: 'half' is no key=value; such as podman,cpus=0.5,memory=2g,name=half"),
        ("podman,name=a,name=b", "--env podman,name=a,name=b: 'name' is given twice; name each key once"),
        (
            "bare,cpus=1",
            (
                "--env bare,cpus=1: a bare environment takes no cpus; "
                "use kind podman, docker or nerdctl, or leave it out"
            ),
        ),
        ("podman,cpuset=8-1", "--env podman,cpuset=8-1: cpuset: '8-1' runs backwards; such as 1-8"),
    ],
)
def test_a_wrong_short_form_is_refused(text: str, line: str) -> None:
    with pytest.raises(AibenchError) as caught:
        parse_environment(text)
    assert str(caught.value) == line


@given(st.text(max_size=200))
def test_any_text_as_an_environment_is_one_or_one_line(text: str) -> None:
    try:
        environment = parse_environment(text)
    except AibenchError as error:
        assert_one_line(error)
    else:
        assert environment.label.isprintable()


def test_device_lists_are_split_and_duplicates_removed() -> None:
    assert parse_devices("0, 1,0") == ("0", "1")
    assert parse_devices("auto") == ("auto",)


@pytest.mark.parametrize("text", ["", " , ", "0,a b", "x\x1b[2J", "-1", ",".join(str(n) for n in range(300))])
def test_a_device_list_that_cannot_be_one_is_refused(text: str) -> None:
    with pytest.raises(AibenchError, match=r"^--devices: ") as caught:
        parse_devices(text)
    assert_one_line(caught.value)
