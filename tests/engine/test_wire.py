"""What counts as a line of the protocol, and what is log text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import wire

HEAD = {"token": "tok", "rank": 0, "seq": 3, "t": 1.5}


def line(**fields: object) -> bytes:
    return json.dumps({**HEAD, **fields}).encode()


def test_a_genuine_line() -> None:
    message = wire.decode(line(kind="iterations", metric="rate", group=2, durations_s=[0.5, 0.25]), "tok")
    assert isinstance(message, wire.Durations)
    assert (message.metric, message.group, message.durations_s) == ("rate", 2, (0.5, 0.25))


@pytest.mark.parametrize(
    "data",
    [
        line(kind="bye", token="other"),
        line(kind="nonsense"),
        line(kind="phase"),
        line(kind="iterations", metric="m", group=0, durations_s=[1.0]),
        line(kind="iterations", metric="m", group=1, durations_s=[-1.0]),
        line(kind="iterations", metric="m", group=1, durations_s=[1.0]).replace(b"[1.0]", b"[1e999]"),
        line(kind="iterations", metric="m", group=1, durations_s=[1.0]).replace(b"[1.0]", b"[NaN]"),
        line(kind="iterations", metric="m", group=10**13, durations_s=[1.0]),
        line(kind="phase", name="x" * wire.MAX_LINE),
        line(kind="phase", name="measure").replace(b"1.5", b"1e999"),
        line(kind="phase", name="measure", seq=10**40),
        line(kind="result", metrics=[], facts={"bytes": 10**40}),
        line(kind="result", metrics=[], facts={"error": 1.0}).replace(b"1.0", b"1e999"),
        b"",
        b"{",
        b"[1, 2]",
        b'{"kind":' + b"[" * 4000,
        b"\xff\xfe{}",
    ],
)
def test_everything_else_is_log_text(data: bytes) -> None:
    assert wire.decode(data, "tok") is None


def test_outside_text_in_a_line_is_clean() -> None:
    message = wire.decode(line(kind="failure", cause="error", reason="bad \x1b]52;c;QQ==\x07 \u202e end"), "tok")
    assert isinstance(message, wire.Failure)
    assert "\x1b" not in message.reason
    assert "\u202e" not in message.reason
    assert message.reason.startswith("bad ")
    durations = wire.decode(line(kind="iterations", metric="m\x1b", group=1, durations_s=[1.0]), "tok")
    assert isinstance(durations, wire.Durations)
    assert durations.metric == "m\N{SYMBOL FOR ESCAPE}"


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_lines = st.fixed_dictionaries(
    {"token": st.just("tok"), "rank": _values, "seq": _values, "t": _values},
    optional={
        "kind": st.sampled_from(["ping", "hello", "phase", "iterations", "result", "failure", "bye", "keeper"]),
        **dict.fromkeys(["n", "pid", "clock_offset_s", "clock_uncertainty_s", "group", "exit_code"], _values),
        **dict.fromkeys(["python", "name", "metric", "reason", "cause"], _values),
        "durations_s": st.lists(_values, max_size=3),
        "metrics": st.lists(_values, max_size=2),
        "facts": st.dictionaries(st.text(max_size=9), _values, max_size=3),
    },
)


@given(_lines)
def test_no_line_raises(fields: dict[str, object]) -> None:
    """Also those that Python writes and JSON does not know, such as NaN, and lone surrogates."""
    wire.decode(json.dumps(fields).encode(), "tok")


@given(st.lists(st.binary(max_size=40).filter(lambda piece: b"\n" not in piece), max_size=20), st.integers(1, 7))
def test_lines_do_not_depend_on_how_the_stream_is_cut(lines: list[bytes], size: int) -> None:
    stream = b"".join(piece + b"\n" for piece in lines)
    splitter = wire.LineSplitter()
    found = [each for begin in range(0, len(stream), size) for each in splitter.feed(stream[begin : begin + size])]
    assert found == [(piece, True) for piece in lines]
    assert list(splitter.end()) == []


def test_a_line_without_an_end_is_passed_on_in_pieces() -> None:
    splitter = wire.LineSplitter()
    pieces = [piece for _ in range(100) for piece in splitter.feed(b"x" * 10_000)]
    assert not any(whole for _, whole in pieces)
    assert sum(len(data) for data, _ in pieces) == 1_000_000
    assert list(splitter.feed(b"\ngood\n")) == [(b"", False), (b"good", True)]


def test_last_words_are_the_last_line_with_text() -> None:
    assert wire.last_words(b"first\nTraceback\n\x1b[31mboom\x1b[0m\n\n  \n") == "␛[31mboom␛[0m"
    assert wire.last_words(b"\n\n") == ""
