from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text import clean, clean_tree

BIDI = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
ANY = st.text(st.characters(exclude_categories=()), max_size=200)
TREES = st.recursive(ANY | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(ANY, inner), max_leaves=10)


def is_safe(text: str) -> bool:
    return not any(
        ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 or char in BIDI or unicodedata.category(char) in ("Cf", "Cs", "Zl")
        for char in text
    )


@given(ANY)
def test_nothing_dangerous_comes_through(text: str) -> None:
    assert is_safe(clean(text))


@given(ANY)
def test_cleaning_twice_changes_nothing(text: str) -> None:
    assert clean(clean(text)) == clean(text)


@given(st.binary(max_size=200))
def test_any_bytes_become_safe_text(data: bytes) -> None:
    assert is_safe(clean(data))


@given(ANY)
def test_newlines_stay_where_they_are_wanted(text: str) -> None:
    cleaned = clean(text, keep_newlines=True)
    assert cleaned.count("\n") == text.count("\n")
    assert is_safe(cleaned.replace("\n", ""))


@given(ANY, st.integers(1, 50))
def test_the_limit_holds(text: str, limit: int) -> None:
    assert len(clean(text, limit)) <= limit


@given(TREES)
def test_a_tree_is_clean_everywhere(tree: object) -> None:
    def strings(value: object) -> list[str]:
        if isinstance(value, dict):
            return [text for pair in value.items() for each in pair for text in strings(each)]
        if isinstance(value, list):
            return [text for each in value for text in strings(each)]
        return [value] if isinstance(value, str) else []

    assert all(map(is_safe, strings(clean_tree(tree))))


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("\x1b]52;c;cm0gLXJm\x07", "␛]52;c;cm0gLXJm␇"),
        ("a\tb\nc", "a␉b␊c"),
        ("\x7f\x9b31m", "␡�31m"),
        ("abc\u202etxt.exe", "abc�txt.exe"),
        ("zero\u200bwidth", "zero�width"),
        ("H200 · 80 GB, Grüße, 日本語, 🚀", "H200 · 80 GB, Grüße, 日本語, 🚀"),
    ],
)
def test_substitutes_are_visible(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


def test_long_text_says_that_it_was_cut() -> None:
    assert clean("x" * 5000).endswith("x…")


def test_log_text_keeps_its_shape() -> None:
    assert clean("a\r\nb\tc\rd", keep_newlines=True) == "a\nb    c␍d"
