"""What the adapters say of devices, from files and texts as real machines have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.worker.adapters import host
from engine.worker.adapters.jax import widened
from engine.worker.adapters.python import PythonAdapter
from engine.worker.adapters.torch import TorchCpu, TorchCuda, built_for, lacks
from engine.worker.work import OutOfMemory, Unsupported


def write(root: Path, **files: str) -> Path:
    """Files below a root; a double underscore in a name is a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("line", "native"),
    [
        ("flags\t\t: fpu sse2 avx2", set()),
        ("flags\t\t: avx512f avx512_vnni", {"int8"}),
        ("flags\t\t: avx_vnni", {"int8"}),
        ("flags\t\t: avx512_bf16 avx512_vnni avx512_fp16", {"bf16", "int8", "fp16"}),
        ("flags\t\t: amx_bf16 amx_int8 amx_tile", {"bf16", "int8"}),
        ("flags\t\t: amx_fp16", {"fp16"}),
        ("Features\t: fp asimd asimdhp", {"fp16"}),
        ("Features\t: fp asimd asimdhp i8mm bf16", {"fp16", "int8", "bf16"}),
        ("", set()),
    ],
)
def test_a_processor_does_natively_what_its_flags_say(tmp_path: Path, line: str, native: set[str]) -> None:
    root = write(tmp_path, proc__cpuinfo=f"processor\t: 0\n{line}\n\nprocessor\t: 1\nflags\t: all\n")
    dtypes = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
    assert {dtype for dtype in dtypes if not host.lacks(dtype, root)} == native | {"fp64", "fp32"}


def test_a_missing_instruction_is_named(tmp_path: Path) -> None:
    root = write(tmp_path, proc__cpuinfo="flags\t: sse2\n")
    expected = "not supported by device: bf16 needs one of avx512_bf16, amx_bf16, bf16"
    assert host.lacks("bf16", root) == expected
    assert host.lacks("tf32", root).startswith("not supported by device: ")


def test_the_last_level_cache_is_the_largest(tmp_path: Path) -> None:
    for index, size in enumerate(("48K\n", "64K\n", "2048K\n", "491520K\n", "odd\n")):
        write(tmp_path, **{f"sys__devices__system__cpu__cpu0__cache__index{index}__size": size})
    assert host.last_level_cache_bytes(tmp_path) == 480 << 20
    assert host.last_level_cache_bytes(tmp_path / "nowhere") == 0


MEMINFO = "MemTotal:       24000000 kB\nMemFree:  1 kB\nMemAvailable:   20000000 kB\n"


def test_memory_is_what_the_host_has_where_no_cgroup_limits_it(tmp_path: Path) -> None:
    root = write(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="0::/a\n", sys__fs__cgroup__a__memory_max="max\n")
    assert host.available_bytes(root) == 20_000_000 * 1024
    assert host.memory_bytes(root) == 24_000_000 * 1024


def test_memory_is_what_the_tightest_cgroup_of_version_2_leaves(tmp_path: Path) -> None:
    root = write(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="0::/pod/box\n")
    for folder, most, now, stat in (
        ("pod", "2000000\n", "1500000\n", "anon 3\ninactive_file 400000\n"),
        ("pod/box", "1800000\n", "100000\n", ""),
    ):
        place = write(root / "sys/fs/cgroup" / folder)
        place.mkdir(parents=True, exist_ok=True)
        (place / "memory.max").write_text(most)
        (place / "memory.current").write_text(now)
        (place / "memory.stat").write_text(stat)
    assert host.available_bytes(root) == 900_000


def test_memory_is_what_a_cgroup_of_version_1_leaves(tmp_path: Path) -> None:
    root = write(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="5:cpu:/x\n4:memory:/box\n1:name=systemd:/y\n")
    place = root / "sys/fs/cgroup/memory/box"
    place.mkdir(parents=True)
    (place / "memory.limit_in_bytes").write_text("1000000\n")
    (place / "memory.usage_in_bytes").write_text("1200000\n")
    (place / "memory.stat").write_text("inactive_file 9\ntotal_inactive_file 50000\n")
    assert host.available_bytes(root) == 0, "over its limit is nothing left, not less than nothing"


@pytest.mark.parametrize(
    ("capability", "native"),
    [
        ((6, 1), {"fp64", "fp32", "fp16"}),
        ((7, 5), {"fp64", "fp32", "fp16", "int8"}),
        ((8, 0), {"fp64", "fp32", "fp16", "int8", "bf16", "tf32"}),
        ((9, 0), {"fp64", "fp32", "fp16", "int8", "bf16", "tf32", "fp8"}),
    ],
)
def test_a_cuda_device_does_natively_what_its_compute_capability_says(
    capability: tuple[int, int], native: set[str]
) -> None:
    dtypes = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
    assert {dtype for dtype in dtypes if not lacks(dtype, capability)} == native
    assert lacks("fp4", capability) == "not supported by device: unknown dtype fp4"


def test_a_missing_compute_capability_is_named() -> None:
    assert lacks("fp8", (8, 6)) == "not supported by device: fp8 needs compute capability 8.9, this is 8.6"


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((9, 0), ["sm_80", "sm_90"], True),
        ((8, 6), ["sm_80"], True),
        ((8, 0), ["sm_86"], False),
        ((12, 0), ["sm_90", "sm_100"], False),
        ((12, 0), ["sm_90", "compute_90"], True),
        ((7, 0), ["compute_75"], False),
        ((12, 0), ["sm_120a"], True),
        ((9, 0), [], False),
    ],
)
def test_a_build_runs_on_its_own_major_version_and_its_ptx_on_newer_ones(
    capability: tuple[int, int], architectures: list[str], runs: bool
) -> None:
    assert built_for(capability, architectures) is runs


# Cut from programs that XLA compiled for a processor and for an H200.
HLO_CPU_BF16 = """
%wrapped_convert_computation (param_0.1: bf16[512,512]) -> f32[512,512] {
  %param_0.1 = bf16[512,512]{1,0} parameter(0)
  ROOT %convert.3 = f32[512,512]{1,0} convert(%param_0.1)
}
"""
HLO_OUTPUT_ONLY = """
  %dot_general.0 = f32[512,512]{1,0} dot(%param_0, %param_1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %convert.5 = bf16[512,512]{1,0} convert(%dot_general.0)
"""
HLO_CPU_FP8 = """
  %param_0.2 = f8e4m3fn[512,512]{1,0} parameter(0)
  %convert.6 = bf16[512,512]{1,0} convert(%param_0.2), metadata={op_name="jit(f)/dot_general" stack_frame_id=2}
"""
HLO_TYPED_OPERANDS = """
  param_0 = s8[8,8]{1,0} parameter(0)
  convert.1 = s32[8,8]{1,0} convert(s8[8,8]{1,0} param_0)
"""


@pytest.mark.parametrize(
    ("hlo", "dtype", "kind"),
    [
        (HLO_CPU_BF16, "bf16", "f32"),
        (HLO_OUTPUT_ONLY, "bf16", ""),
        (HLO_CPU_FP8, "fp8", "bf16"),
        (HLO_TYPED_OPERANDS, "int8", "s32"),
        (HLO_CPU_BF16, "fp32", ""),
        ("", "bf16", ""),
    ],
)
def test_a_program_that_widens_its_operands_is_recognised(hlo: str, dtype: str, kind: str) -> None:
    assert widened(hlo, dtype) == kind


def test_what_does_not_fit_is_refused_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = PythonAdapter()
    monkeypatch.setattr(adapter, "free_bytes", lambda: 5_100_000_000)
    adapter.reserve(5_100_000_000, "the work")
    with pytest.raises(OutOfMemory, match=r"^the work needs 12\.90 GB of memory, 5\.10 GB are free$"):
        adapter.reserve(12_900_000_000, "the work")


def test_a_dtype_the_device_lacks_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="not supported by device: no processor multiplies fp8 natively"):
        TorchCpu().require("fp8")


def test_torch_on_a_processor_says_out_of_memory_by_text() -> None:
    adapter = TorchCpu()
    with pytest.raises(RuntimeError) as caught:
        adapter.torch.empty(1 << 60, dtype=adapter.torch.uint8)
    assert adapter.ran_out_of_memory(caught.value)
    assert adapter.ran_out_of_memory(MemoryError())
    assert not adapter.ran_out_of_memory(RuntimeError("shapes cannot be multiplied"))


class FakeCuda:
    """The part of torch.cuda that timing uses, with a device whose clock the enqueued work moves."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.now_ms = 0.0
        fake = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at_ms = -1.0

            def record(self, stream: object) -> None:
                self.at_ms = fake.now_ms

            def elapsed_time(self, end: Event) -> float:
                return end.at_ms - self.at_ms

        self.Event = Event

    def current_stream(self, device: object) -> str:
        return "stream"

    def synchronize(self, device: object) -> None:
        self.log.append("synchronize")

    def kernel(self, name: str, ms: float) -> Any:
        def call() -> None:
            self.log.append(name)
            self.now_ms += ms

        return call


@pytest.mark.parametrize("chunk", [4096, 4])
def test_device_events_time_each_call_and_chunks_begin_with_untimed_rounds(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr("engine.worker.adapters.torch._EVENT_PAIRS", chunk)
    cuda = FakeCuda()
    adapter = object.__new__(TorchCuda)  # there is no device here to open
    adapter.torch = type("Torch", (), {"cuda": cuda})
    adapter.device = "cuda:0"
    adapter._pairs = []
    durations_s = adapter.time([cuda.kernel("a", 1.0), cuda.kernel("b", 3.0)], 5, 1)
    assert durations_s == [pytest.approx([1e-3] * 5), pytest.approx([3e-3] * 5)]
    chunks = {4096: [5], 4: [2, 2, 1]}[chunk]
    assert cuda.log == [name for rounds in chunks for name in ["a", "b"] * (3 + rounds) + ["synchronize"]]
    assert adapter.rounds == 5 + 3 * len(chunks)
