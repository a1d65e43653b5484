from __future__ import annotations

import os
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text import clean, clean_tree

UNSAFE = ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")
PLANES = range(0, 0x110000, 0x10000)
ANY = st.text(st.characters(exclude_categories=()), max_size=200)
TREES = st.recursive(ANY | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(ANY, inner), max_leaves=10)


def is_safe(text: str) -> bool:
    return not any(unicodedata.category(char) in UNSAFE for char in text)


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


def test_no_character_at_all_comes_through_that_controls_a_terminal() -> None:
    cleaned = {chr(code): clean(chr(code)) for code in range(sys.maxunicode + 1)}
    assert [f"{ord(char):04x}" for char, text in cleaned.items() if len(text) != 1] == []
    assert [f"{ord(char):04x}" for char, text in cleaned.items() if unicodedata.category(text) in UNSAFE] == []


def test_no_noncharacter_and_nothing_default_ignorable_comes_through() -> None:
    """Unicode's list of what has no glyph of its own (DerivedCoreProperties, Default_Ignorable_Code_Point)."""
    ignorable = [*b"\xad", 0x34F, 0x61C, *range(0x115F, 0x1161), *range(0x17B4, 0x17B6), *range(0x180B, 0x1810)]
    ignorable += [*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0x3164, 0xFEFF, 0xFFA0]
    ignorable += [*range(0xFE00, 0xFE10), *range(0xFFF0, 0xFFF9), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B)]
    ignorable += range(0xE0000, 0xE1000)
    noncharacters = [*range(0xFDD0, 0xFDF0), *(plane + last for plane in PLANES for last in (0xFFFE, 0xFFFF))]
    assert {clean(chr(code)) for code in ignorable + noncharacters} == {"\ufffd"}


def test_ordinary_text_of_all_sorts_stays_as_it_is() -> None:
    same = "".join(chr(code) for code in range(0x20, 0x3000) if unicodedata.category(chr(code))[0] in "LNPS")
    same = same.replace("\u115f", "").replace("\u1160", "")
    assert clean(same, 20_000) == same
    for text in ("한국어", "ไทย", "हिन्दी", "العربية", "Việt", "Z̸̧̛ͫ", "👩🏽", "→ ± µ ▁▂▃█", "\u3000\xa0"):
        assert clean(text) == text


@pytest.mark.parametrize("mark", ["\u0301", "\u0489", "\u20dd", "\u0e31", "\u0903", "\U0001e8d0"])
def test_a_flood_of_combining_marks_is_cut(mark: str) -> None:
    assert clean("a" + 10_000 * mark + "b", 20_000) == "a" + 8 * mark + "\ufffdb"
    assert clean(10_000 * mark) == 8 * mark + "\ufffd…"
    assert clean(f"{8 * mark}\n{8 * mark}", keep_newlines=True) == f"{8 * mark}\n{8 * mark}"
    assert clean("a" + 8 * mark + "\u200b" + 8 * mark) == "a" + 8 * mark + "\ufffd" + 8 * mark


def test_bytes_that_are_no_text_are_visible() -> None:
    assert clean(os.fsdecode(b"a\xff\xfeb")) == clean(b"a\xff\xfeb") == "a\ufffd\ufffdb"
