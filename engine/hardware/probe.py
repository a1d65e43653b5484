"""The probe process: prints what hardware is here as JSON lines, the certain things first, then ends.

Lines: {"line":"step","text"} before anything that may hang; {"line":"host","facts"}; {"line":"device",...};
{"line":"problem","text"}; {"line":"done"} last. engine.hardware.inventory reads them.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.hardware.cpu import cpu_facts, cpu_name
from engine.hardware.node import node_facts
from engine.hardware.nvidia import Nvidia
from engine.hardware.pci import accelerators, unsupported_notes
from engine.session import Device
from engine.telemetry.process import end_with_parent, keep_stdout_for_us
from engine.telemetry.provider import DeviceLost


class Lines:
    """Writes each line at once, so that what hangs later takes nothing with it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def say(self, line: str, **fields: Any) -> None:
        """One line of a kind, with its fields."""
        data = msgspec.json.encode({"line": line, **fields}) + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]

    def device(self, device: Device) -> None:
        """One device line."""
        self.say("device", **msgspec.structs.asdict(device))


def main(arguments: Sequence[str]) -> None:
    """Prints everything; ends by SIGALRM after `--timeout` seconds even in the middle of a vendor's call."""
    parser = argparse.ArgumentParser(prog="probe", description="Print the hardware of this node as JSON lines.")
    parser.add_argument("--timeout", type=int, default=15, help="seconds after which the process ends (default 15)")
    parser.add_argument("--root", type=Path, default=Path("/"), help="where /sys, /proc and /dev are (for tests)")
    chosen = parser.parse_args(arguments)
    end_with_parent()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(chosen.timeout)
    lines = Lines(keep_stdout_for_us())
    lines.say("step", text="reading the kernel's files")
    lines.say("host", facts=node_facts(chosen.root))
    lines.device(Device("cpu", -1, "cpu", cpu_name(chosen.root), cpu_facts(chosen.root)))
    for note in unsupported_notes(chosen.root):
        lines.say("problem", text=note)
    _nvidia(lines, chosen.root)
    lines.say("done")


def _nvidia(lines: Lines, root: Path) -> None:
    found = 0
    try:
        for device in Nvidia(root, lambda text: lines.say("step", text=text)).devices():
            lines.device(device)
            found += 1
            for problem in _device_problems(device):
                lines.say("problem", text=problem)
    except DeviceLost as error:
        if note := _why_no_nvidia(root, found, str(error)):
            lines.say("problem", text=note)


def _device_problems(device: Device) -> list[str]:
    problems = []
    if device.facts.get("mig_enabled") is True:
        problems.append(
            f"GPU {device.index} is in MIG mode (slices: {device.facts.get('mig_devices')}); "
            "whole-GPU trials cannot run on it, and this version does not run on slices"
        )
    if "problem" in device.facts:
        problems.append(f"GPU {device.index}: {device.facts['problem']}")
    return problems


def _why_no_nvidia(root: Path, found: int, reason: str) -> str:
    """A note where NVML failed although the bus shows NVIDIA GPUs; on a node without any that is no problem."""
    seen = sum(count for (kind, _), count in accelerators(root).items() if kind.startswith("NVIDIA"))
    nodes = (root / "dev/nvidiactl").exists()
    if not seen and not nodes and not found and "not found" in reason:
        return ""
    return f"{seen or 'some'} NVIDIA GPU(s) on this node, {found} of them readable: {reason}"


if __name__ == "__main__":
    main(sys.argv[1:])
