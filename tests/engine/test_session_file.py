from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import files
from engine.errors import AibenchError
from engine.events import TelemetrySummary
from engine.session import SCHEMA, Device, Measurement, Session, Trial, fold
from engine.session_file import TELEMETRY_LEFT_OUT, dump_session, parse_session, read_session, write_session
from engine.text import clean
from engine.values import Missing
from tests.engine.journal_cases import run_events

TEXT = st.text(max_size=30).map(clean)
NAMES = (
    st.text(min_size=1, max_size=20).map(clean).filter(lambda name: not name.endswith(("_reason", "_reason_source")))
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
MISSING = st.builds(Missing, TEXT, TEXT)
READINGS = NUMBERS | MISSING
SCALARS = st.booleans() | INTEGERS | NUMBERS | TEXT
FACTS = st.dictionaries(NAMES, SCALARS | MISSING, max_size=4)
SUMMARIES = st.builds(TelemetrySummary, n=INTEGERS, mean=NUMBERS, min=NUMBERS, max=NUMBERS, delta=NUMBERS, source=TEXT)
TELEMETRY = st.dictionaries(NAMES, st.dictionaries(NAMES, SUMMARIES | MISSING, max_size=3), max_size=2)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "better": st.sampled_from(["higher", "lower"]),
    "facts": st.dictionaries(NAMES, SCALARS, max_size=4),
    "telemetry": TELEMETRY,
    "schema": st.just(SCHEMA),
    "notices": st.lists(TEXT, max_size=3).map(tuple),
    "fingerprint": FACTS,
}
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {"str": TEXT, "int": INTEGERS, "float": NUMBERS, "Reading": READINGS}


def struct(kind: Any, **special: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Any value of a struct: each field by its name, else by its annotation."""
    known = {**FIELDS, **special}
    fields = {
        name: known[name] if name in known else BY_TYPE[annotation] for name, annotation in kind.__annotations__.items()
    }
    return st.builds(kind, **fields)


SESSIONS = struct(
    Session,
    outcome=st.sampled_from(["completed", "aborted", "failed", "running"]),
    devices=st.lists(struct(Device, facts=FACTS), max_size=2).map(tuple),
    trials=st.lists(struct(Trial, outcome=st.sampled_from(["completed", "not_run"])), max_size=2).map(tuple),
    measurements=st.lists(struct(Measurement), max_size=2).map(tuple),
)


@settings(max_examples=150, deadline=None)
@given(SESSIONS)
def test_any_session_comes_back_as_it_was(session: Session) -> None:
    assert parse_session(dump_session(session), "it") == session


def test_the_form_that_other_programs_read() -> None:
    document = tomli.loads(dump_session(fold(run_events(1))))
    assert (document["schema"], document["outcome"], document["reason"]) == (1, "completed", "")
    assert document["fingerprint"]["driver"] == "570.1"
    assert "numa" not in document["fingerprint"]
    assert document["fingerprint"]["numa_reason"] == "no such file"
    assert document["fingerprint"]["numa_reason_source"] == "sysfs"
    assert document["device"][0]["facts"]["memory_bytes"] == 150_000_000_000
    assert [trial["outcome"] for trial in document["trial"]] == ["completed"]
    [measurement] = document["measurement"]
    expected = {"trial": "t0001", "metric": "rate", "unit": "TFLOP/s", "better": "higher", "n": 10, "median": 1000.0}
    assert expected.items() <= measurement.items()
    assert measurement["p99_reason"] == "needs 459 iterations, has 10"
    assert measurement["telemetry"]["GPU-1"] == {
        "power_w": {"n": 15, "mean": 650.0, "min": 600.0, "max": 700.0, "delta": 3.5, "source": "nvml"},
        "fan_percent_reason": "not supported",
        "fan_percent_reason_source": "nvml",
    }


def test_a_file_is_private_and_complete(tmp_path: Path) -> None:
    path = tmp_path / "session.toml"
    session = fold(run_events(2))
    write_session(path, session)
    assert read_session(path) == session
    assert path.stat().st_mode & 0o777 == 0o600


def test_keys_of_a_newer_version_are_passed_over() -> None:
    session = fold(run_events(1))
    text = dump_session(session).replace("[[measurement]]", "[later]\nx = 1\n\n[[measurement]]\nadded = {y = 2}", 1)
    assert parse_session(text, "it") == session


def test_a_newer_schema_is_refused_in_one_line() -> None:
    with pytest.raises(AibenchError, match="it: schema 2 is newer than this program's 1; use the newer") as caught:
        parse_session("schema = 2\nrun = 5", "it")
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("n = 10", 'n = "ten"', "Expected `int`, got `str`"),
        ('outcome = "completed"', 'outcome = "fine"', "Invalid enum value"),
        ("median = 1000.0", "median = inf", "is inf, not a finite number"),
        (
            "[measurement.telemetry.GPU-1]",
            "[measurement.telemetry]\nGPU-2 = 5\n[x.GPU-1]",
            "Expected `object`, got `int`",
        ),
        ("[[measurement]]", "[measurement]", "is not a session"),
        ("schema = 1", "", "is not a session"),
        ("schema = 1", "schema = ", "it is not valid TOML"),
        ("schema = 1", "schema = 1\nx = " + "[" * 50_000, "nests more than"),
        ("schema = 1", "schema = 1\nx" + ".x" * 50_000 + " = 1", "more than 16 dots"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(before: str, after: str, words: str) -> None:
    text = dump_session(fold(run_events(1)))
    assert before in text
    with pytest.raises(AibenchError) as caught:
        parse_session(text.replace(before, after, 1), "it")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_over_sixteen_mebibytes_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "session.toml"
    with path.open("wb") as stream:
        stream.truncate(files.MAX_SESSION_BYTES + 1)
    with pytest.raises(AibenchError, match="is larger than"):
        read_session(path)


def test_outside_text_in_a_file_comes_out_clean() -> None:
    text = dump_session(fold(run_events(1))).replace('"case"', '"\\u001B[31m\u202e"', 1)
    assert parse_session(text, "it").name == "␛[31m\ufffd"


def test_a_number_that_is_not_finite_is_not_written() -> None:
    session = msgspec.structs.replace(fold(run_events(1)), seconds=float("inf"))
    with pytest.raises(AibenchError, match="seconds is inf, which no session can hold"):
        dump_session(session)


def test_a_session_too_large_for_a_reader_leaves_its_telemetry_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = fold(run_events(30))
    limit = len(dump_session(session)) - 1
    monkeypatch.setattr(files, "MAX_SESSION_BYTES", limit)
    write_session(tmp_path / "session.toml", session)
    again = read_session(tmp_path / "session.toml")
    assert again.notices == (TELEMETRY_LEFT_OUT,)
    assert [each.median for each in again.measurements] == [each.median for each in session.measurements]
    monkeypatch.setattr(files, "MAX_SESSION_BYTES", 1000)
    with pytest.raises(AibenchError, match="is too large to write"):
        write_session(tmp_path / "session.toml", session)
    assert (tmp_path / "session.toml").stat().st_size > 1000  # the old one is still there
