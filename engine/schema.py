"""One formatter for what a file may hold: the key, the value, what is allowed and the nearest thing that is.

msgspec says only whether data fit; the walk here finds the first place that does not, and says it in the operator's
words. Ranges and forms are read from the types (msgspec.Meta).
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from engine.errors import AibenchError
from engine.text import clean

T = TypeVar("T")

_FILE_LIMIT = 110
_WHAT_LIMIT = 250
_LIMIT = 400
_NAMES: dict[object, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def nearest(word: str, allowed: Iterable[str]) -> str:
    """`did you mean 'x'? ` for the closest allowed word, or "" where none is close."""
    close = difflib.get_close_matches(word[:64], list(allowed), n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'? " if close else ""


def short_name(what: str) -> str:
    """A file's name, cleaned; of a long one the end is kept."""
    name = clean(what, len(what) + 1)
    return name if len(name) <= _FILE_LIMIT else "…" + name[1 - _FILE_LIMIT :]


def refusal(what: str, path: str, problem: str, do: str = "") -> AibenchError:
    """The one-line error for a place in a file or on the command line: at most 400 characters, cleaned."""
    name = short_name(what)
    where = f"{name}: {clean(path, 80)}: " if path else f"{name}: "
    text = clean(where + problem, _WHAT_LIMIT)
    return AibenchError(text, clean(do, _LIMIT - len(text) - 2))


def shown(value: object) -> str:
    """A value as an error message quotes it: short, and safe to print."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return f"an array of {len(value)}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number of more than 38 digits"
    return clean(repr(value[:60]) if isinstance(value, str) else str(value), 60)


def convert_table(data: object, kind: type[T], *, what: str) -> T:
    """`data` as a `kind`, a msgspec struct.

    Raises AibenchError (code 2) that names the file `what`, the key, the value, what is allowed and what is nearest.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError:
        raise _fault(data, kind, "", what) from None


def _fault(value: Any, kind: Any, path: str, what: str) -> AibenchError:
    """The error for the first place in `value` that a `kind` cannot be."""
    base, _ = _unwrap(kind)
    if isinstance(value, dict) and _is_struct(base):
        allowed = [field.encode_name for field in msgspec.structs.fields(base)]
        for key in value:
            if key not in allowed:
                do = f"{nearest(key, allowed)}allowed: {', '.join(allowed)}"
                return refusal(what, join(path, key), "unknown key", do)
        for field in msgspec.structs.fields(base):
            if field.required and field.encode_name not in value:
                return refusal(what, path, f"key '{field.encode_name}' is missing", f"allowed: {', '.join(allowed)}")
    for inner_path, inner, inner_kind in _inside(value, base, path):
        if not _fits(inner, inner_kind):
            return _fault(inner, inner_kind, inner_path, what)
    problem = f"{shown(value)} is not allowed"
    return refusal(what, path, problem, f"{_near_value(value, base)}allowed: {_allowed(kind)}")


def join(path: str, key: str) -> str:
    """The path of a key in the table at `path`, shortened where the key is too long to read."""
    return f"{path}.{clean(key, 64)}" if path else clean(key, 64)


def _inside(value: Any, base: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """What `value` holds: the path, the value and the wanted type of each of its items."""
    if isinstance(value, dict) and _is_struct(base):
        for field in msgspec.structs.fields(base):
            if field.encode_name in value:
                yield join(path, field.encode_name), value[field.encode_name], field.type
    elif isinstance(value, dict) and get_origin(base) is dict:
        for key, item in value.items():
            yield join(path, key), item, get_args(base)[1]
    elif isinstance(value, list | tuple):
        item_kind = _item_kind(base)
        for index, item in enumerate(value if item_kind is not None else ()):
            yield f"{path}[{index}]", item, item_kind


def _item_kind(base: Any) -> Any:
    """The type of an array's items, or None where `base` is no array."""
    if get_origin(base) in (list, tuple):
        return get_args(base)[0]
    arrays = [arm for arm in _arms(base) if get_origin(_unwrap(arm)[0]) in (list, tuple)]
    return _item_kind(_unwrap(arrays[0])[0]) if arrays else None


def _unwrap(kind: Any) -> tuple[Any, tuple[msgspec.Meta, ...]]:
    if get_origin(kind) is Annotated:
        base, *notes = get_args(kind)
        return base, tuple(note for note in notes if isinstance(note, msgspec.Meta))
    return kind, ()


def _arms(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else ()


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _near_value(value: object, base: Any) -> str:
    if get_origin(base) is Literal and isinstance(value, str):
        return nearest(value, get_args(base))
    return ""


def _allowed(kind: Any) -> str:
    """What a type takes, in words."""
    base, notes = _unwrap(kind)
    for note in notes:
        if note.extra and "form" in note.extra:
            return str(note.extra["form"])
    words = _base_words(base)
    limits = [text for note in notes if (text := _limits(note))]
    return ", ".join([words, *limits])


def _base_words(base: Any) -> str:
    if get_origin(base) is Literal:
        return ", ".join(str(item) for item in get_args(base))
    if arms := _arms(base):
        return " or ".join(dict.fromkeys(_allowed(arm) for arm in arms))
    if get_origin(base) in (list, tuple):
        return "an array of tables, each under [[...]]" if _is_struct(_item_kind(base)) else "an array"
    return _NAMES.get(base, "a table")


def _limits(note: msgspec.Meta) -> str:
    low = f"above {note.gt:g}" if note.gt is not None else f"{note.ge}" if note.ge is not None else ""
    if low and note.le is not None:
        return f"{low} to {note.le}"
    if note.max_length is not None:
        return f"{note.min_length or 0} to {note.max_length} long"
    return low
