"""A session as TOML: read with bounds and suspicion, replaced atomically (docs/session-format.md).

An absent value leaves its key out; `<key>_reason` (and `<key>_reason_source`) stands beside it (engine.toml). All
measurements of a trial have one window and its telemetry, which is most of the file: it stands in the trial's first
one, and one that has no `telemetry` key has that of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from engine import exits, files
from engine.errors import AibenchError
from engine.session import SCHEMA, Measurement, Session
from engine.text import clean
from engine.toml import from_table, parse_toml, read_toml, to_table

_TABLES = {"devices": "device", "trials": "trial", "measurements": "measurement"}
"""Fields that are arrays of tables, by the name a single one of them has in the file."""

LEFT_OUT = "warning: of the measurements, {} are in the journal alone, since the session file would be too large"


def write_session(path: Path, session: Session) -> None:
    """Replace `path` by the session, durably.

    Telemetry, and then facts too, are left out where they would pass the 16 MiB that a reader takes; what is left of
    plan_file.MAX_TRIALS trials always fits. Raises AibenchError (code 3): FileError where the disk refuses (the old
    file stays), and where the session holds a number that is not finite or is too large even so.
    """
    size = 0
    for names in ((), ("telemetry",), ("telemetry", "facts")):
        data = dump_session(_without(session, names)).encode()
        if len(data) <= files.MAX_SESSION_BYTES:
            files.atomic_write(path, data)
            return
        size = len(data)
    raise AibenchError(f"a session of {size} bytes is too large to write", code=exits.INCOMPLETE)


def dump_session(session: Session) -> str:
    """The TOML text of a session."""
    fields = msgspec.structs.asdict(session) | {"measurements": _rows(session.measurements)}
    return tomli_w.dumps({_TABLES.get(name, name): value for name, value in to_table(fields).items()})


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
    fields = {names.get(key, key): value for key, value in from_table(document).items()}
    for name in _TABLES:
        fields.setdefault(name, [])
    _complete(fields["measurements"])
    try:
        return msgspec.convert(fields, Session)
    except msgspec.ValidationError as error:
        raise AibenchError(
            f"{what} is not a session: {clean(str(error), 300)}", "name a session.toml of ours"
        ) from None


def _without(session: Session, names: Sequence[str]) -> Session:
    """The session with these tables of its measurements empty, and a notice that says so."""
    if not names:
        return session
    empty: dict[str, Any] = {name: {} for name in names}
    bare = tuple(msgspec.structs.replace(each, **empty) for each in session.measurements)
    notices = (*session.notices, LEFT_OUT.format(" and ".join(names)))
    return msgspec.structs.replace(session, measurements=bare, notices=notices)


def _rows(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """The measurements as they stand in the file: no empty table, and telemetry once a trial."""
    first: dict[str, Any] = {}
    rows = [msgspec.structs.asdict(each) for each in measurements]
    for row in rows:
        known = first.get(row["trial"], {})
        first.setdefault(row["trial"], row["telemetry"])
        if row["telemetry"] == known:
            del row["telemetry"]
        if not row["facts"]:
            del row["facts"]
    return rows


def _complete(measurements: Any) -> None:
    """The reverse of `_rows`, and the tags by which msgspec tells a summary from a missing one."""
    first: dict[str, Any] = {}
    for measurement in _tables(measurements):
        measurement.setdefault("facts", {})
        trial = str(measurement.get("trial"))
        telemetry = measurement.setdefault("telemetry", first.get(trial, {}))
        first.setdefault(trial, telemetry)
        for summary in (each for quantities in _tables(telemetry) for each in _tables(quantities)):
            summary.setdefault("is", "summary")


def _tables(value: Any) -> list[dict[str, Any]]:
    """The tables in `value`; what is none is left for msgspec to complain about."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in items if isinstance(item, dict)]
