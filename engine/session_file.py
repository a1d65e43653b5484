"""A session as TOML: read with bounds and suspicion, replaced atomically.

An absent value leaves its key out; `<key>_reason` (and `<key>_reason_source`) stands beside it. So no fact may have a
name that ends in `_reason`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from engine import exits, files
from engine.errors import AibenchError
from engine.session import SCHEMA, Session
from engine.text import clean
from engine.toml import parse_toml, read_toml
from engine.values import Missing

_TABLES = {"devices": "device", "trials": "trial", "measurements": "measurement"}
"""Fields that are arrays of tables, by the name a single one of them has in the file."""

TELEMETRY_LEFT_OUT = "warning: telemetry summaries are in the journal alone, since the session file would be too large"


def write_session(path: Path, session: Session) -> None:
    """Replace `path` by the session, durably; telemetry is left out where it would pass the 16 MiB that a reader takes.

    Raises AibenchError (code 3): FileError where the disk refuses (the old file stays), and where the session holds a
    number that is not finite or is too large even so.
    """
    data = dump_session(session).encode()
    if len(data) > files.MAX_SESSION_BYTES:
        data = dump_session(_without_telemetry(session)).encode()
    if len(data) > files.MAX_SESSION_BYTES:
        raise AibenchError(f"a session of {len(data)} bytes is too large to write", code=exits.INCOMPLETE)
    files.atomic_write(path, data)


def dump_session(session: Session) -> str:
    """The TOML text of a session."""
    table = _table(msgspec.structs.asdict(session), "")
    return tomli_w.dumps({_TABLES.get(name, name): value for name, value in table.items()})


def read_session(path: Path) -> Session:
    """The session in `path`.

    Raises AibenchError (code 2) where it cannot be read, is over 16 MiB, is no session or is of a newer schema.
    """
    what = f"session {clean(str(path))}"
    return _session(read_toml(path, limit_bytes=files.MAX_SESSION_BYTES, what=what), what)


def parse_session(text: str, what: str) -> Session:
    """The session in `text`, which `what` names to the operator. Raises AibenchError (code 2)."""
    return _session(parse_toml(text, what=what), what)


def _session(document: dict[str, Any], what: str) -> Session:
    schema = document.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise AibenchError(
            f"{what}: schema {schema} is newer than this program's {SCHEMA}", "use the newer aibench-tui"
        )
    names = {short: name for name, short in _TABLES.items()}
    fields = {names.get(key, key): value for key, value in _restored(document).items()}
    for name in _TABLES:
        fields.setdefault(name, [])
    _tag_summaries(fields["measurements"])
    try:
        return msgspec.convert(fields, Session)
    except msgspec.ValidationError as error:
        raise AibenchError(
            f"{what} is not a session: {clean(str(error), 300)}", "name a session.toml of ours"
        ) from None


def _without_telemetry(session: Session) -> Session:
    bare = tuple(msgspec.structs.replace(each, telemetry={}) for each in session.measurements)
    return msgspec.structs.replace(session, measurements=bare, notices=(*session.notices, TELEMETRY_LEFT_OUT))


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, msgspec.Struct):
        return _table(msgspec.structs.asdict(value), where)
    if isinstance(value, dict):
        return _table(value, where)
    if isinstance(value, tuple | list):
        return [_plain(item, where) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise AibenchError(f"{where} is {value}, which no session can hold", code=exits.INCOMPLETE)
    return clean(value, len(value)) if isinstance(value, str) else value


def _table(values: dict[str, Any], where: str) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(value, Missing):
            table[key] = _plain(value, f"{where}.{key}" if where else key)
            continue
        table[f"{key}_reason"] = clean(value.missing, len(value.missing))
        if value.source:
            table[f"{key}_reason_source"] = clean(value.source, len(value.source))
    return table


def _restored(value: Any) -> Any:
    """The reverse of `_table`: a reason without its key becomes a missing value."""
    if isinstance(value, list):
        return [_restored(item) for item in value]
    if not isinstance(value, dict):
        return value
    table = {key: _restored(item) for key, item in value.items()}
    for reason in [key for key in table if key.endswith("_reason") and isinstance(table[key], str)]:
        key = reason.removesuffix("_reason")
        if key and key not in table:
            missing = table.pop(reason)
            table[key] = {"is": "missing", "missing": missing, "source": table.pop(f"{reason}_source", "")}
    return table


def _tag_summaries(measurements: Any) -> None:
    """msgspec tells a summary from a missing one by a tag, which the file does without."""
    for measurement in _tables(measurements):
        for quantities in _tables(measurement.get("telemetry")):
            for summary in _tables(quantities):
                summary.setdefault("is", "summary")


def _tables(value: Any) -> list[dict[str, Any]]:
    """The tables in `value`; what is none is left for msgspec to complain about."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in items if isinstance(item, dict)]
