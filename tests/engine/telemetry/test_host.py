"""The host provider on this machine and on a made sysfs: RAPL, hwmon, clocks."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from engine.telemetry import hwmon
from engine.telemetry.provider import Reader, Unreadable
from engine.telemetry.rapl import Rapl
from engine.values import Missing
from tests.engine.telemetry.live import Telemetry


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _zone(sysfs: Path, zone: str, name: str, energy_uj: int, range_uj: int | None = 65_532_610_987) -> Path:
    folder = sysfs / "class/powercap" / zone
    _write(folder / "name", f"{name}\n")
    _write(folder / "energy_uj", f"{energy_uj}\n")
    if range_uj is not None:
        _write(folder / "max_energy_range_uj", f"{range_uj}\n")
    return folder


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_rapl_adds_packages_and_neither_psys_nor_subzones_nor_the_mmio_twin(tmp_path: Path) -> None:
    folders = [_zone(tmp_path, f"intel-rapl:{n}", f"package-{n}", 1000) for n in (0, 1)]
    others = [("intel-rapl:2", "psys"), ("intel-rapl:0:0", "core"), ("intel-rapl-mmio:0", "package-0")]
    folders += [_zone(tmp_path, zone, name, 1000) for zone, name in others]
    clock = _Clock()
    rapl = Rapl(tmp_path, clock)
    first = rapl.read()
    for folder in folders:
        _write(folder / "energy_uj", "50001000")
    clock.now = 2.0
    assert list(rapl.read()) == pytest.approx([100.002, 50.0])
    assert first[0] == pytest.approx(0.002)
    assert isinstance(first[1], Missing)
    assert "2 packages" in rapl.reader().source


def test_rapl_counter_that_wraps_goes_on_counting(tmp_path: Path) -> None:
    folder = _zone(tmp_path, "intel-rapl:0", "package-0", 65_000_000_000)
    rapl = Rapl(tmp_path)
    assert rapl.read()[0] == pytest.approx(65_000.0)
    _write(folder / "energy_uj", "467389013")
    assert rapl.read()[0] == pytest.approx(66_000.0)
    _write(folder / "energy_uj", "468389013")
    assert rapl.read()[0] == pytest.approx(66_001.0)


@pytest.mark.parametrize("range_uj", [None, 7_000_000])
def test_rapl_counter_that_goes_back_without_a_range_is_missing_and_not_negative(
    tmp_path: Path, range_uj: int | None
) -> None:
    folder = _zone(tmp_path, "intel-rapl:0", "package-0", 9_000_000, range_uj)
    clock = _Clock()
    rapl = Rapl(tmp_path, clock)
    rapl.read()
    _write(folder / "energy_uj", "1000000")
    with pytest.raises(Unreadable, match="range is not known"):
        rapl.read()
    powers = []
    for clock.now, energy_uj in ((2.0, 3_000_000), (4.0, 4_000_000)):
        _write(folder / "energy_uj", str(energy_uj))
        energy_j, power_w = rapl.read()
        assert energy_j == pytest.approx(energy_uj * 1e-6)
        powers.append(power_w)
    assert powers == [Missing("RAPL: power needs two readings"), pytest.approx(0.5)]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become a user who may not read the file")
def test_rapl_permission_denied_is_the_reason() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        sysfs = Path(name)
        sysfs.chmod(0o755)
        (_zone(sysfs, "intel-rapl:0", "package-0", 1) / "energy_uj").chmod(0o400)
        os.seteuid(65534)
        try:
            with pytest.raises(Unreadable, match="energy_uj: permission denied"):
                Rapl(sysfs).read()
        finally:
            os.seteuid(0)


def test_rapl_absent_is_a_reason(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="no package"):
        Rapl(tmp_path).read()


def _sensor(sysfs: Path, chip: int, name: str, sensors: dict[str, tuple[str, int]]) -> None:
    folder = sysfs / f"class/hwmon/hwmon{chip}"
    _write(folder / "name", name)
    for sensor, (label, value) in sensors.items():
        _write(folder / f"{sensor}_label", label)
        _write(folder / f"{sensor}_input", str(value))


def _by_name(readers: list[Reader]) -> dict[str, Reader]:
    return {reader.quantities[0]: reader for reader in readers}


def test_hwmon_takes_the_hottest_package_and_no_core_and_no_other_chip(tmp_path: Path) -> None:
    _sensor(tmp_path, 0, "nvme", {"temp1": ("Composite", 99_000)})
    _sensor(tmp_path, 1, "coretemp", {"temp1": ("Package id 0", 51_000), "temp2": ("Core 0", 98_000)})
    _sensor(tmp_path, 2, "coretemp", {"temp1": ("Package id 1", 64_000)})
    reader = _by_name(hwmon.readers(tmp_path))["cpu_temperature_c"]
    assert list(reader.read()) == [64.0]
    assert reader.source == "hwmon coretemp, the hottest package"


def test_hwmon_prefers_the_die_to_the_control_temperature(tmp_path: Path) -> None:
    _sensor(tmp_path, 0, "k10temp", {"temp1": ("Tctl", 80_000), "temp3": ("Tdie", 70_000)})
    assert list(_by_name(hwmon.readers(tmp_path))["cpu_temperature_c"].read()) == [70.0]


def test_hwmon_power_meter_is_the_node_power(tmp_path: Path) -> None:
    _write(tmp_path / "class/hwmon/hwmon0/name", "power_meter")
    _write(tmp_path / "class/hwmon/hwmon0/power1_average", "812000000")
    assert list(_by_name(hwmon.readers(tmp_path))["node_power_w"].read()) == [812.0]


def test_hwmon_garbage_is_a_reason_and_no_number(tmp_path: Path) -> None:
    _sensor(tmp_path, 0, "coretemp", {"temp1": ("Package id 0", 0)})
    _write(tmp_path / "class/hwmon/hwmon0/temp1_input", "\x1b[2Jhot")
    with pytest.raises(Unreadable, match="holds no number") as caught:
        _by_name(hwmon.readers(tmp_path))["cpu_temperature_c"].read()
    assert "\x1b" not in str(caught.value)


def test_process_reads_the_given_sysfs_and_says_what_is_missing(tmp_path: Path) -> None:
    _zone(tmp_path, "intel-rapl:0", "package-0", 7)
    for cpu, khz in enumerate((2_000_000, 3_000_000)):
        _write(tmp_path / f"devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq", str(khz))
    with Telemetry("--device", "cpu", "--sysfs-root", str(tmp_path)) as telemetry:
        slow = telemetry.sample("host", lambda values: "load_1min" in values).values
        fast = telemetry.sample("host", lambda values: "cpu_energy_j" in values).values
        sources = telemetry.sources("host")
        assert telemetry.end() == 0
    assert slow["cpu_clock_mhz"] == 2500
    assert {"cpu_pressure_s", "memory_pressure_s", "io_pressure_s"} <= set(slow) | set(sources.missing)
    assert fast["cpu_energy_j"] == pytest.approx(7e-6)
    assert 0 <= fast["cpu_utilisation_percent"] <= 100
    assert fast["memory_used_bytes"] > 0
    assert sources.missing["cpu_temperature_c"] == "hwmon: the kernel offers no processor temperature"
    assert sources.missing["node_power_w"] == "hwmon: the kernel offers no power meter of the node"
    assert {line.device for line in telemetry.seen} == {"host"}
