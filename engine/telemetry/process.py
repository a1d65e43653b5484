"""The telemetry process: reads sensors and prints JSON lines (engine.telemetry.samples) until its stdin ends.

It is a process of its own because a vendor's call can hang in the kernel for ever: then it is left behind, and the
run goes on.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from engine.telemetry.host import HostProvider
from engine.telemetry.nvml import REOPEN_S, NvmlProvider
from engine.telemetry.provider import Provider
from engine.telemetry.sampler import Emit, Sampler, Watchdog
from engine.telemetry.samples import Line

CPU = "cpu"
HOST_PERIOD_S = 0.5
_PR_SET_PDEATHSIG = 1


class Output:
    """Writes whole lines to a descriptor, from any thread, and ends the process quietly once nobody reads them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder()

    def emit(self, line: Line) -> None:
        """Writes one line; blocks while the reader is slow."""
        rest = memoryview(self._encoder.encode(line) + b"\n")
        with self._lock:
            try:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError:
                os._exit(0)


def main(arguments: Sequence[str]) -> NoReturn:
    """Samples until stdin ends or a signal comes; a thread stuck in a vendor's call holds up neither."""
    chosen = _parse(arguments)
    end_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # nothing is buffered, so the kernel may end us at once
    output = Output(keep_stdout_for_us())
    samplers = _samplers(chosen, output.emit)
    for sampler in samplers:
        sampler.start()
    watchdog = Watchdog(samplers, chosen.call_limit, output.emit)
    threading.Thread(target=watchdog.run, name="watchdog", daemon=True).start()
    _wait_for_end(0)


def _wait_for_end(descriptor: int) -> NoReturn:
    try:
        while os.read(descriptor, 65536):
            pass
    finally:
        os._exit(0)


def end_with_parent() -> None:
    """Asks the kernel to end this process with the thread that started it; a layer beside the end of stdin."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def keep_stdout_for_us() -> int:
    """A private copy of stdout; what a vendor's library prints goes to stderr and tears no line."""
    ours = os.dup(1)
    os.dup2(2, 1)
    return ours


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="telemetry", description="Print sensor readings as JSON lines.")
    parser.add_argument("--hz", type=float, default=10.0, help="fast readings a second (default 10)")
    parser.add_argument("--device", action="append", default=[], help="a device's UUID, or cpu; may be repeated")
    parser.add_argument("--call-limit", type=float, default=2.0, help="seconds after which a reading has stalled")
    parser.add_argument("--reopen", type=float, default=REOPEN_S, help="seconds between attempts at a lost device")
    parser.add_argument("--sysfs-root", type=Path, default=Path("/sys"), help="where sysfs is (for tests)")
    chosen = parser.parse_args(arguments)
    if not 0.01 <= chosen.hz <= 1000:
        parser.error(f"--hz is {chosen.hz}; it must be between 0.01 and 1000")
    return chosen


def _samplers(chosen: argparse.Namespace, emit: Emit) -> list[Sampler]:
    devices = [device for device in dict.fromkeys(chosen.device) if device != CPU]
    providers: list[Provider] = [NvmlProvider(device, reopen_s=chosen.reopen) for device in devices]
    period_s = 1.0 / chosen.hz
    # The devices take turns within a period, since they share the driver's locks.
    samplers = [
        Sampler(provider, period_s, emit, phase_s=place * period_s / len(providers))
        for place, provider in enumerate(providers)
    ]
    return [*samplers, Sampler(HostProvider(chosen.sysfs_root), HOST_PERIOD_S, emit)]


if __name__ == "__main__":
    main(sys.argv[1:])
