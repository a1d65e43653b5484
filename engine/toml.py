"""TOML from outside, read with bounds: size, dots a key, nesting and finite numbers, each refused in one clear line.

tomllib takes time in the square of a dotted key's length (200 kB took 31 s) and answers deep nesting with a
RecursionError, so both are bounded here before anything else sees the document.
"""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from engine import exits, files
from engine.errors import AibenchError
from engine.text import clean, clean_tree
from engine.values import Missing

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_DOTS = 16
MAX_DEPTH = 32

# A scanner in linear time: every alternative matches what it began, closed or not, so that nothing is tried twice.
_TOKEN = re.compile(
    r'"""(?:[^\\"]|\\.|"(?!""))*(?:"""|\Z)'
    r"|'''(?:[^']|'(?!''))*(?:'''|\Z)"
    r'|"(?:[^"\\\n]|\\.)*"?'
    r"|'[^'\n]*'?"
    r"|\#[^\n]*"
    r"|[A-Za-z0-9_\-+ \t]+"
    r"|.",
    re.DOTALL,
)


def read_toml(path: Path, *, limit_bytes: int, what: str) -> dict[str, Any]:
    """The document in the file `path`, of at most `limit_bytes`; `what` names it to the operator ("plan x.toml").

    Raises AibenchError (code 2) for a file that cannot be read, is too large, is not UTF-8 or fails parse_toml.
    """
    data = files.read_limited(path, limit_bytes, what=what)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise AibenchError(f"{what} is not UTF-8 text at line {line}", "save it as UTF-8") from None
    return parse_toml(text, what=what)


def parse_toml(text: str, *, what: str) -> dict[str, Any]:
    """The document in `text`, every key and string clean and every number finite.

    Raises AibenchError (code 2) naming `what`, the line and column where there is one, and why.
    """
    _check_dots(text, what)
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise _too_deep(what) from None
    except ValueError as error:
        raise AibenchError(f"{what} is not valid TOML: {clean(str(error), 300)}", "correct that line") from None
    _check_values(document, what, "", 0)
    cleaned: dict[str, Any] = clean_tree(document, len(text))
    return cleaned


def _too_deep(what: str) -> AibenchError:
    return AibenchError(f"{what} nests more than {MAX_DEPTH} levels deep", "flatten it")


def _check_dots(text: str, what: str) -> None:
    """A dotted key cannot span lines, so only a document with such a line needs to be looked at token by token."""
    if all(line.count(".") <= MAX_DOTS for line in text.split("\n")):
        return
    dots = 0
    for match in _TOKEN.finditer(text):
        piece = match.group()
        if piece == ".":
            dots += 1
        elif piece[0] in "#\n,=[]{}":
            dots = 0
        if dots > MAX_DOTS:
            line = text.count("\n", 0, match.start()) + 1
            raise AibenchError(f"{what} has a key of more than {MAX_DOTS} dots at line {line}", "shorten the key")


def _check_values(value: Any, what: str, where: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _too_deep(what)
    if isinstance(value, dict):
        for key, item in value.items():
            _check_values(item, what, f"{where}.{key}" if where else key, depth + 1)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _check_values(item, what, f"{where}[{number}]", depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise AibenchError(f"{what}: {clean(where, 200)} is {value}, not a finite number", "give one or leave it out")


def to_table(values: dict[str, Any], where: str = "") -> dict[str, Any]:
    """`values` as TOML can hold them: structs and tuples plain, text clean, a missing value as its reason.

    A Missing leaves its key out, and `<key>_reason` (and `<key>_reason_source`) stands beside it; a key of that form
    that is none gets a "_" at its end. Raises AibenchError (code 3) for a number that is not finite.
    """
    table: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{key}_" if _looks_like_a_reason(key) else key
        if isinstance(value, Missing):
            table[f"{name}_reason"] = clean(value.missing, len(value.missing))
            if value.source:
                table[f"{name}_reason_source"] = clean(value.source, len(value.source))
        else:
            table[name] = _plain(value, f"{where}.{key}" if where else key)
    return table


def from_table(value: Any) -> Any:
    """The reverse of `to_table`: a reason without its key becomes a missing value."""
    if isinstance(value, list):
        return [from_table(item) for item in value]
    if not isinstance(value, dict):
        return value
    table = {key: from_table(item) for key, item in value.items()}
    for reason in [key for key in table if key.endswith("_reason") and isinstance(table[key], str)]:
        key = reason.removesuffix("_reason")
        if key and key not in table:
            missing = table.pop(reason)
            table[key] = {"is": "missing", "missing": missing, "source": table.pop(f"{reason}_source", "")}
    return {key[:-1] if key.endswith("_") and _looks_like_a_reason(key) else key: item for key, item in table.items()}


def _looks_like_a_reason(key: str) -> bool:
    return key.rstrip("_").endswith(("_reason", "_reason_source"))


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, msgspec.Struct):
        return to_table(msgspec.structs.asdict(value), where)
    if isinstance(value, dict):
        return to_table(value, where)
    if isinstance(value, tuple | list):
        return [_plain(item, where) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise AibenchError(f"{where} is {value}, which no file of ours can hold", code=exits.INCOMPLETE)
    return clean(value, len(value)) if isinstance(value, str) else value
