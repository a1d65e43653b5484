from __future__ import annotations

import json
import math
import os
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import files, series
from engine.series import SeriesWriter
from engine.series_reader import SeriesReader, Window
from engine.telemetry.samples import Sample

WALL = 1_700_000_000.0


class Clock:
    """Seconds that a test moves by hand; the wall clock runs along."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        return WALL + self.now


def sample(clock: Clock, power_w: float = 100.0, device: str = "GPU-1", more: dict[str, float] | None = None) -> Sample:
    return Sample(t=clock.now, device=device, provider="nvml", values={"power_w": power_w, **(more or {})})


@pytest.fixture
def clock() -> Clock:
    return Clock()


def writer(folder: Path, clock: Clock) -> SeriesWriter:
    return SeriesWriter(folder, clock, clock.wall)


def run(target: SeriesWriter, clock: Clock, seconds: float, *, hz: float, in_trial: bool) -> None:
    """Samples of one quantity that counts 0, 1, 2 … by second."""
    begin = clock.now
    for number in range(int(seconds * hz)):
        clock.now = begin + number / hz
        target.add(sample(clock, float(int(number / hz))), in_trial)
    clock.now = begin + seconds


def test_every_sample_of_a_trial_is_kept(tmp_path: Path, clock: Clock) -> None:
    target = writer(tmp_path, clock)
    run(target, clock, 5, hz=10, in_trial=True)
    target.close()
    rows = list(SeriesReader(tmp_path).rows(0))
    assert [row.values["power_w"].mean for row in rows] == [float(number // 10) for number in range(50)]
    assert [row.t for row in rows[:3]] == [1000.0, 1000.1, 1000.2]
    assert rows[0].wall_s == WALL + 1000.0
    assert (rows[0].device, rows[0].provider) == ("GPU-1", "nvml")


def test_outside_trials_only_windows_are_kept(tmp_path: Path, clock: Clock) -> None:
    target = writer(tmp_path, clock)
    run(target, clock, 10, hz=10, in_trial=False)
    target.close()
    reader = SeriesReader(tmp_path)
    assert list(reader.rows(0)) == []
    windows = [(row.t, row.values["power_w"]) for row in reader.rows(5)]
    assert windows == [(1000.0, Window(50, 2.0, 0.0, 4.0)), (1005.0, Window(50, 7.0, 5.0, 9.0))]
    assert [row.values["power_w"] for row in reader.rows(60)] == [Window(100, 4.5, 0.0, 9.0)]


def test_a_quantity_read_less_often_has_its_own_count(tmp_path: Path, clock: Clock) -> None:
    target = writer(tmp_path, clock)
    for number in range(10):
        values = {"ecc": float(number)} if number in (0, 5) else {"fan": 3.0} if number == 1 else {}
        target.add(sample(clock, 7.0, more=values), in_trial=False)
    target.close()
    [row] = SeriesReader(tmp_path).rows(5)
    assert row.values == {
        "power_w": Window(10, 7.0, 7.0, 7.0),
        "ecc": Window(2, 2.5, 0.0, 5.0),
        "fan": Window(1, 3.0, 3.0, 3.0),
    }


def test_devices_do_not_mix(tmp_path: Path, clock: Clock) -> None:
    target = writer(tmp_path, clock)
    for _ in range(3):
        target.add(sample(clock, 1.0), in_trial=True)
        target.add(sample(clock, 2.0, device="GPU-2"), in_trial=True)
    target.close()
    rows = list(SeriesReader(tmp_path).rows(5))
    assert {row.device: row.values["power_w"].mean for row in rows} == {"GPU-1": 1.0, "GPU-2": 2.0}


def test_a_very_large_counter_keeps_its_digits(tmp_path: Path, clock: Clock) -> None:
    target = writer(tmp_path, clock)
    target.add(sample(clock, 123_456_789_012.25), in_trial=True)
    target.add(sample(clock, 123_456_789_013.75), in_trial=True)
    target.close()
    reader = SeriesReader(tmp_path)
    assert [row.values["power_w"].mean for row in reader.rows(0)] == [123_456_789_012.25, 123_456_789_013.75]
    [row] = reader.rows(5)
    window = row.values["power_w"]
    assert (window.min, window.max) == (123_456_789_012.25, 123_456_789_013.75)
    assert window.min <= window.mean <= window.max


def test_old_segments_go_and_the_history_stays(tmp_path: Path, clock: Clock) -> None:
    target = writer(tmp_path, clock)
    begin = clock.now
    run(target, clock, 20, hz=10, in_trial=True)
    run(target, clock, 9 * 86_400, hz=1 / 60, in_trial=False)
    target.close()
    reader = SeriesReader(tmp_path)
    assert list(reader.rows(0)) == []
    oldest = {width: next(reader.rows(width)).t for width in (5, 60, 600)}
    assert clock.now - oldest[5] <= 86_400 + 3600 + 60
    assert clock.now - oldest[60] <= 8 * 86_400 + 60
    assert oldest[600] == begin // 600 * 600
    walls = [row.wall_s for row in reader.history()]
    assert walls == sorted(walls)
    assert walls[0] == WALL + begin // 600 * 600
    assert walls[-1] == pytest.approx(WALL + clock.now, abs=120)
    assert len(list(tmp_path.iterdir())) < 50


def test_a_resumed_run_goes_on_in_new_segments_and_ages_the_old(tmp_path: Path, clock: Clock) -> None:
    first = writer(tmp_path, clock)
    run(first, clock, 10, hz=10, in_trial=True)
    first.close()
    before = {path.name for path in tmp_path.iterdir()}
    rebooted = Clock(5.0)
    rebooted.wall = lambda: WALL + 1020.0 + rebooted.now  # type: ignore[method-assign]
    second = SeriesWriter(tmp_path, rebooted, rebooted.wall)
    run(second, rebooted, 10, hz=10, in_trial=True)
    reader = SeriesReader(tmp_path)
    second.add(sample(rebooted), in_trial=False)
    run(second, rebooted, 1000, hz=1, in_trial=False)
    second.close()
    after = {path.name for path in tmp_path.iterdir()}
    raw_of_the_first = next(name for name in sorted(before) if name == "001.jsonl")
    assert raw_of_the_first not in after
    assert before - after == {raw_of_the_first}
    walls = [row.wall_s for row in reader.history()]
    assert walls == sorted(walls)


def test_a_disk_that_refuses_is_told_once_and_ends_nothing(tmp_path: Path, clock: Clock) -> None:
    folder = tmp_path / "series"
    folder.write_bytes(b"")  # a file stands where the folder belongs
    target = writer(folder, clock)
    told = []
    for _ in range(10):
        clock.now += 2
        told.append(target.add(sample(clock), in_trial=True))
        target._disk.submit(int).result()  # the disk's thread has done what was asked of it
    target.close()
    [problem] = [text for text in told if text]
    assert problem.startswith("telemetry samples are not kept from here on: cannot append to")
    assert "Not a directory" in problem
    assert target.problem == problem


def test_a_disk_that_does_not_answer_costs_bounded_memory(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "GIVE_UP_BYTES", 10_000)
    go = threading.Event()
    monkeypatch.setattr(files, "append_bytes", lambda *_: go.wait(60))
    target = writer(tmp_path, clock)
    told = []
    for _ in range(2000):
        clock.now += 0.5
        told.append(target.add(sample(clock), in_trial=True))
    go.set()
    target.close()
    assert sum(map(bool, told)) == 1
    assert "does not answer" in target.problem
    waiting = sum(each.waiting_bytes for segments in target._tiers for each in segments.opened)
    assert waiting < 20_000


def test_a_cut_at_any_byte_costs_the_torn_row_alone(tmp_path: Path, clock: Clock) -> None:
    target = writer(tmp_path, clock)
    run(target, clock, 1, hz=10, in_trial=True)
    target.close()
    path = tmp_path / "001.jsonl"
    data = path.read_bytes()
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        reader = SeriesReader(tmp_path)
        rows = list(reader.rows(0))
        assert len(rows) == max(data[:cut].count(b"\n") - 2, 0)  # the header and the columns are no rows
        assert reader.corrupt == 0


def test_a_flipped_bit_never_raises_and_costs_a_line(tmp_path: Path, clock: Clock) -> None:
    target = writer(tmp_path, clock)
    run(target, clock, 1, hz=10, in_trial=True)
    target.close()
    path = tmp_path / "001.jsonl"
    data = path.read_bytes()
    rows_begin = data.index(b"\n", data.index(b"\n") + 1) + 1
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << (place % 8)
        path.write_bytes(bytes(flipped))
        rows = list(SeriesReader(tmp_path).rows(0))
        if place >= rows_begin:
            assert len(rows) >= 8


def test_strange_files_are_passed_over(tmp_path: Path, clock: Clock) -> None:
    target = writer(tmp_path, clock)
    run(target, clock, 1, hz=10, in_trial=True)
    target.close()
    (tmp_path / "notes.txt").write_bytes(b"x")
    (tmp_path / "900.jsonl").write_bytes(b"")
    (tmp_path / "901.jsonl").write_bytes(b'{"series": 99, "window_s": 0, "t": 0, "wall_s": 0}\n')
    (tmp_path / "902.jsonl").write_bytes(b"[" * 10_000)
    os.mkfifo(tmp_path / "903.jsonl")
    (tmp_path / "x.jsonl").mkdir()
    assert len(list(SeriesReader(tmp_path).rows(0))) == 10
    assert writer(tmp_path, clock)._next == 904


def segment(tmp_path: Path, *lines: bytes, header: bytes = b'{"series":1,"window_s":5,"t":0.0,"wall_s":0.0}') -> Path:
    """A segment of windows of one quantity, with these lines after its columns."""
    columns = b'{"columns":0,"device":"GPU-1","provider":"nvml","names":["power_w"]}'
    (tmp_path / "001.jsonl").write_bytes(b"\n".join([header, columns, *lines, b""]))
    return tmp_path


GOOD = b"[0,5.0,50,[2.0,1.0,3.0]]"


def read(folder: Path) -> tuple[list[float], int]:
    """The begin of each row, and how many lines were damaged."""
    reader = SeriesReader(folder)
    return [row.t for row in reader.rows(5)], reader.corrupt


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b"[0,5.0,50," + b"[" * 100_000 + b"]" * 100_000 + b"]",
        b'{"columns":1,"device":"x","provider":"x","names":[],"later":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[0,5.0,50," + b"7" * (2 * series.MAX_LINE_BYTES) + b"]",
        b'{"columns":1,"device":"' + b"x" * (2 * series.MAX_LINE_BYTES) + b'","provider":"","names":[]}',
        b"[0,5.0,50,1e999]",
        b"[0,5.0,50,[1e308,1.0,2.0,3.0]]",
        b"[0,5.0,50,[1e400,1.0]]",
        b"[0,5.0,0,1.0]",
        b"[0,5.0,-3,1.0]",
        b"[0,5.0,50,[0,1.0]]",
        b"[7,5.0,50,1.0]",
        b"[[0],5.0,50,1.0]",
        b"[0,[5.0],50,1.0]",
        b"[0,5.0,50]",
        b"[0,5.0,50,1.0,2.0]",
        b"[0,5.0,50,[1.0,2.0,3.0,4.0,5.0]]",
        b"[0,5.0,50,[]]",
        b"[0]",
        b"[]",
        b"null",
        b'[0,5.0,50,"\xff"]',
    ],
    ids=range(22),
)
def test_a_damaged_line_of_a_segment_costs_itself(tmp_path: Path, line: bytes) -> None:
    assert read(segment(tmp_path, GOOD, line, GOOD)) == ([5.0, 5.0], 1)


def test_keys_of_a_newer_version_are_passed_over(tmp_path: Path) -> None:
    header = b'{"series":1,"window_s":5,"t":0.0,"wall_s":0.0,"added":{"deep":[1]}}'
    columns = b'{"columns":1,"device":"GPU-2","provider":"nvml","names":["power_w"],"units":["W"]}'
    folder = segment(tmp_path, GOOD, columns, b"[1,10.0,50,2.0]", header=header)
    assert read(folder) == ([5.0, 10.0], 0)


@pytest.mark.parametrize(
    "header",
    [
        b'{"series":2,"window_s":5,"t":0.0,"wall_s":0.0}',
        b'{"series":1,"window_s":5,"t":0.0,"wall_s":0.0,"later":' + b"[" * 100_000,
        b"x" * (2 * series.MAX_LINE_BYTES),
    ],
    ids=["newer", "deep", "huge"],
)
def test_a_segment_that_is_not_of_this_version_is_passed_over(tmp_path: Path, header: bytes) -> None:
    assert read(segment(tmp_path, GOOD, header=header)) == ([], 0)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.integers(-1, 60),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(["columns", "names"]), inner),
    max_leaves=10,
)
ROWS = st.lists(VALUES, max_size=4).map(lambda rest: [0, *rest]) | VALUES


@settings(max_examples=300, deadline=None)
@given(st.lists(ROWS.map(json.dumps).map(str.encode) | st.binary(max_size=40).filter(lambda x: b"\n" not in x)))
def test_any_lines_give_rows_that_can_be_drawn(lines: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        reader = SeriesReader(segment(Path(name), *lines, GOOD))
        rows = list(reader.rows(5))
    assert rows[-1].t == 5.0
    assert len(rows) + reader.corrupt <= len(lines) + 1
    for row in rows:
        figures = [row.t, row.wall_s, *(number for each in row.values.values() for number in (each.mean, each.min))]
        assert all(map(math.isfinite, figures))
        assert all(each.n >= 1 for each in row.values.values())


def test_names_come_out_clean(tmp_path: Path, clock: Clock) -> None:
    target = writer(tmp_path, clock)
    target.add(Sample(t=clock.now, device="a\x1b", provider="\u202e", values={"x\x07": 1.0}), in_trial=True)
    target.close()
    [row] = SeriesReader(tmp_path).rows(0)
    assert (row.device, row.provider, list(row.values)) == ("a␛", "\ufffd", ["x␇"])


def test_a_day_of_eight_devices_stays_under_100_mb(tmp_path: Path, clock: Clock) -> None:
    """Computed from a quarter of an hour: what each tier holds after a day, from the bytes of its rows."""
    target = writer(tmp_path, clock)
    hz, minutes, devices = 10, 10, 8
    begin = clock.now
    for number in range(minutes * 60 * hz):
        clock.now = begin + number / hz
        for index in range(devices):
            target.add(_h200(clock.now, f"GPU-{index:032}", number + index, slow=number % hz == 0), in_trial=True)
    target.close()
    per_second = dict.fromkeys((0, 5, 60, 600), 0.0)
    for path in tmp_path.iterdir():
        header = series.read_header(path)
        assert header is not None
        per_second[header.window_s] += path.stat().st_size / (minutes * 60)
    most = {tier.window_s: min(tier.segment_s + tier.keep_s, 86_400) for tier in series.TIERS}
    assert sum(per_second[width] * most[width] for width in most) < 100e6


def _h200(t: float, device: str, number: int, *, slow: bool) -> Sample:
    """Twenty-five quantities that move as those of an H200 under load do."""
    values = {
        "power_w": 640.0 + (number * 7919 % 60_000) / 1000,
        "energy_j": 123_456_789.0 + number * 65.123,
        "temperature_c": 60.0 + number // 50 % 4,
        "memory_temperature_c": 70.0 + number // 70 % 3,
        "sm_clock_mhz": 1965.0 - number % 3 * 15,
        "memory_clock_mhz": 3201.0,
        "utilisation_percent": 100.0 - number % 2,
        "memory_utilisation_percent": 40.0 + number % 5,
        "memory_used_bytes": 85_899_345_920.0,
        **{
            f"limit_{name}": float(number // 20 % 2 if name == "power" else 0)
            for name in ("power", "thermal", "hw", "sync")
        },
    }
    if slow:
        values |= {f"ecc_{number}": 0.0 for number in range(8)}
        values |= {
            "power_limit_w": 700.0,
            "fan_percent": 0.0,
            "pcie_rx_bytes_per_s": 1e6 + number * 997 % 1_000_003,
            "pcie_tx_bytes_per_s": 2e6 + number * 991 % 1_000_003,
        }
    return Sample(t=t, device=device, provider="nvml", values=values)
