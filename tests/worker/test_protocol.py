"""The write side of the protocol over real pipes, and the spec."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine.worker.protocol import MAX_DURATIONS, MAX_LINE_BYTES, LineReader, PipeClosed, Wire, grouped, one_line
from engine.worker.spec import parse
from engine.worker.work import ProtocolError
from tests.worker.driving import ROOT, a_spec


class Pipe:
    """A pipe with a Wire on its writing end."""

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.reading, self.writing = os.pipe()
        self.wire = Wire(self.writing, "tok", clock=clock)

    def lines(self) -> list[bytes]:
        """Close the writing end and read everything."""
        os.close(self.writing)
        with os.fdopen(self.reading, "rb") as file:
            return file.readlines()

    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines()]


@pytest.fixture
def pongs() -> Iterator[tuple[LineReader, int]]:
    """A reader of answers and the end to write them to."""
    reading, writing = os.pipe()
    yield LineReader(reading), writing
    os.close(reading)


def test_lines_are_numbered_and_carry_token_rank_and_time() -> None:
    pipe = Pipe(clock=iter([1.5, 2.5]).__next__)
    pipe.wire.phase("setup")
    pipe.wire.bye()
    assert pipe.messages() == [
        {"token": "tok", "rank": 0, "seq": 0, "kind": "phase", "t": 1.5, "name": "setup"},
        {"token": "tok", "rank": 0, "seq": 1, "kind": "bye", "t": 2.5},
    ]


def test_durations_are_split_over_lines_and_stay_in_order() -> None:
    pipe = Pipe()
    durations_s = [(number + 1) * 1.2345678e-6 for number in range(2000)]
    pipe.wire.iterations("rate", 1, durations_s)
    lines = pipe.lines()
    assert len(lines) > 1
    assert max(len(line) for line in lines) <= MAX_LINE_BYTES
    sent = [one for line in lines for one in json.loads(line)["durations_s"]]
    assert sent == pytest.approx(durations_s, rel=1e-6)
    assert {json.loads(line)["group"] for line in lines} == {1}


def test_more_than_100_000_durations_are_averaged_in_groups() -> None:
    durations_s = [float(number % 3) for number in range(2 * MAX_DURATIONS + 2)]
    group, kept = grouped(durations_s)
    assert group == 3
    assert len(kept) == 66_668
    assert kept[:2] == [1.0, 1.0]
    assert kept[-1] == 0.0, "the last is the mean of what is left, here one"


def test_averaging_multiplies_the_group_of_the_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.worker.protocol.grouped", lambda durations_s: (3, durations_s))
    pipe = Pipe()
    pipe.wire.iterations("rate", 4, [1.0])
    assert pipe.messages()[0]["group"] == 12


def test_a_line_that_is_too_long_is_refused_and_costs_no_number() -> None:
    pipe = Pipe()
    with pytest.raises(ProtocolError, match="a result line has"):
        pipe.wire.send("result", facts={"text": "x" * MAX_LINE_BYTES})
    pipe.wire.bye()
    assert [message["seq"] for message in pipe.messages()] == [0]


def test_a_number_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ProtocolError, match="cannot be written"):
        Pipe().wire.send("result", value=math.nan)


def test_a_closed_pipe_ends_the_worker_quietly() -> None:
    pipe = Pipe()
    os.close(pipe.reading)
    with pytest.raises(PipeClosed) as caught:
        pipe.wire.bye()
    assert caught.value.code == 1


@pytest.mark.parametrize("reason", ["x" * 5000, "\N{GRINNING FACE}" * 5000, "\x1b" * 5000, "a\n b\r\n\tc"])
def test_a_failure_is_one_short_line_whatever_its_reason(reason: str) -> None:
    pipe = Pipe()
    pipe.wire.failure("error", reason)
    (line,) = pipe.lines()
    assert len(line) <= MAX_LINE_BYTES
    sent = json.loads(line)["reason"]
    assert 0 < len(sent) <= 1000
    assert "\n" not in sent


def test_a_reason_of_several_lines_becomes_one() -> None:
    assert one_line("a\n  b\r\n\tc ") == "a b c"


def test_the_clock_offset_comes_from_the_quickest_exchange(pongs: tuple[LineReader, int]) -> None:
    reader, writing = pongs
    for number, runner_s in enumerate((100.0, 202.0, 300.0)):
        os.write(writing, json.dumps({"pong": number, "t": runner_s}).encode() + b"\n")
    # Each exchange reads the clock three times: begin, the ping line's own t, end; hello reads it once.
    clock = iter([0.0, 0.0, 8.0, 10.0, 10.0, 14.0, 20.0, 20.0, 30.0, 40.0])
    pipe = Pipe(clock=clock.__next__)
    pipe.wire.greet(reader)
    *pings, hello = pipe.messages()
    assert [ping["n"] for ping in pings] == [0, 1, 2]
    assert hello["clock_offset_s"] == 202.0 - 12.0
    assert hello["clock_uncertainty_s"] == 2.0
    assert hello["pid"] == os.getpid()


@pytest.mark.parametrize("answer", [b"nonsense\n", b'{"pong": 1, "t": 1}\n', b"[]\n", b'{"pong": 0}\n', b"\xff\n"])
def test_an_answer_that_is_no_pong_fails_the_exchange(pongs: tuple[LineReader, int], answer: bytes) -> None:
    reader, writing = pongs
    os.write(writing, answer)
    with pytest.raises(ProtocolError, match="is no pong"):
        Pipe().wire.greet(reader)


def test_a_runner_that_does_not_answer_fails_the_exchange(pongs: tuple[LineReader, int]) -> None:
    with pytest.raises(ProtocolError, match="did not answer within"):
        Pipe().wire.greet(pongs[0], timeout_s=0.01)


def test_a_runner_that_is_gone_ends_the_worker_quietly(pongs: tuple[LineReader, int]) -> None:
    os.close(pongs[1])
    with pytest.raises(PipeClosed):
        Pipe().wire.greet(pongs[0])


def test_lines_that_come_in_pieces_and_together_are_told_apart(pongs: tuple[LineReader, int]) -> None:
    reader, writing = pongs
    os.write(writing, b"one\ntw")
    assert reader.line(1.0) == b"one"
    os.write(writing, b"o\nthree\n")
    assert [reader.line(1.0), reader.line(1.0)] == [b"two", b"three"]


def test_taking_the_pipes_sends_all_other_output_to_stderr_and_leaves_stdin_empty() -> None:
    code = (
        "import os, sys, subprocess\n"
        "from engine.worker.protocol import take_pipes\n"
        "reading, writing = take_pipes()\n"
        "print('printed', flush=True)\n"
        "os.write(1, b'raw\\n')\n"
        "subprocess.run('echo child; cat; ls /proc/self/fd | wc -l', shell=True, check=True)\n"
        "assert not os.get_inheritable(reading) and not os.get_inheritable(writing)\n"
        "os.write(writing, os.read(reading, 100))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], input=b"spec\n", capture_output=True, cwd=ROOT, check=True)
    assert done.stdout == b"spec\n"
    printed, raw, child, descriptors = done.stderr.split()
    assert [printed, raw, child] == [b"printed", b"raw", b"child"]
    assert int(descriptors) == 4, "stdin, stdout, stderr and ls's own"


def test_a_spec_is_read() -> None:
    spec = parse(json.dumps(a_spec(counts={"rate": 3})))
    assert (spec.token, spec.scenario, spec.device_kind, spec.counts) == ("tok", "harness/floor", "cpu", {"rate": 3})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seconds": -1}, "seconds"),
        ({"seconds": math.inf}, "seconds"),
        ({"seconds": True}, "seconds"),
        ({"scenario": "../../etc"}, "scenario"),
        ({"framework": "tensorflow"}, "tensorflow"),
        ({"device": {"kind": "tpu", "index": 0}}, "tpu"),
        ({"device": []}, "device"),
        ({"counts": {"rate": 0}}, "rate"),
        ({"counts": {"rate": 1.5}}, "rate"),
        ({"seed": "x"}, "seed"),
        ({"token": None}, "token"),
    ],
)
def test_a_spec_with_a_wrong_key_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ProtocolError, match=named):
        parse(json.dumps(a_spec(**change)))


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"[" * 200_000])
def test_a_spec_that_is_no_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError, match="JSON"):
        parse(text)
