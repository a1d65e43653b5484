"""The telemetry process against the NVML stub, which replays what a real H200 answered."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.children import python_command
from engine.telemetry.samples import Sample
from tests.engine.telemetry.live import PATIENCE_S, Telemetry
from tests.nvml_stub import Stub, recorded_load, uuid

FIRST, SECOND = uuid(0), uuid(1)


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    return Stub(tmp_path, devices=2)


def _holds(**wanted: float) -> Callable[[dict[str, float]], bool]:
    return lambda values: all(values.get(name) == value for name, value in wanted.items())


def _shows(row: dict[str, float]) -> Callable[[dict[str, float]], bool]:
    """Whether fast values are those of a row of the recorded load."""
    wanted = {
        "power_w": row["power_instant_mw"] / 1e3,
        "temperature_c": row["gpu_temp_c"],
        "memory_temperature_c": row["memory_temp_c"],
        "sm_clock_mhz": row["sm_clock_mhz"],
        "limit_sw_power_cap": float(row["clocks_event_reasons"] == 4),
    }
    return lambda values: {name: values.get(name) for name in wanted} == pytest.approx(wanted, rel=1e-9)


def _watch(stub: Stub, *arguments: str, devices: tuple[str, ...] = (FIRST,)) -> Telemetry:
    chosen = [part for device in devices for part in ("--device", device)]
    return Telemetry("--hz", "50", *chosen, *arguments, environment=stub.environment)


def test_idle_recording_gives_exactly_the_recorded_values(stub: Stub) -> None:
    with _watch(stub) as telemetry:
        fast = telemetry.sample(FIRST, lambda values: "power_w" in values).values
        slow = telemetry.sample(FIRST, lambda values: "power_limit_w" in values).values
    limits = {name: value for name, value in fast.items() if name.startswith("limit_")}
    assert {name: value for name, value in fast.items() if name not in limits} == pytest.approx(
        {
            "power_w": 79.154,
            "energy_j": 2502.804,
            "temperature_c": 30,
            "memory_temperature_c": 33,
            "sm_clock_mhz": 345,
            "memory_clock_mhz": 3201,
            "utilisation_percent": 0,
            "memory_utilisation_percent": 0,
            "memory_used_bytes": 644939776,
        }
    )
    assert [name for name, value in limits.items() if value] == ["limit_gpu_idle"]
    assert slow == pytest.approx(
        {
            "power_limit_w": 700,
            "pcie_link_generation": 5,
            "pcie_link_width": 16,
            "pcie_replays": 0,
            "pcie_tx_bytes_per_s": 703e3,
            "pcie_rx_bytes_per_s": 603e3,
            "ecc_corrected_errors": 0,
            "ecc_uncorrected_errors": 0,
            "remapped_rows_corrected": 0,
            "remapped_rows_uncorrected": 0,
            "remapped_rows_pending": 0,
            "remapped_rows_failed": 0,
            "performance_state": 0,
            "persistence_mode": 1,
            "compute_processes": 0,
        }
    )


def test_sources_name_the_reader_of_each_quantity_and_the_reason_for_each_missing_one(stub: Stub) -> None:
    with _watch(stub) as telemetry:
        sources = telemetry.sources(FIRST)
    assert sources.sources["power_w"] == "NVML field power_instant"
    assert sources.sources["energy_j"] == "NVML total energy counter"
    assert sources.missing == {"fan_speed_percent": "NVML: Not Supported"}


def test_load_recording_gives_its_sequence_of_values(stub: Stub) -> None:
    rows = list(recorded_load())[::5]
    assert len(rows) == 41
    with _watch(stub, "--hz", "200") as telemetry:
        for row in rows:
            stub.set(
                {
                    "0.field.186.ull": int(row["power_instant_mw"]),
                    "0.TotalEnergyConsumption": int(row["energy_mj"]),
                    "0.Temperature(0,)": int(row["gpu_temp_c"]),
                    "0.field.82.ull": int(row["memory_temp_c"]),
                    "0.ClockInfo(1,)": int(row["sm_clock_mhz"]),
                    "0.CurrentClocksEventReasons": int(row["clocks_event_reasons"]),
                }
            )
            telemetry.sample(FIRST, _shows(row))
        energy_j = rows[-1]["energy_mj"] / 1e3
        telemetry.sample(FIRST, lambda values: values.get("energy_j") == energy_j)
        times = [line.t for line in telemetry.seen if isinstance(line, Sample) and line.device == FIRST]
    assert times == sorted(times)


def test_power_field_missing_falls_back_to_the_average_and_says_so(stub: Stub) -> None:
    stub.set({"0.field.186.ret": 3})
    with _watch(stub) as telemetry:
        assert telemetry.sample(FIRST).values["power_w"] == pytest.approx(79.139)
        label = telemetry.sources(FIRST).sources["power_w"]
    assert label == "NVML power usage (1 s average on this architecture)"


def test_power_usage_of_an_a100_is_labelled_instantaneous(stub: Stub) -> None:
    stub.set(
        {"0.field.186.ret": 3, "0.Architecture": 7, "0.CudaComputeCapability[0]": 8, "0.CudaComputeCapability[1]": 0}
    )
    with _watch(stub) as telemetry:
        label = telemetry.sources(FIRST).sources["power_w"]
    assert label == "NVML power usage (instantaneous on this architecture)"


@pytest.mark.parametrize("mark", [0xFFFFFFFF, -1])
def test_not_available_mark_is_a_missing_value_and_no_number(stub: Stub, mark: int) -> None:
    stub.set({"0.Temperature(0,)": mark, "0.TotalEnergyConsumption": 0xFFFFFFFFFFFFFFFF})
    with _watch(stub) as telemetry:
        values = telemetry.sample(FIRST).values
        missing = telemetry.sources(FIRST).missing
    assert "temperature_c" not in values
    assert "energy_j" not in values
    assert "not available" in missing["temperature_c"]
    assert "not available" in missing["energy_j"]


def test_quantity_that_goes_missing_later_is_announced(stub: Stub) -> None:
    with _watch(stub) as telemetry:
        telemetry.sources(FIRST, lambda line: "energy_j" in line.sources)
        stub.set({"0.nvmlDeviceGetTotalEnergyConsumption.return": 999})
        later = telemetry.sources(FIRST, lambda line: "energy_j" in line.missing)
        stub.set({"0.nvmlDeviceGetTotalEnergyConsumption.return": None})
        telemetry.sources(FIRST, lambda line: "energy_j" in line.sources)
    assert later.missing["energy_j"] == "NVML: Unknown Error"
    assert "power_w" in later.sources


def test_hanging_call_stalls_its_device_alone(stub: Stub) -> None:
    with _watch(stub, "--call-limit", "0.3", devices=(FIRST, SECOND)) as telemetry:
        telemetry.sample(FIRST)
        stub.set({"0.nvmlDeviceGetUtilizationRates.hang": 1})
        stalled = telemetry.stalled(FIRST)
        for _ in range(20):
            telemetry.sample(SECOND)
        stub.set({"0.nvmlDeviceGetUtilizationRates.hang": None})
        back = telemetry.stalled(FIRST)
        telemetry.sample(FIRST)
    assert stalled.seconds > 0.3
    assert stalled.doing == "nvmlDeviceGetUtilizationRates"
    assert (back.seconds, back.doing) == (0.0, "")


@pytest.mark.parametrize("how", ["end of stdin", "SIGTERM"])
def test_hanging_call_does_not_hold_up_the_end(stub: Stub, how: str) -> None:
    with _watch(stub, "--call-limit", "0.2") as telemetry:
        telemetry.sample(FIRST)
        stub.set({"0.nvmlDeviceGetPowerUsage.hang": 1, "0.nvmlDeviceGetClockInfo.hang": 1})
        telemetry.stalled(FIRST)
        if how == "SIGTERM":
            telemetry.process.terminate()
            assert telemetry.process.wait(PATIENCE_S) == -signal.SIGTERM
        else:
            assert telemetry.end() == 0


def test_hanging_initialisation_leaves_the_host_readings(stub: Stub) -> None:
    stub.set({"nvmlInit.hang": 1})
    with _watch(stub, "--call-limit", "0.2") as telemetry:
        assert telemetry.stalled(FIRST).doing == "nvmlInitWithFlags"
        telemetry.sample("host", lambda values: "memory_used_bytes" in values)
        assert telemetry.end() == 0


def test_lost_gpu_is_missing_with_the_reason_and_comes_back(stub: Stub) -> None:
    with _watch(stub, "--reopen", "0.2", devices=(FIRST, SECOND)) as telemetry:
        telemetry.sources(FIRST, lambda line: "power_w" in line.sources)
        stub.set({"0.lost": 1})
        lost = telemetry.sources(FIRST, lambda line: "power_w" in line.missing)
        telemetry.sample(SECOND)
        stub.set({"0.lost": None})
        telemetry.sources(FIRST, lambda line: "power_w" in line.sources)
        telemetry.sample(FIRST)
    assert lost.sources == {}
    assert set(lost.missing.values()) == {"NVML: GPU is lost"}
    assert {"energy_j", "power_limit_w", "limit_sw_power_cap"} <= set(lost.missing)


def test_lost_gpu_is_tried_again_gently(stub: Stub) -> None:
    with _watch(stub, "--reopen", "1000", devices=(FIRST, SECOND)) as telemetry:
        telemetry.sample(FIRST)
        stub.set({"0.lost": 1})
        telemetry.sources(FIRST, lambda line: not line.sources)
        lines_before = len(telemetry.seen)
        stub.set({"0.lost": None})
        for _ in range(20):
            telemetry.sample(SECOND)
        assert [line for line in telemetry.seen[lines_before:] if line.device == FIRST] == []


def test_device_that_is_not_there_is_missing_with_the_reason(stub: Stub) -> None:
    with _watch(stub, devices=(uuid(7),)) as telemetry:
        missing = telemetry.sources(uuid(7)).missing
    assert missing["power_w"] == f"NVML: Not Found (no device {uuid(7)})"


def test_no_library_gives_a_reason_for_each_quantity_and_the_host_goes_on() -> None:
    with Telemetry("--device", FIRST, environment=os.environ | {"LD_LIBRARY_PATH": ""}) as telemetry:
        sources = telemetry.sources(FIRST)
        if sources.sources or "not found" not in sources.missing["power_w"]:
            pytest.skip("this machine has NVIDIA's own library, so its absence cannot be seen here")
        assert set(sources.missing.values()) == {"NVML: the library libnvidia-ml.so.1 was not found"}
        telemetry.sample("host", lambda values: "cpu_utilisation_percent" in values)
        assert telemetry.end() == 0


def test_mig_device_is_read_through_the_whole_gpu_and_labelled(stub: Stub) -> None:
    stub.set({"0.mig.UUID": "MIG-1", "0.MigMode[0]": 1, "0.UtilizationRates.gpu": None})
    with _watch(stub, devices=("MIG-1",)) as telemetry:
        sources = telemetry.sources("MIG-1")
    assert sources.sources["power_w"] == "NVML field power_instant of the whole GPU"
    assert sources.missing["utilisation_percent"] == "NVML: Not Supported"


def test_older_driver_without_the_event_reasons_is_asked_for_throttle_reasons(stub: Stub) -> None:
    stub.set(
        {
            "nvmlDeviceGetCurrentClocksEventReasons.return": 13,
            "nvmlDeviceGetSupportedClocksEventReasons.return": 13,
        }
    )
    with _watch(stub) as telemetry:
        assert telemetry.sample(FIRST).values["limit_gpu_idle"] == 1.0
        source = telemetry.sources(FIRST).sources["limit_gpu_idle"]
    assert source == "NVML ClocksThrottleReasons"


def test_reason_that_the_device_does_not_report_is_missing_and_no_zero(stub: Stub) -> None:
    stub.set({"0.SupportedClocksEventReasons": 0x1FF & ~0x80})
    with _watch(stub) as telemetry:
        missing = telemetry.sources(FIRST).missing
    assert missing["limit_hw_power_brake_slowdown"] == "NVML: this device does not report the reason"


def test_library_that_prints_to_stdout_tears_no_line(stub: Stub) -> None:
    stub.set({"noise": 1})
    with _watch(stub) as telemetry:
        assert telemetry.sample(FIRST).values["power_w"] == pytest.approx(79.154)
        assert telemetry.sources(FIRST).missing == {"fan_speed_percent": "NVML: Not Supported"}


def test_broken_pipe_ends_the_process_quietly(stub: Stub) -> None:
    with _watch(stub) as telemetry:
        telemetry.sample(FIRST)
        assert telemetry.process.stdout is not None
        telemetry.process.stdout.close()
        assert telemetry.process.wait(PATIENCE_S) == 0
        assert telemetry.process.stderr is not None
        assert telemetry.process.stderr.read() == b""


def test_killed_parent_takes_the_process_along(stub: Stub) -> None:
    # The parent hands its own stdin on, so that only the parent's death can end the child.
    code = (
        "import subprocess, sys; child = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE);"
        "child.stdout.readline(); print(child.pid, flush=True); child.wait()"
    )
    command = python_command("engine.telemetry.process", "--device", FIRST)
    parent = subprocess.Popen(
        [command[0], "-c", code, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=stub.environment
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    descriptor = os.pidfd_open(child)
    parent.kill()
    parent.wait()
    assert select.select([descriptor], [], [], PATIENCE_S)[0] == [descriptor]
    os.close(descriptor)
    parent.communicate()
