from __future__ import annotations

from pathlib import Path

import pytest

from engine.events import TelemetrySummary
from engine.telemetry.rapl import Rapl
from engine.telemetry.samples import Sample
from engine.values import Missing
from engine.window import Window


def over(quantity: str, *readings: tuple[float, float], begin_s: float = 0.0, end_s: float = 100.0) -> TelemetrySummary:
    """The summary of (second, value) readings of one quantity."""
    window = Window(begin_s, end_s)
    for t, value in readings:
        window.add(Sample(t=t, device="GPU-1", provider="nvml", values={quantity: value}))
    summary = window.event(200.0, "t0001", "GPU-1", {quantity: "nvml"}, {}).summaries[quantity]
    assert isinstance(summary, TelemetrySummary)
    return summary


def test_a_quantity_by_hand() -> None:
    assert over("power_w", (1.0, 500.0), (2.0, 700.0), (4.0, 600.0)) == TelemetrySummary(
        n=3, mean=600.0, min=500.0, max=700.0, delta=100.0, source="nvml", span_s=3.0
    )


def test_only_what_was_read_inside_the_window_counts() -> None:
    readings = [(float(t), float(t)) for t in range(10)]
    seen = over("temperature_c", *readings, begin_s=2.0, end_s=5.0)
    assert (seen.n, seen.min, seen.max, seen.span_s) == (4, 2.0, 5.0, 3.0)


def test_one_sample_spans_no_time() -> None:
    assert over("energy_j", (1.0, 9.0)) == TelemetrySummary(
        n=1, mean=9.0, min=9.0, max=9.0, delta=0.0, source="nvml", span_s=0.0
    )


def test_mean_power_from_a_slow_energy_counter_needs_the_time_between_its_samples() -> None:
    # 600 W, read at 4 Hz: the window of 1 s holds three intervals of a quarter of a second
    seen = over("energy_j", *((0.1 + number / 4, 600 * (0.1 + number / 4)) for number in range(5)), end_s=1.0)
    assert isinstance(seen.delta, float)
    assert seen.delta == pytest.approx(450.0)
    assert seen.delta / seen.span_s == pytest.approx(600.0)


@pytest.mark.parametrize("quantity", ["energy_j", "cpu_pressure_s", "ecc_corrected_errors", "pcie_replays"])
def test_a_counter_that_began_anew_has_no_delta(quantity: str) -> None:
    seen = over(quantity, (1.0, 50.0), (2.0, 60.0), (3.0, 5.0), (4.0, 500.0))
    assert seen.delta == Missing("the counter began anew inside the window")
    assert (seen.n, seen.max, seen.span_s) == (4, 500.0, 3.0)


def test_a_counter_that_began_anew_before_the_window_is_whole() -> None:
    assert over("energy_j", (1.0, 50.0), (3.0, 5.0), (4.0, 7.0), begin_s=2.0).delta == 2.0


def test_a_quantity_that_falls_is_no_counter_that_began_anew() -> None:
    assert over("temperature_c", (1.0, 70.0), (2.0, 60.0)).delta == -10.0


def test_what_was_not_read_is_missing_with_its_reason() -> None:
    window = Window(0.0, 1.0)
    event = window.event(2.0, "t0001", "GPU-1", {"power_w": "nvml"}, {"fan_percent": "not supported"})
    assert event.summaries == {
        "power_w": Missing("no sample inside the window", "nvml"),
        "fan_percent": Missing("not supported"),
    }


def rapl_window(sysfs: Path, *readers: Rapl, counted_uj: list[int]) -> TelemetrySummary:
    """What a window sees of the packages' energy, each reading by the next of `readers`."""
    window = Window(0.0)
    for t, (reader, energy_uj) in enumerate(zip(readers, counted_uj, strict=True)):
        (sysfs / "class/powercap/intel-rapl:0/energy_uj").write_text(f"{energy_uj}\n")
        energy_j, _ = reader.read()
        assert isinstance(energy_j, float)
        window.add(Sample(t=float(t), device="host", provider="host", values={"cpu_energy_j": energy_j}))
    summary = window.event(9.0, "t0001", "host", {"cpu_energy_j": "rapl"}, {}).summaries["cpu_energy_j"]
    assert isinstance(summary, TelemetrySummary)
    return summary


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    zone = tmp_path / "class/powercap/intel-rapl:0"
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    (zone / "max_energy_range_uj").write_text("262143000000\n")
    return tmp_path


def test_a_telemetry_process_that_is_started_again_goes_on_counting_joules(sysfs: Path) -> None:
    first, second = Rapl(sysfs), Rapl(sysfs)
    counted = [10_000_000, 15_000_000, 40_000_000, 60_000_000]
    assert rapl_window(sysfs, first, first, second, second, counted_uj=counted).delta == pytest.approx(50.0)


def test_a_restart_after_the_counter_ran_over_is_no_small_energy(sysfs: Path) -> None:
    first, second = Rapl(sysfs), Rapl(sysfs)
    counted = [262_140_000_000, 2_000_000, 9_000_000, 12_000_000]
    seen = rapl_window(sysfs, first, first, second, second, counted_uj=counted)
    assert seen.delta == Missing("the counter began anew inside the window")
