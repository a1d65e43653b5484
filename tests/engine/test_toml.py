from __future__ import annotations

from pathlib import Path

import pytest
import tomli

from engine import toml
from engine.errors import AibenchError
from engine.toml import parse_toml, read_toml


def test_a_document() -> None:
    assert parse_toml('a.b = 1\n"c.d" = [1.5, "x"]\n', what="it") == {"a": {"b": 1}, "c.d": [1.5, "x"]}


def test_strings_and_keys_come_out_clean() -> None:
    assert parse_toml('"\\u202Ek" = "a\\u001B[2J"', what="it") == {"\ufffdk": "a␛[2J"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = \n", "line 1"),
        ("a = 1\nb = [1\n", "it is not valid TOML"),
        ("a = inf", "a is inf"),
        ("[[t]]\nx = [1, nan]", "t[0].x[1] is nan"),
        ("a" + ".a" * 17 + " = 1", "more than 16 dots at line 1"),
        ("x = '''\n.......\n'''\n[" + '"a" . ' * 17 + "b]", "more than 16 dots at line 4"),
        ("x = {" + "a." * 17 + "b = 1}", "more than 16 dots"),
        ("a = " + "[" * 40 + "]" * 40, "nests more than 32 levels"),
        ("a = " + "[" * 100_000, "nests more than 32 levels"),
        ("a = " + "{a=" * 100_000, "nests more than 32 levels"),
        ("a = " + "1" * 5000, "it is not valid TOML"),
        ("a = 1\na = 2", "it is not valid TOML"),
    ],
)
def test_what_is_refused_is_named(text: str, words: str) -> None:
    with pytest.raises(AibenchError) as caught:
        parse_toml(text, what="it")
    assert caught.value.code == 2
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        'a = "' + "." * 100 + '"',
        "a = '" + "." * 100 + "' # " + "." * 100,
        'a = """' + "." * 100 + "\n" + '"" ' + "." * 100 + '"""',
        "a = '''" + "." * 100 + "\n'' '''",
        "a = [" + "1.5, " * 100 + "]",
        "a" + ".a" * 16 + " = 1",
        '"' + "." * 100 + '" = 1',
        'a = "\\"' + "." * 100 + '"',
    ],
)
def test_dots_elsewhere_than_in_keys_are_no_matter(text: str) -> None:
    assert parse_toml(text, what="it")


@pytest.mark.parametrize("unit", ['"', "'", '"""', "'''", '\\"', '"\\', "a.", '"a".', "'.", "#.", "[."])
def test_the_dot_check_takes_time_in_proportion(unit: str) -> None:
    text = "x" + "." * 20 + unit * 200_000  # a quadratic scan would run into the suite's timeout
    for document in (text, 'a = """' + text):
        with pytest.raises(AibenchError):
            parse_toml(document, what="it")


def test_the_parser_of_python_3_10_is_bounded_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toml, "tomllib", tomli)
    for text in ("a = " + "[" * 100_000, "a = " + "{a=" * 100_000):
        with pytest.raises(AibenchError, match="nests more than 32 levels"):
            parse_toml(text, what="it")


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\n")  # some editors begin with a byte order mark
    assert read_toml(path, limit_bytes=100, what="it") == {"a": 1}


def test_a_file_that_is_not_utf8_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"a = 1\nb = '\xff'\n")
    with pytest.raises(AibenchError, match="it is not UTF-8 text at line 2"):
        read_toml(path, limit_bytes=100, what="it")


def test_a_file_over_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"#" * 101)
    with pytest.raises(AibenchError, match="it is larger than 100 bytes"):
        read_toml(path, limit_bytes=100, what="it")
