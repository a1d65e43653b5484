"""The one cleaning function that outside text passes where it enters the program.

Textual and Rich hand control characters, escape sequences and bidi marks to the terminal as they come, plain content
included, so a device name or a log line could write to the clipboard or rewrite the screen.
"""

from __future__ import annotations

import re
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

# C0 (newline and tab are handled by the caller's wish), DEL, C1, soft hyphen, combining grapheme joiner, Arabic
# letter mark, Hangul and Khmer fillers, Mongolian separators, zero-width and bidi marks and isolates, line and
# paragraph separators, invisible operators, variation selectors, byte order mark, interlinear annotation,
# noncharacters, lone surrogates, musical format marks and the tag and supplementary variation-selector block.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def _visible(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    return "\N{SYMBOL FOR DELETE}" if code == 0x7F else REPLACEMENT


def clean(text: str | bytes, limit: int = 4096, *, keep_newlines: bool = False) -> str:
    """Outside text, made safe to print, store and show: one visible substitute for each dangerous character.

    Bytes are read as UTF-8 with replacement. Text longer than `limit` characters ends in "…". With `keep_newlines`,
    line feeds stay and tabs become spaces, for logs.
    """
    if isinstance(text, bytes):
        text = text[: 4 * limit + 4].decode("utf-8", "replace")
    if len(text) > limit:
        text = text[: max(limit - 1, 0)] + "…"
    if keep_newlines:
        text = text.replace("\r\n", "\n").replace("\t", "    ")
        return "\n".join(_UNSAFE.sub(_visible, line) for line in text.split("\n"))
    return _UNSAFE.sub(_visible, text)


def clean_tree(value: Any, limit: int = 4096) -> Any:
    """`clean` for every string, keys included, of a tree of dicts, lists and tuples."""
    if isinstance(value, str):
        return clean(value, limit)
    if isinstance(value, dict):
        return {clean_tree(key, limit): clean_tree(item, limit) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_tree(item, limit) for item in value]
    return value
