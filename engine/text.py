"""The one cleaning function that outside text passes where it enters the program.

Textual and Rich hand control characters, escape sequences and bidi marks to the terminal as they come, plain content
included, so a device name or a log line could write to the clipboard or rewrite the screen.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

MAX_MARKS = 8
"""Combining marks on one letter: the scripts of the world need four or so, and a terminal draws as many as it gets."""

# C0 (newline and tab are handled by the caller's wish), DEL, C1, soft hyphen, combining grapheme joiner, Arabic,
# Syriac, Kaithi and Egyptian format marks, Hangul and Khmer fillers, Mongolian separators, zero-width and bidi marks
# and isolates, line and paragraph separators, invisible operators, variation selectors, byte order mark, interlinear
# annotation, noncharacters, lone surrogates, shorthand and musical format marks, tags and supplementary variation
# selectors, and private use, where each font has something else or nothing.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\uf8ff\ufdd0-\ufdef\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\ufffe\uffff\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    + "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0x10000, 0xE0000, 0x10000))
    + "\U000e0000-\U000e0fff\U000efffe-\U0010ffff]"
)

# Where a flood of combining marks could be: no script's marks come before U+0300.
_LONG_RUN = re.compile(f"[\u0300-\U0010ffff]{{{MAX_MARKS + 1},}}")


def _visible(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    return "\N{SYMBOL FOR DELETE}" if code == 0x7F else REPLACEMENT


def _without_flood(match: re.Match[str]) -> str:
    """A run of text in which what follows MAX_MARKS combining marks in a row is one substitute."""
    kept: list[str] = []
    marks = 0
    for char in match.group():
        marks = marks + 1 if unicodedata.category(char)[0] == "M" else 0
        if marks <= MAX_MARKS:
            kept.append(char)
        elif marks == MAX_MARKS + 1:
            kept.append(REPLACEMENT)
    return "".join(kept)


def clean(text: str | bytes, limit: int = 4096, *, keep_newlines: bool = False) -> str:
    """Outside text, made safe to print, store and show: one visible substitute for each dangerous character.

    What is left has no character of the categories Cc, Cf, Co, Cs, Zl and Zp, and at most MAX_MARKS combining marks in
    a row. Bytes are read as UTF-8 with replacement. Text longer than `limit` characters ends in "…". With
    `keep_newlines`, line feeds stay and tabs become spaces, for logs.
    """
    if isinstance(text, bytes):
        text = text[: 4 * limit + 4].decode("utf-8", "replace")
    if len(text) > limit:
        text = text[: max(limit - 1, 0)] + "…"
    if keep_newlines:
        text = text.replace("\r\n", "\n").replace("\t", "    ")
        return "\n".join(_cleaned(line) for line in text.split("\n"))
    return _cleaned(text)


def _cleaned(text: str) -> str:
    return _LONG_RUN.sub(_without_flood, _UNSAFE.sub(_visible, text))


def clean_tree(value: Any, limit: int = 4096) -> Any:
    """`clean` for every string, keys included, of a tree of dicts, lists and tuples."""
    if isinstance(value, str):
        return clean(value, limit)
    if isinstance(value, dict):
        return {clean_tree(key, limit): clean_tree(item, limit) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_tree(item, limit) for item in value]
    return value
