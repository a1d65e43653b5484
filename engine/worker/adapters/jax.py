"""JAX on a processor or on a CUDA device.

XLA compiles before anything is timed. Arrays come in as arguments and go out as results, so XLA can neither fold the
work into constants nor drop it. JAX has no device events: durations end when the host has seen the result.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib import metadata
from typing import Any, ClassVar

from engine.worker.adapters import host
from engine.worker.adapters import torch as cuda_rules
from engine.worker.adapters.base import Adapter
from engine.worker.card import Frameworks, Scalar
from engine.worker.timing import DEVICE_SETTLE_S, MIN_READING_S, Call, time_on_host
from engine.worker.work import Unsupported, WorkerError

_DEVICE_READING_S = 20e-3
"""Waiting for a device costs the host up to 0.3 ms (seen on an H200): calls are enqueued in groups that dwarf it."""

_PLATFORMS = {"cpu": "cpu", "cuda": "cuda"}
_BITS = {"f8e4m3fn": 8, "s8": 8, "bf16": 16, "f16": 16, "f32": 32, "s32": 32, "f64": 64}
_HLO_NAMES = {"fp8": "f8e4m3fn", "int8": "s8", "bf16": "bf16", "fp16": "f16"}
_ASSIGNMENT = re.compile(r"%?([\w.-]+) = (\w+)\[[\d,]*\]\S* (\w[\w-]*)\((?:\w+\[[\d,]*\]\S* )?%?([\w.-]*)")


def widened(hlo: str, dtype: str) -> str:
    """The HLO type that a compiled program converts its operands of `dtype` to, "" when it takes them as they are.

    Where XLA has no kernel for a narrow type it converts to a wider one without a word.
    """
    narrow = _HLO_NAMES.get(dtype, "")
    types: dict[str, str] = {}
    for line in hlo.splitlines():
        found = _ASSIGNMENT.search(line)
        if found is None:
            continue
        name, kind, operation, operand = found.groups()
        types[name] = kind
        if operation == "convert" and types.get(operand) == narrow and _BITS.get(kind, 0) > _BITS[narrow]:
            return kind
    return ""


def _fetch(result: Any) -> None:
    result.block_until_ready()


class JaxAdapter(Adapter):
    """JAX; scenarios find the modules as `jax` and `jnp`. 64-bit types are on. A call returns its result, unwaited."""

    framework: ClassVar[Frameworks] = "jax"
    timer = "monotonic clock, fetch blocked"

    def __init__(self, kind: str, index: int) -> None:
        import jax
        import jax.numpy

        # Before the first use: a later change would not reach a backend that is already open.
        jax.config.update("jax_platforms", _PLATFORMS[kind])
        jax.config.update("jax_enable_x64", True)
        self.jax: Any = jax
        self.jnp: Any = jax.numpy
        self._on_host = kind == "cpu"
        self.min_reading_s = MIN_READING_S if self._on_host else _DEVICE_READING_S
        self.settle_s = 0.0 if self._on_host else DEVICE_SETTLE_S
        self._last: Any = None
        try:
            self.device: Any = jax.devices()[index]
        except (RuntimeError, IndexError) as error:
            raise WorkerError(f"jax {jax.__version__} cannot open {kind} device {index}: {error}") from error
        jax.config.update("jax_default_device", self.device)

    def facts(self) -> dict[str, Scalar]:
        return {
            "framework": "jax",
            "framework_version": self.jax.__version__,
            "jaxlib": metadata.version("jaxlib"),
            "xla_flags": os.environ.get("XLA_FLAGS", "")[:200],
            "device_name": host.processor_name() if self._on_host else self.device.device_kind,
            "platform_version": self.device.client.platform_version.replace("\n", " ")[:200],
        }

    def supports(self, dtype: str) -> str:
        if self._on_host:
            return host.lacks(dtype)
        major, minor = str(self.device.compute_capability).split(".")
        return cuda_rules.lacks(dtype, (int(major), int(minor)))

    def free_bytes(self) -> int:
        stats = None if self._on_host else self.device.memory_stats()
        if not stats:
            return host.available_bytes()
        return int(stats["bytes_limit"] - stats["bytes_in_use"])

    def synchronize(self) -> None:
        if self._last is not None:
            self._last.block_until_ready()

    def enqueue(self, calls: Sequence[Call], rounds: int) -> None:
        self.rounds += rounds
        for _ in range(rounds):
            for call in calls:
                self._last = call()

    def time(self, calls: Sequence[Call], readings: int, group: int) -> list[list[float]]:
        self.rounds += readings
        return time_on_host(calls, readings, group, _fetch)

    def ran_out_of_memory(self, error: BaseException) -> bool:
        # XlaRuntimeError carries the status by name only (absl::StatusCode::kResourceExhausted).
        return super().ran_out_of_memory(error) or "RESOURCE_EXHAUSTED" in str(error)

    def compile(self, function: Any, *examples: Any, donate: int | None = None) -> Any:
        """Compile a function ahead of time for these arguments; argument `donate` gives its buffer to the result."""
        donated = () if donate is None else (donate,)
        return self.jax.jit(function, donate_argnums=donated, keep_unused=True).lower(*examples).compile()

    def refuse_emulation(self, compiled: Any, dtype: str) -> None:
        """Raise Unsupported if XLA converts operands of `dtype` to a wider type before it multiplies."""
        if kind := widened(compiled.as_text(), dtype):
            raise Unsupported(
                f"not supported by framework: jax {self.jax.__version__} computes {dtype} as {kind} on this device"
            )
