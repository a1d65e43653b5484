"""PyTorch on a processor or on a CUDA device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import metadata
from typing import Any, ClassVar

from engine.worker.adapters import host
from engine.worker.adapters.base import Adapter
from engine.worker.card import Frameworks, Scalar
from engine.worker.timing import DEVICE_SETTLE_S, Call
from engine.worker.work import Unsupported, WorkerError

_EVENT_PAIRS = 4096
_LEAD_IN_ROUNDS = 3

# The least compute capability whose matrix units (fp64, fp32, fp16: or cores) take this dtype (CUDA C++ programming
# guide, section "Compute Capabilities").
_LEAST_CAPABILITY: dict[str, tuple[int, int]] = {
    "fp64": (6, 0),
    "fp32": (5, 0),
    "tf32": (8, 0),
    "bf16": (8, 0),
    "fp16": (5, 3),
    "fp8": (8, 9),
    "int8": (7, 5),
}


def lacks(dtype: str, capability: tuple[int, int]) -> str:
    """Why a CUDA device of this compute capability cannot multiply a dtype natively, or "" when it can."""
    least = _LEAST_CAPABILITY.get(dtype)
    if least is None:
        return f"not supported by device: unknown dtype {dtype}"
    if capability >= least:
        return ""
    return f"not supported by device: {dtype} needs compute capability {_dots(least)}, this is {_dots(capability)}"


def built_for(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Whether a build for these architectures ("sm_90", "compute_90") has kernels that this capability can run.

    Machine code runs on its own major version from its own minor version on; PTX is compiled for anything newer.
    """
    for name in architectures:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", name)
        if found is None:
            continue
        built = (int(found.group(2)), int(found.group(3)))
        if built <= capability and (found.group(1) == "compute" or built[0] == capability[0]):
            return True
    return False


def _dots(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


class TorchAdapter(Adapter):
    """PyTorch; scenarios find the module as `torch` and the device as `device`."""

    framework: ClassVar[Frameworks] = "torch"

    def __init__(self, device: str) -> None:
        import torch

        self.torch: Any = torch
        self.device: Any = torch.device(device)

    def facts(self) -> dict[str, Scalar]:
        torch = self.torch
        blas = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
        return {
            "framework": "torch",
            "framework_version": str(torch.__version__),
            "framework_commit": str(torch.version.git_version),
            "blas": blas.group(1) if blas else "unknown",
            "threads": torch.get_num_threads(),
        }

    def supports(self, dtype: str) -> str:
        if dtype == "fp8" and not hasattr(self.torch, "float8_e4m3fn"):
            return f"not supported by framework: torch {self.torch.__version__} has no fp8"
        return self.device_lacks(dtype)

    def device_lacks(self, dtype: str) -> str:
        """Why the device cannot multiply this dtype natively, or ""."""
        return host.lacks(dtype)

    def free_bytes(self) -> int:
        return host.available_bytes()

    def synchronize(self) -> None:
        """Operators on a processor return when they are done."""

    def ran_out_of_memory(self, error: BaseException) -> bool:
        # On a processor torch raises a bare RuntimeError (c10/core/impl/alloc_cpu.cpp), so its text has to tell.
        text = str(error)
        return (
            super().ran_out_of_memory(error)
            or isinstance(error, self.torch.cuda.OutOfMemoryError)
            or "DefaultCPUAllocator" in text
            or "CUBLAS_STATUS_ALLOC_FAILED" in text
        )


class TorchCpu(TorchAdapter):
    """PyTorch on the host's processor."""

    def __init__(self) -> None:
        super().__init__("cpu")

    def facts(self) -> dict[str, Scalar]:
        return {
            **super().facts(),
            "device_name": host.processor_name(),
            "cpu_capability": self.torch.backends.cpu.get_cpu_capability(),
            "mkldnn": bool(self.torch.backends.mkldnn.is_available()),
        }


class TorchCuda(TorchAdapter):
    """PyTorch on a CUDA device. Durations come from device events, one pair an iteration."""

    timer = "cuda events"
    min_reading_s = 0.0
    settle_s = DEVICE_SETTLE_S

    def __init__(self, index: int) -> None:
        super().__init__(f"cuda:{index}")
        torch = self.torch
        if not torch.cuda.is_available():
            raise WorkerError(f"torch {torch.__version__} (CUDA build: {torch.version.cuda}) sees no CUDA device")
        torch.cuda.set_device(self.device)
        self.capability: tuple[int, int] = torch.cuda.get_device_capability(self.device)
        architectures = torch.cuda.get_arch_list()
        if not built_for(self.capability, architectures):
            raise Unsupported(
                f"not supported by framework: torch {torch.__version__} is built for {' '.join(architectures)}, the "
                f"device has compute capability {_dots(self.capability)}"
            )
        self._pairs: list[tuple[Any, Any]] = []

    def facts(self) -> dict[str, Scalar]:
        torch = self.torch
        return {
            **super().facts(),
            "device_name": torch.cuda.get_device_name(self.device),
            "compute_capability": _dots(self.capability),
            "cuda": str(torch.version.cuda),
            "cudnn": int(torch.backends.cudnn.version() or 0),
            "cublas": _cublas_version(),
        }

    def device_lacks(self, dtype: str) -> str:
        return lacks(dtype, self.capability)

    def free_bytes(self) -> int:
        return int(self.torch.cuda.mem_get_info(self.device)[0])

    def synchronize(self) -> None:
        self.torch.cuda.synchronize(self.device)

    def time(self, calls: Sequence[Call], readings: int, group: int) -> list[list[float]]:
        """One event pair per call; all rounds are enqueued, then the device is waited for once.

        Very long measurements go in chunks, since events and the queue are finite; a chunk starts with untimed
        rounds, so that its first event pair finds the device as busy as the last one.
        """
        per_chunk = max(1, _EVENT_PAIRS // len(calls))
        took: list[list[float]] = [[] for _ in calls]
        for first in range(0, readings, per_chunk):
            for kernel, durations_s in zip(took, self._chunk(calls, min(per_chunk, readings - first)), strict=True):
                kernel.extend(durations_s)
        return took

    def _chunk(self, calls: Sequence[Call], rounds: int) -> list[list[float]]:
        pairs = self._event_pairs(rounds * len(calls))
        stream = self.torch.cuda.current_stream(self.device)
        self.enqueue(calls, _LEAD_IN_ROUNDS)
        self.rounds += rounds
        left = iter(pairs)
        for _ in range(rounds):
            for call in calls:
                begin, end = next(left)
                begin.record(stream)
                call()
                end.record(stream)
        self.synchronize()
        durations_s = [begin.elapsed_time(end) * 1e-3 for begin, end in pairs]
        return [durations_s[kernel :: len(calls)] for kernel in range(len(calls))]

    def _event_pairs(self, count: int) -> list[tuple[Any, Any]]:
        event = self.torch.cuda.Event
        while len(self._pairs) < count:
            self._pairs.append((event(enable_timing=True), event(enable_timing=True)))
        return self._pairs[:count]


def _cublas_version() -> str:
    for package in ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12", "nvidia-cublas-cu11"):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return "of the CUDA toolkit"


def open_torch(kind: str, index: int) -> TorchAdapter:
    """The adapter for a device kind."""
    return TorchCuda(index) if kind == "cuda" else TorchCpu()
