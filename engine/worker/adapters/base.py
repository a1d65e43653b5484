"""What a scenario and the timing need of a framework on a device. Whatever depends on the device's kind lives here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from engine.worker.card import Frameworks, Scalar
from engine.worker.spec import Spec
from engine.worker.timing import MIN_READING_S, Call, time_on_host
from engine.worker.work import OutOfMemory, Unsupported, WorkerError


class Adapter(ABC):
    """A framework on one device.

    `timer` names the clock of its durations; `rounds` counts the rounds run so far; `settle_s` is the least warm-up
    that the device needs. `device_kind` picks defaults only.
    """

    framework: ClassVar[Frameworks]
    timer = "monotonic clock"
    min_reading_s = MIN_READING_S
    settle_s = 0.0
    rounds = 0

    @abstractmethod
    def facts(self) -> dict[str, Scalar]:
        """The framework's version and builds, the device's name, and settings that change speed."""

    @abstractmethod
    def supports(self, dtype: str) -> str:
        """Why products of this dtype are not done natively here, or "" when they are."""

    @abstractmethod
    def free_bytes(self) -> int:
        """Bytes that an allocation on the device can still get."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done all that was enqueued."""

    def ran_out_of_memory(self, error: BaseException) -> bool:
        """Whether the framework means by this exception that memory ran out."""
        return isinstance(error, MemoryError)

    def require(self, dtype: str) -> None:
        """Raise Unsupported, with the reason, unless the device does this dtype natively."""
        if reason := self.supports(dtype):
            raise Unsupported(reason)

    def reserve(self, wanted_bytes: int, purpose: str) -> None:
        """Raise OutOfMemory, with both figures, unless `wanted_bytes` are free; called before allocating."""
        free = self.free_bytes()
        if wanted_bytes > free:
            raise OutOfMemory(f"{purpose} needs {wanted_bytes / 1e9:.2f} GB of memory, {free / 1e9:.2f} GB are free")

    def run(self, calls: Sequence[Call], rounds: int) -> None:
        """Run whole rounds untimed, and wait for the device."""
        self.enqueue(calls, rounds)
        self.synchronize()

    def enqueue(self, calls: Sequence[Call], rounds: int) -> None:
        """Start whole rounds, without waiting for them where the device works in the background."""
        self.rounds += rounds
        for _ in range(rounds):
            for call in calls:
                call()

    def time(self, calls: Sequence[Call], readings: int, group: int) -> list[list[float]]:
        """Per call, `readings` durations in seconds, each the mean of `group` calls in a row."""
        self.rounds += readings
        return time_on_host(calls, readings, group)


def open_adapter(spec: Spec) -> Adapter:
    """Import the trial's framework and open its device. Raises WorkerError naming what is missing."""
    try:
        if spec.framework == "torch":
            from engine.worker.adapters.torch import open_torch

            return open_torch(spec.device_kind, spec.device_index)
        if spec.framework == "jax":
            from engine.worker.adapters.jax import JaxAdapter

            return JaxAdapter(spec.device_kind, spec.device_index)
    except ImportError as error:
        raise WorkerError(f"this interpreter cannot import {spec.framework}: {error}") from error
    from engine.worker.adapters.python import PythonAdapter

    return PythonAdapter()
