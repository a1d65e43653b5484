from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import msgspec
import pytest

from engine import files, journal, runfolder
from engine.errors import AibenchError
from engine.events import AnyEvent, Event, Iterations, Notice, RunStarted
from engine.journal import JournalReader, JournalWriter, encode, read_events
from engine.plan_file import MAX_TRIALS
from engine.session import fold
from tests.engine.journal_cases import (
    iterations,
    journal_bytes,
    longest_planned,
    planned,
    run_ended,
    run_events,
    run_started,
    write_journal,
)

MARK = Notice(t=1.0, level="info", source="test", text="appended after the cut")


def read(path: Path) -> tuple[list[AnyEvent], int, int]:
    reader = JournalReader(path)
    events = list(reader)
    reader.close()
    return events, reader.corrupt, reader.unknown


def put(folder: Path, data: bytes) -> Path:
    path = folder / runfolder.JOURNAL
    path.write_bytes(data)
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    events = list(run_events(3))
    path = write_journal(tmp_path, *events)
    assert read(path) == (events, 0, 0)
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == [runfolder.JOURNAL]  # the reserve is given back


def test_a_cut_at_any_byte_costs_the_torn_line_alone(tmp_path: Path) -> None:
    events = list(run_events(1))
    data = journal_bytes(*events)
    lines = data.splitlines(keepends=True)
    for cut in range(len(data) + 1):
        path = put(tmp_path, data[:cut])
        appender = files.Appender(path)  # what JournalWriter appends with, without a thread for each of the cuts
        appender.add(encode(MARK))
        appender.sync()
        appender.close()
        ends = [sum(map(len, lines[: number + 1])) for number in range(len(lines))]
        whole = sum(cut >= end - 1 for end in ends)  # a line that lacks only its newline is whole
        torn = cut not in {0, *ends, *(end - 1 for end in ends)}
        assert read(path) == ([*events[:whole], MARK], int(torn), 0), cut


def test_a_writer_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    events = list(run_events(1))
    put(tmp_path, journal_bytes(*events)[:-7])
    path = write_journal(tmp_path, MARK)
    assert read(path) == ([*events[:-1], MARK], 1, 0)


def test_a_flipped_bit_costs_the_lines_it_touches_alone(tmp_path: Path) -> None:
    events = list(run_events(1))
    data = journal_bytes(*events)
    schema = data.index(b'"schema":1') + len(b'"schema":')
    for place in range(len(data)):
        for bit in {place % 8, 6}:
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            path = put(tmp_path, bytes(flipped))
            try:
                found, corrupt, unknown = read(path)
            except AibenchError:
                assert place == schema  # another digit there is a newer schema, and said so
                continue
            fold(found)
            same = sum(event in events for event in found)
            assert same >= len(events) - (2 if data[place : place + 1] == b"\n" else 1)
            assert corrupt + unknown <= 2


def test_random_garbage_is_counted_and_passed_over(tmp_path: Path) -> None:
    garbage = b"\n".join(
        [
            b"\x00" * 500,
            b"\xff\xfe",
            b"{}",
            b"[]",
            b"null",
            b'{"event": 7}',
            b'{"event": "notice"}',
            b'{"event": "notice", "t": 1e999, "level": "info", "source": "", "text": ""}',
            b'{"event": "notice", "t": NaN, "level": "info", "source": "", "text": ""}',
            b'{"event": "notice", "t": 1.0, "level": "info", "source": "", "text": "\xff"}',
            b'{"event": "notice", "t": 1.0, "level": "info", "source": "", "text": "\\ud800"}',
            b'{"event": "notice", "t": 1.0, "level": "loud", "source": "", "text": ""}',
        ]
    )
    path = put(tmp_path, encode(MARK) + garbage + b"\n\n\n" + encode(MARK))
    assert read(path) == ([MARK, MARK], 12, 0)


def test_an_event_of_a_newer_version_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    newer = b'{"event": "teleported", "t": "later", "schema": 99}\n'
    path = put(tmp_path, newer + encode(MARK) + b"{\n")
    assert read(path) == ([MARK], 1, 1)


def test_a_field_of_a_newer_version_is_passed_over(tmp_path: Path) -> None:
    line = encode(MARK).replace(b"{", b'{"added": [1, {"deep": null}], ', 1)
    assert read(put(tmp_path, line)) == ([MARK], 0, 0)


def test_a_newer_schema_is_refused_in_one_line(tmp_path: Path) -> None:
    line = b'{"event": "run_started", "schema": 2, "everything": "else is different"}\n'
    path = put(tmp_path, line)
    with pytest.raises(AibenchError, match=r"journal schema 2 of .* is newer than this program's 1; use the") as caught:
        read(path)
    assert caught.value.code == 2


def test_deep_nesting_is_a_damaged_line(tmp_path: Path) -> None:
    deep = b'{"event": "run_started", "plan": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    unknown = b'{"event": "x", "y": ' + b"[" * 100_000 + b"\n"
    assert read(put(tmp_path, deep + unknown + encode(MARK))) == ([MARK], 2, 0)


def test_a_line_that_never_ends_is_not_held_in_memory(tmp_path: Path) -> None:
    path = put(tmp_path, encode(MARK))
    with path.open("r+b") as stream:
        stream.seek(64 * 1024**2)  # a hole of zeros
        stream.write(b"\n" + encode(MARK) + b"x" * (journal.MAX_LINE_BYTES + 1))
    reader = JournalReader(path)
    held = 0
    events = []
    for event in reader:
        events.append(event)
        held = max(held, len(reader._tail._rest))
    reader.close()
    assert (events, reader.corrupt) == ([MARK, MARK], 2)
    assert held <= journal.MAX_LINE_BYTES + 1


def test_every_string_is_clean(tmp_path: Path) -> None:
    dirty = Notice(t=1.0, level="info", source="\x1b]0;x\x07", text="a\u202eb\x7f\x9b")
    [event], *_ = read(put(tmp_path, msgspec.json.encode(dirty) + b"\n"))
    assert event == Notice(t=1.0, level="info", source="␛]0;x␇", text="a\ufffdb␡\ufffd")


def test_plan_and_facts_are_clean_too(tmp_path: Path) -> None:
    start = msgspec.structs.replace(run_started(1), plan={"k\u200b": ["v\x1b", {"n": "\x85"}]})
    [event], *_ = read(put(tmp_path, msgspec.json.encode(start)))
    assert isinstance(event, RunStarted)
    assert event.plan == {"k\ufffd": ["v␛", {"n": "\ufffd"}]}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused(number: float) -> None:
    events: list[Event] = [
        msgspec.structs.replace(MARK, t=number, text="null"),
        iterations("t0001", (1.0, number)),
        msgspec.structs.replace(run_started(1), plan={"a": [{"b": number}]}),
    ]
    for event in events:
        with pytest.raises(AibenchError, match="which no journal can hold"):
            encode(event)


def test_a_text_that_says_null_is_no_missing_number() -> None:
    assert json.loads(encode(msgspec.structs.replace(MARK, text="null")))["text"] == "null"


def test_a_line_too_long_to_be_read_is_not_written() -> None:
    start = msgspec.structs.replace(run_started(0), trials=tuple(planned(number) for number in range(30_000)))
    with pytest.raises(AibenchError, match="plan fewer trials"):
        encode(start)


def test_the_longest_plan_fits_into_the_first_line() -> None:
    assert 5 * len(encode(run_started(MAX_TRIALS))) < journal.MAX_LINE_BYTES
    trials = tuple(longest_planned(number) for number in range(1, MAX_TRIALS + 1))
    start = msgspec.structs.replace(run_started(0), trials=trials, plan={"text": "x" * files.MAX_PLAN_BYTES})
    assert len(encode(start)) < journal.MAX_LINE_BYTES


def test_polling_waits_for_an_unfinished_line(tmp_path: Path) -> None:
    path = tmp_path / runfolder.JOURNAL
    reader = JournalReader(path)
    assert reader.poll() == []
    line = encode(MARK)
    with path.open("wb", buffering=0) as stream:
        for place in range(len(line) - 1):
            stream.write(line[place : place + 1])
            assert reader.poll() == []
        stream.write(line[-1:])
        assert reader.poll() == [MARK]
        stream.write(line[:5])
        assert reader.poll() == []
    assert (reader.corrupt, reader.unknown) == (0, 0)
    reader.close()


def test_polls_are_bounded_and_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "POLL_BYTES", 1000)
    events = list(run_events(5))
    reader = JournalReader(write_journal(tmp_path, *events))
    polls = []
    while poll := reader.poll():
        polls.append(poll)
    reader.close()
    assert [event for poll in polls for event in poll] == events
    assert len(polls) > 5


def test_a_journal_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AibenchError, match=r"cannot read .*journal\.jsonl: No such file"):
        list(read_events(tmp_path / runfolder.JOURNAL))


def test_a_pipe_in_its_place_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / runfolder.JOURNAL)
    with pytest.raises(AibenchError, match="is not a regular file"):
        list(read_events(tmp_path / runfolder.JOURNAL))


def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(AibenchError, match=r"cannot write .*gone/journal\.jsonl: No such file") as caught:
        JournalWriter(tmp_path / "gone")
    assert caught.value.code == 3


class SlowDisk:
    """Holds the journal's thread inside its write until `go`, as a disk that does not answer does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.inside = threading.Event()
        real = files.Appender.flush

        def flush(appender: files.Appender) -> None:
            self.inside.set()
            self.go.wait(60)
            real(appender)

        monkeypatch.setattr(files.Appender, "flush", flush)


def test_a_stuck_disk_holds_up_no_append_and_loses_no_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "COALESCE_BYTES", 10_000)
    disk = SlowDisk(monkeypatch)
    writer = JournalWriter(tmp_path)
    for _ in range(1000):
        writer.append(iterations("t0001", tuple(0.001 * number for number in range(1, 101))))
    writer.append(MARK)
    with pytest.raises(AibenchError, match=r"has not answered for 0\.1 s"):
        writer.sync(timeout_s=0.1)
    assert writer._queued_bytes < 200_000
    disk.go.set()
    writer.close()
    events, *_ = read(tmp_path / runfolder.JOURNAL)
    found = [event for event in events if isinstance(event, Iterations)]
    assert sum(event.group * len(event.durations_s) for event in found) == 100_000
    total = sum(event.group * duration for event in found for duration in event.durations_s)
    assert total == pytest.approx(1000 * 5.05)
    assert events[-1] == MARK


def test_a_disk_stuck_for_ever_costs_bounded_memory_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "GIVE_UP_BYTES", 10_000)
    disk = SlowDisk(monkeypatch)
    writer = JournalWriter(tmp_path)
    for _ in range(1000):
        writer.append(MARK)
    assert writer._queued_bytes <= 10_000
    assert "events were dropped" in writer.problem
    disk.go.set()
    with pytest.raises(AibenchError, match="events were dropped; use a faster disk") as caught:
        writer.close()
    assert caught.value.code == 3


def test_what_waits_while_a_disk_is_slow_is_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SlowDisk(monkeypatch)
    writer = JournalWriter(tmp_path)
    writer.append(MARK)
    assert disk.inside.wait(60)
    events = list(run_events(3))
    for event in events:
        writer.append(event)
    disk.go.set()
    writer.close()
    assert read(tmp_path / runfolder.JOURNAL)[0] == [MARK, *events]


def test_syncs_from_many_threads(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)

    def work() -> None:
        for _ in range(20):
            writer.append(MARK)
            writer.sync()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.append(run_ended())
    writer.close()
    assert read(tmp_path / runfolder.JOURNAL)[0] == [MARK] * 160 + [run_ended()]
