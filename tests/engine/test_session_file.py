from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import files
from engine.errors import AibenchError
from engine.events import TelemetrySummary
from engine.plan_file import MAX_TRIALS
from engine.registry import scenarios
from engine.session import MAX_NOTICES, SCHEMA, Device, Measurement, Session, Trial, fold
from engine.session_file import dump_session, parse_session, read_session, write_session
from engine.text import clean
from engine.values import Missing
from tests.engine.journal_cases import longest_planned, run_ended, run_events, run_started, setting

TEXT = st.text(max_size=30).map(clean)
NAMES = st.one_of(
    st.text(min_size=1, max_size=20).map(clean),
    st.sampled_from(["a", "a_reason", "a_reason_", "a_reason_source", "_reason", "b_reason__"]),
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
MISSING = st.builds(Missing, TEXT, TEXT)
READINGS = NUMBERS | MISSING
SCALARS = st.booleans() | INTEGERS | NUMBERS | TEXT
FACTS = st.dictionaries(NAMES, SCALARS | MISSING, max_size=4)
SUMMARIES = st.builds(
    TelemetrySummary,
    n=INTEGERS,
    mean=NUMBERS,
    min=NUMBERS,
    max=NUMBERS,
    delta=READINGS,
    source=TEXT,
    span_s=NUMBERS,
)
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
    measurements=st.lists(struct(Measurement, trial=st.sampled_from(["t1", "t2"])), max_size=4).map(tuple),
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
        "power_w": {"n": 15, "mean": 650.0, "min": 600.0, "max": 700.0, "delta": 3.5, "source": "nvml", "span_s": 1.4},
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
    with pytest.raises(AibenchError, match="seconds is inf, which no file of ours can hold"):
        dump_session(session)


def test_a_session_too_large_for_a_reader_leaves_its_telemetry_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = fold(run_events(30))
    path = tmp_path / "session.toml"
    left_out = ("telemetry", "telemetry and facts")
    for names in left_out:
        monkeypatch.setattr(files, "MAX_SESSION_BYTES", len(dump_session(session).encode()) - 1)
        write_session(path, session)
        session = read_session(path)
        assert session.notices[-1].startswith(f"warning: of the measurements, {names} are in the journal alone")
    assert [each.median for each in session.measurements] == [1000.0] * 30
    assert not any(each.facts or each.telemetry for each in session.measurements)
    monkeypatch.setattr(files, "MAX_SESSION_BYTES", 1000)
    with pytest.raises(AibenchError, match="is too large to write"):
        write_session(path, session)
    assert path.stat().st_size > 1000  # the old one is still there


def five_metrics() -> Session:
    """One trial with five metrics, as `memory/stream` has them."""
    session = fold(run_events(1))
    [one] = session.measurements
    names = ("copy", "scale", "add", "triad", "dot")
    several = tuple(msgspec.structs.replace(one, metric=f"{name}_bandwidth") for name in names)
    return msgspec.structs.replace(session, measurements=several)


def test_the_telemetry_of_a_trial_stands_in_its_first_measurement() -> None:
    session = five_metrics()
    text = dump_session(session)
    document = tomli.loads(text)
    assert ["telemetry" in measurement for measurement in document["measurement"]] == [True] + [False] * 4
    assert parse_session(text, "it") == session
    assert all("power_w" in each.telemetry["GPU-1"] for each in parse_session(text, "it").measurements)


def test_a_measurement_with_telemetry_of_its_own_keeps_it() -> None:
    session = five_metrics()
    first, second, *_ = session.measurements
    other = msgspec.structs.replace(second, telemetry={})
    session = msgspec.structs.replace(session, measurements=(first, other, second))
    assert parse_session(dump_session(session), "it") == session


def test_a_file_of_before_is_read() -> None:
    """With telemetry in each measurement and without the fields that were added since."""
    session = fold(run_events(2))
    document = tomli.loads(dump_session(session))
    for measurement in document["measurement"]:
        del measurement["group"], measurement["telemetry"]["GPU-1"]["power_w"]["span_s"]
    [again, _] = parse_session(tomli_w.dumps(document), "it").measurements
    power = again.telemetry["GPU-1"]["power_w"]
    assert isinstance(power, TelemetrySummary)
    assert (again.group, power.span_s, power.mean) == (1, 0.0, 650.0)


def test_a_counter_that_began_anew_says_so_in_the_file() -> None:
    session = fold(run_events(1))
    [one] = session.measurements
    power = one.telemetry["GPU-1"]["power_w"]
    assert isinstance(power, TelemetrySummary)
    anew = msgspec.structs.replace(power, delta=Missing("the counter began anew inside the window"))
    one = msgspec.structs.replace(one, telemetry={"GPU-1": {"energy_j": anew}})
    session = msgspec.structs.replace(session, measurements=(one,))
    text = dump_session(session)
    assert 'delta_reason = "the counter began anew inside the window"' in text
    assert parse_session(text, "it") == session


LONGEST_TEXT = "durations are means of up to 65536 iterations, which hide the slow ones"
LONGEST_NUMBER = -1.2345678901234567e-101
METRICS = 5


def longest_session() -> Session:
    """A session of the longest plan that is accepted, with the longest names, numbers and reasons throughout."""
    [trial], [one] = fold(run_events(1)).trials, fold(run_events(1)).measurements
    figures: dict[str, Any] = {
        **dict.fromkeys(("median", "best", "cv", "work", "window_s"), LONGEST_NUMBER),
        **dict.fromkeys(("p95", "p99"), Missing(LONGEST_TEXT)),
        **dict.fromkeys(("n", "warmup_n", "group"), 10_000_000),
        "metric": "m" * 24,
        "steady": LONGEST_TEXT,
        "timer": "t" * 24,
        "telemetry": {},
        "facts": {},
    }
    planned = [msgspec.structs.asdict(longest_planned(number)) for number in range(1, MAX_TRIALS + 1)]
    names = [{name: each[name] for name in Trial.__struct_fields__ if name in each} for each in planned]
    return msgspec.structs.replace(
        fold([run_started(0), *setting(), run_ended()]),
        notices=tuple(f"{number:03}{'x' * 1600}" for number in range(MAX_NOTICES)),
        trials=tuple(msgspec.structs.replace(trial, **each, seconds=LONGEST_NUMBER) for each in names),
        measurements=tuple(msgspec.structs.replace(one, **each, **figures) for each in names for _ in range(METRICS)),
    )


def test_the_session_of_the_longest_plan_is_written_and_read(tmp_path: Path) -> None:
    session = longest_session()
    path = tmp_path / "session.toml"
    write_session(path, session)
    assert read_session(path) == session


def test_failed_trials_of_the_longest_plan_fit_with_their_reasons() -> None:
    reason = "\N{DESKTOP COMPUTER}" * 1200  # a worker's reason has 1000 characters, and its last words 160
    session = longest_session()
    trials = tuple(msgspec.structs.replace(each, outcome="failed", reason=reason) for each in session.trials)
    failed = msgspec.structs.replace(session, trials=trials, measurements=())
    assert len(dump_session(failed).encode()) <= files.MAX_SESSION_BYTES


def test_no_scenario_has_more_metrics_or_longer_names_than_the_limit_of_trials_is_made_for() -> None:
    cards = [module.CARD for module in scenarios().values()]
    assert max(len(card.metrics) for card in cards) <= METRICS
    assert max(len(card.id) for card in cards) <= len(longest_planned(1).scenario)
    assert max(len(metric.name) for card in cards for metric in card.metrics) <= 24
