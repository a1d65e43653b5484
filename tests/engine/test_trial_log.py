from __future__ import annotations

import threading
import tracemalloc
from pathlib import Path

import pytest

from engine import files, trial_log
from engine.trial_log import TrialLog


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of 100 bytes at the head and 50 at the tail."""
    monkeypatch.setattr(trial_log, "HEAD_BYTES", 100)
    monkeypatch.setattr(trial_log, "TAIL_BYTES", 50)


class Writes:
    """Counts what reaches the disk; with `go` unset, each write waits as it does on a disk that does not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.go = threading.Event()
        self.go.set()
        real = files.Appender.forget

        def forget(appender: files.Appender) -> None:
            self.go.wait(60)
            self.sizes.append(appender.waiting_bytes)
            real(appender)

        monkeypatch.setattr(files.Appender, "forget", forget)


def test_all_that_is_printed_is_kept_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "t0001.log"
    log = TrialLog(path)
    for piece in (b"first\n", b"", b"second\n"):
        log.write(piece)
    assert log.recent() == b"first\nsecond\n"
    log.close()
    assert path.read_bytes() == b"first\nsecond\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert (log.written, log.dropped, log.problem) == (13, 0, "")


def test_a_trial_that_prints_nothing_leaves_no_file(tmp_path: Path) -> None:
    TrialLog(tmp_path / "t0001.log").close()
    assert list(tmp_path.iterdir()) == []


def test_many_tiny_pieces_are_few_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_log, "FLUSH_S", 60.0)  # no timer in between, so that the count is exact
    writes = Writes(monkeypatch)
    log = TrialLog(tmp_path / "t0001.log")
    for number in range(200_000):
        log.write(b"%07d\n" % number)
    log.close(60)
    assert len(writes.sizes) == -(-1_600_000 // trial_log.PIECE_BYTES)
    assert (tmp_path / "t0001.log").read_bytes() == b"".join(b"%07d\n" % number for number in range(200_000))


def test_many_tiny_pieces_take_no_more_memory_than_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_log, "HEAD_BYTES", 0)
    monkeypatch.setattr(trial_log, "TAIL_BYTES", 100_000)
    log = TrialLog(tmp_path / "t0001.log")
    tracemalloc.start()
    try:
        for number in range(50_000):
            log.write(b"%07d\n" % number)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * 100_000  # 12 500 pieces as objects of their own would be six times their bytes
    assert log.dropped == 300_000
    log.close()
    assert (tmp_path / "t0001.log").read_bytes().endswith(b"0049999\n")


def test_what_waits_is_written_while_the_trial_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_log, "FLUSH_S", 0.0)
    written = threading.Event()
    real = files.Appender.forget

    def forget(appender: files.Appender) -> None:
        real(appender)
        written.set()

    monkeypatch.setattr(files.Appender, "forget", forget)
    log = TrialLog(tmp_path / "t0001.log")
    log.write(b"alive\n")
    assert written.wait(60)
    assert (tmp_path / "t0001.log").read_bytes() == b"alive\n"
    log.close()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("piece", [1, 7, 99, 100, 101, 150, 151, 1000])
@pytest.mark.parametrize("total", [0, 99, 100, 101, 149, 150, 151, 152, 1000])
def test_head_and_tail_are_kept_and_the_middle_is_counted(tmp_path: Path, piece: int, total: int) -> None:
    printed = bytes(number % 251 for number in range(total))
    path = tmp_path / "t0001.log"
    log = TrialLog(path)
    for begin in range(0, total, piece):
        log.write(printed[begin : begin + piece])
    log.close()
    dropped = max(total - 150, 0)
    line = f"\n… {dropped} bytes were not kept …\n".encode() if dropped else b""
    assert (path.read_bytes() if total else b"") == printed[:100] + line + printed[100:][-50:]
    assert (log.written, log.dropped) == (total, dropped)


def test_more_than_the_limit_is_a_flood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_log, "FLOOD_BYTES", 10)
    log = TrialLog(tmp_path / "t0001.log")
    seen = []
    for piece in (b"x" * 10, b"x"):
        log.write(piece)
        seen.append(log.flooded)
    log.close()
    assert seen == [False, True]


def test_the_newest_bytes_are_the_last_words(tmp_path: Path) -> None:
    log = TrialLog(tmp_path / "t0001.log")
    log.write(b"a" * 5000)
    log.write(b"b" * 10)
    log.close()
    assert log.recent() == b"a" * 4086 + b"b" * 10


@pytest.mark.parametrize(
    ("path", "words"), [("/dev/full", "full: No space left on device"), ("gone/t.log", "t.log: No such file")]
)
def test_a_disk_that_refuses_costs_the_log_alone(tmp_path: Path, path: str, words: str) -> None:
    log = TrialLog(tmp_path / path)
    for _ in range(100):
        log.write(b"x" * 10_000)
    log.close()
    assert log.problem.startswith(words)
    assert (log.written, log.recent()) == (1_000_000, b"x" * 4096)


def test_a_disk_that_never_answers_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = Writes(monkeypatch)
    writes.go.clear()
    log = TrialLog(tmp_path / "t0001.log")
    for _ in range(400):
        log.write(b"x" * 100_000)
    log.close(timeout_s=0.1)
    assert log.problem == "t0001.log: the disk has not answered for 0.1 s"
    assert len(log._waiting) <= trial_log.HEAD_BYTES + trial_log.TAIL_BYTES + 100
    assert log._thread.daemon
    writes.go.set()
    log._thread.join(60)
