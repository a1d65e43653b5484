"""discover(): a real probe process against the NVML stub, a made file system, and this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from engine.hardware.inventory import Inventory, discover
from engine.values import Missing
from tests.nvml_stub import Stub, uuid

StubMaker = Callable[..., Stub]


@pytest.fixture
def make_stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubMaker:
    """Makes a stub that the probe of this test loads."""

    def make(devices: int = 1) -> Stub:
        stub = Stub(tmp_path, devices)
        for name in ("LD_LIBRARY_PATH", "NVML_STUB_STATE"):
            monkeypatch.setenv(name, stub.environment[name])
        return stub

    return make


def _facts_of_gpu(inventory: Inventory, place: int = 0) -> dict[str, object]:
    return dict(inventory.accelerators[place].facts)


def test_idle_recording_gives_the_recorded_facts(make_stub: StubMaker) -> None:
    make_stub()
    inventory = discover()
    (gpu,) = inventory.accelerators
    assert (gpu.device, gpu.index, gpu.kind, gpu.name) == (uuid(0), 0, "cuda", "NVIDIA H200")
    numa = gpu.facts["numa_node"]
    assert {name: value for name, value in gpu.facts.items() if name != "numa_node"} == {
        "driver_version": "580.159.04",
        "nvml_version": "13.580.159.04",
        "cuda_driver_version": "13.0",
        "pci_address": "0000:00:06.0",
        "pci_id": "10de:2335",
        "architecture": "Hopper",
        "compute_capability": "9.0",
        "cuda_cores": 16896,
        "vbios_version": "96.00.A5.00.1A",
        "gsp_firmware_version": "580.159.04",
        "memory_total_bytes": 150754820096,
        "memory_free_bytes": 150109880320,
        "memory_bus_bits": 6016,
        "power_limit_enforced_w": 700.0,
        "power_limit_default_w": 700.0,
        "power_limit_min_w": 200.0,
        "power_limit_max_w": 700.0,
        "shutdown_temperature_c": 95,
        "slowdown_temperature_c": 89,
        "memory_max_temperature_c": 95,
        "gpu_max_temperature_c": 87,
        "graphics_clock_max_mhz": 1980,
        "sm_clock_max_mhz": 1980,
        "memory_clock_max_mhz": 3201,
        "ecc_enabled": True,
        "ecc_enabled_after_reset": True,
        "mig_enabled": False,
        "mig_devices": "none",
        "persistence_enabled": True,
        "compute_mode": "default",
        "pcie_link_generation": 5,
        "pcie_link_width": 16,
        "pcie_link_generation_max": 5,
        "pcie_link_width_max": 16,
        "compute_processes": 0,
        "compute_process_list": "none",
    }
    assert isinstance(numa, int | Missing)


def test_cpu_comes_last_and_accelerators_are_numbered_from_0(make_stub: StubMaker) -> None:
    make_stub(3)
    devices = discover().devices
    assert [(device.device, device.index) for device in devices] == [
        (uuid(0), 0),
        (uuid(1), 1),
        (uuid(2), 2),
        ("cpu", -1),
    ]


def test_this_machine_has_a_cpu_with_cores_and_a_host_with_a_kernel() -> None:
    inventory = discover()
    cpu = inventory.devices[-1]
    assert (cpu.device, cpu.kind, cpu.index) == ("cpu", "cpu", -1)
    assert cpu.name
    assert isinstance(cpu.facts["threads"], int)
    assert cpu.facts["threads"] >= 1
    assert isinstance(inventory.host["kernel"], str)
    assert len(str(inventory.host["boot_id"])) == 36


def test_vendor_library_that_hangs_costs_its_time_limit_only(make_stub: StubMaker) -> None:
    make_stub(2).set({"1.nvmlDeviceGetVbiosVersion.hang": 1})
    inventory = discover(timeout_s=2.0)
    assert [device.device for device in inventory.devices] == [uuid(0), "cpu"]
    assert inventory.problems == ("the hardware probe did not finish: no end within 2 s while NVML: reading GPU 1",)


def test_vendor_library_that_crashes_is_a_problem_with_the_signal(make_stub: StubMaker) -> None:
    make_stub().set({"nvmlInit.crash": 1})
    inventory = discover()
    assert [device.device for device in inventory.devices] == ["cpu"]
    assert "signal 6 (SIGABRT) while NVML: loading and initialising the library" in inventory.problems[0]


def test_vendor_library_that_prints_garbage_changes_nothing(make_stub: StubMaker) -> None:
    make_stub().set({"noise": 1})
    inventory = discover()
    assert [device.device for device in inventory.devices] == [uuid(0), "cpu"]
    assert inventory.problems == ()


def test_device_name_with_escape_codes_is_cleaned(make_stub: StubMaker) -> None:
    make_stub().set({"0.Name": "H200\x1b]52;c;aGVsbG8=\x07\u202e"})
    assert discover().accelerators[0].name == "H200␛]52;c;aGVsbG8=␇\N{REPLACEMENT CHARACTER}"


def test_device_name_that_is_no_utf8_is_replaced(make_stub: StubMaker) -> None:
    make_stub().set({"0.Name": b"H2\xff00".decode("utf-8", "surrogateescape")})
    assert discover().accelerators[0].name == "H2\N{REPLACEMENT CHARACTER}00"


def test_lost_gpu_is_a_problem_and_the_node_goes_on(make_stub: StubMaker) -> None:
    make_stub(2).set({"1.lost": 1})
    inventory = discover()
    assert [device.device for device in inventory.devices] == [uuid(0), "cpu"]
    assert "GPU 1: NVML: GPU is lost" in inventory.problems[0]


def test_driver_mismatch_is_a_problem_with_the_cause(make_stub: StubMaker) -> None:
    make_stub().set({"nvmlInit.return": 18})
    inventory = discover()
    assert inventory.accelerators == ()
    assert "driver and library versions differ" in inventory.problems[0]


def test_fact_that_cannot_be_read_is_missing_with_the_reason(make_stub: StubMaker) -> None:
    make_stub().set({"0.nvmlDeviceGetVbiosVersion.return": 4, "0.MaxClockInfo(1,)": 0xFFFFFFFF})
    facts = _facts_of_gpu(discover())
    assert facts["vbios_version"] == Missing("NVML: Insufficient Permissions", "NVML")
    assert facts["sm_clock_max_mhz"] == Missing("NVML: the answer is its mark for not available (4294967295)", "NVML")


def test_running_processes_are_named_with_their_memory(make_stub: StubMaker) -> None:
    make_stub().set({"0.ComputeRunningProcesses": 2})
    facts = _facts_of_gpu(discover())
    assert facts["compute_processes"] == 2
    assert facts["compute_process_list"] == "pid 4000 (1.0 GiB), pid 4001 (1.0 GiB)"


def test_mig_gpu_is_a_problem_with_its_slices(make_stub: StubMaker) -> None:
    make_stub().set({"0.MigMode[0]": 1, "0.MaxMigDeviceCount": 7, "0.UUID": "GPU-whole"})
    inventory = discover()
    assert inventory.accelerators[0].facts["mig_enabled"] is True
    assert "GPU 0 is in MIG mode" in inventory.problems[0]


def _pci(root: Path, address: str, vendor: str, device: str, group: str) -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    for name, value in (("vendor", vendor), ("device", device), ("class", group)):
        (folder / name).write_text(f"{value}\n")


def test_accelerators_of_other_vendors_are_named_as_not_supported(tmp_path: Path) -> None:
    _pci(tmp_path, "0000:01:00.0", "0x1002", "0x74a1", "0x120000")
    _pci(tmp_path, "0000:02:00.0", "0x1002", "0x74a1", "0x120000")
    _pci(tmp_path, "0000:03:00.0", "0x1ae0", "0x0063", "0x088000")
    _pci(tmp_path, "0000:04:00.0", "0x1ae0", "0x0042", "0x020000")  # a network card of the same vendor
    _pci(tmp_path, "0000:05:00.0", "0x1002", "0x1681", "0x030000")  # a processor's own graphics
    assert discover(root=str(tmp_path)).problems[:2] == (
        "2 AMD accelerators seen on PCI (1002:74a1); not supported by this version",
        "1 Google TPU seen on PCI (1ae0:0063); not supported by this version",
    )


def test_nvidia_gpus_on_the_bus_without_a_library_are_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = Stub(tmp_path, 0)
    stub.set({"nvmlInit.return": 12})
    for name in ("LD_LIBRARY_PATH", "NVML_STUB_STATE"):
        monkeypatch.setenv(name, stub.environment[name])
    _pci(tmp_path, "0000:06:00.0", "0x10de", "0x2335", "0x030200")
    assert discover(root=str(tmp_path)).problems == (
        "1 NVIDIA GPU(s) on this node, 0 of them readable: NVML: the library libnvidia-ml.so.1 was not found",
    )


def test_made_root_without_any_file_gives_reasons_and_a_cpu(tmp_path: Path) -> None:
    inventory = discover(root=str(tmp_path))
    assert inventory.devices[-1].device == "cpu"
    assert isinstance(inventory.host["boot_id"], Missing)
    assert isinstance(inventory.devices[-1].facts["sockets"], Missing)


def test_inventory_is_encoded_without_a_number_that_json_lacks(make_stub: StubMaker) -> None:
    make_stub()
    inventory = discover()
    assert msgspec.json.decode(msgspec.json.encode(inventory), type=Inventory) == inventory
