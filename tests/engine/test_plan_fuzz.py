"""Hostile and broken plans: each is a plan or one line, in bounded time, and never another exception.

A parser that took minutes or a process that died would show as the suite's time limit or as a crash.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import AibenchError
from engine.plan import Plan, ScenarioChoice
from engine.plan_file import check_plan, dump_plan, load_plan, parse_plan
from engine.registry import find
from tests.engine.plan_cases import assert_one_line, find_fake
from tests.engine.test_plan import FULL, FULL_PLAN, SCALARS

DATA = FULL.encode()


def outcome(path: Path, data: bytes) -> Plan | None:
    """The plan in a file that holds `data`, or None after one line that says why not."""
    path.write_bytes(data)
    try:
        plan = load_plan(path)
    except AibenchError as error:
        assert_one_line(error)
        return None
    assert parse_plan(dump_plan(plan), "again") == plan
    try:
        check_plan(plan, find=find_fake)
    except AibenchError as error:
        assert_one_line(error)
    return plan


def test_a_plan_cut_at_every_byte_is_a_plan_or_one_line(tmp_path: Path) -> None:
    plans = [outcome(tmp_path / "plan.toml", DATA[:end]) for end in range(len(DATA) + 1)]
    assert plans[-1] == FULL_PLAN
    assert plans.count(None) > len(DATA) / 4


def test_a_plan_with_any_byte_flipped_is_a_plan_or_one_line(tmp_path: Path) -> None:
    coin = random.Random(20)
    refused = 0
    for place in range(len(DATA)):
        flipped = bytearray(DATA)
        flipped[place] ^= 1 << coin.randrange(8)
        refused += outcome(tmp_path / "plan.toml", bytes(flipped)) is None
    assert refused > len(DATA) / 4


def test_pieces_of_plans_put_together_anyhow_are_a_plan_or_one_line(tmp_path: Path) -> None:
    coin = random.Random(21)
    lines = [*DATA.splitlines(), b"\x00", b"\xff\xfe", b"x = nan", b"[[target]]", b"a.b.c = 1"]
    for _ in range(300):
        outcome(tmp_path / "plan.toml", b"\n".join(coin.choices(lines, k=12)))


@given(st.binary(max_size=300))
def test_random_bytes_are_one_line(data: bytes) -> None:
    with pytest.raises(AibenchError) as caught:
        parse_plan(f"{data.decode('utf-8', 'surrogateescape')}\n= broken", "bytes")
    assert_one_line(caught.value)


@given(st.text(max_size=100), st.text(max_size=100))
def test_any_key_with_any_value_is_a_plan_or_one_line(key: str, value: str) -> None:
    quoted = "".join(f"\\U{ord(letter):08x}" for letter in key if not 0xD800 <= ord(letter) < 0xE000)
    try:
        parse_plan(f'"{quoted}" = {value}', value)
    except AibenchError as error:
        assert_one_line(error)


@given(st.sampled_from(["gemm", "stream", "floor"]), st.data())
def test_any_parameter_of_the_real_scenarios_is_taken_or_one_line(name: str, data: st.DataObject) -> None:
    keys = [parameter.name for parameter in find(name).CARD.parameters] or ["none"]
    values = st.lists(SCALARS, max_size=4) | SCALARS | st.from_regex(r"[0-9]{1,8}(x[0-9]{1,8}){2}| ?[0-9]{1,8} ?[GM]iB")
    parameters = data.draw(st.dictionaries(st.sampled_from(keys), values))
    try:
        check_plan(Plan(scenarios=(ScenarioChoice(name, parameters),)))
    except AibenchError as error:
        assert_one_line(error)


DEEP = 100_000
HOSTILE = {
    "a key of 200 kB with dots": b".".join([b"a"] * 100_000) + b" = 1",
    "a key of 200 kB without": b"a" * 200_000 + b" = 1",
    "a quoted key of 200 kB": b'"' + b"\\u001b" * 33_000 + b'" = 1',
    "a header of 200 kB with dots": b"[" + b".".join([b"a"] * 100_000) + b"]",
    "dots with blanks around": b" . ".join([b"a"] * 50_000) + b" = 1",
    "quoted dots": b".".join([b'"a"'] * 50_000) + b" = 1",
    "deep arrays": b"a = " + b"[" * DEEP + b"]" * DEEP,
    "deep open arrays": b"a = " + b"[" * DEEP,
    "deep inline tables": b"a = " + b"{a = " * DEEP + b"1" + b"}" * DEEP,
    "many short deep keys": b"\n".join(b"a%d.b.c.d.e.f.g.h = 1" % n for n in range(20_000)),
    "many keys": b"\n".join(b"k%d = 1" % n for n in range(80_000)),
    "many headers": b"\n".join(b"[t%d]" % n for n in range(80_000)),
    "many environments": b"[[environment]]\n" * 60_000,
    "many scenarios": b"[[scenario]]\nid = 'mul'\n" * 40_000,
    "a list of 200 000": b"[[scenario]]\nid = 'mul'\nparameters = {size = [" + b"1," * 200_000 + b"]}",
    "a number of 500 000 digits": b"schema = " + b"9" * 500_000,
    "a hexadecimal number of 500 000 digits": b"schema = 0x" + b"f" * 500_000,
    "a fraction of 500 000 digits": b"hard_end_s = 1." + b"9" * 500_000,
    "an exponent of many digits": b"hard_end_s = 1e" + b"9" * 50_000,
    "a string of 500 000": b'name = "' + b"x" * 500_000 + b'"',
    "a string that never ends": b'name = """' + b"x\\\\" * 100_000,
    "a comment of 1 MB": b"# " + b"." * 1_000_000,
    "just under 1 MiB of blanks": b" " * ((1 << 20) - 1),
    "over 1 MiB": b"#" * ((1 << 20) + 1),
    "a newer plan with keys of its own": b"schema = 99\nfuture = {a = 1}",
    "UTF-16": FULL.encode("utf-16"),
    "zero bytes": bytes(10_000),
    "broken UTF-8": b"name = '\xc3'",
    "an escape for a surrogate": b'name = "\\ud800"',
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_hostile_plan_is_a_plan_or_one_line(name: str, tmp_path: Path) -> None:
    plan = outcome(tmp_path / "plan.toml", HOSTILE[name])
    harmless = ("a comment of 1 MB", "just under 1 MiB of blanks")
    assert (plan == Plan()) == (name in harmless)
