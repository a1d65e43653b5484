"""What this node has, asked of a probe process, so that no vendor's library is ever loaded here."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from engine.children import python_command
from engine.hardware.bounded import Finished, run_bounded
from engine.session import Device
from engine.text import clean, clean_tree
from engine.values import Missing, Scalar

CPU = "cpu"


class Inventory(msgspec.Struct, frozen=True):
    """The node's facts, its devices (accelerators by index, then the CPU) and what an operator should know of both."""

    host: dict[str, Scalar | Missing]
    devices: tuple[Device, ...]
    problems: tuple[str, ...]

    @property
    def accelerators(self) -> tuple[Device, ...]:
        """The devices that are no CPU."""
        return tuple(device for device in self.devices if device.kind != CPU)


class _DeviceLine(msgspec.Struct, tag_field="line", tag="device"):
    device: str
    index: int
    kind: str
    name: str
    facts: dict[str, Scalar | Missing]


class _HostLine(msgspec.Struct, tag_field="line", tag="host"):
    facts: dict[str, Scalar | Missing]


class _Problem(msgspec.Struct, tag_field="line", tag="problem"):
    text: str


class _Step(msgspec.Struct, tag_field="line", tag="step"):
    text: str


class _Done(msgspec.Struct, tag_field="line", tag="done"):
    pass


_Line = _DeviceLine | _HostLine | _Problem | _Step | _Done


def discover(timeout_s: float = 15.0, *, root: str = "/") -> Inventory:
    """Everything that could be found out within `timeout_s` seconds.

    A vendor's library that hangs, crashes or prints garbage costs that time and a line in `problems`; what was
    known before stays, and the CPU is always there. `root` is where the probe looks for /sys, /proc and /dev.
    """
    # The probe ends itself a little later, in case this process is killed meanwhile.
    command = python_command("engine.hardware.probe", "--timeout", str(math.ceil(timeout_s) + 1), "--root", root)
    return _inventory(run_bounded(command, timeout_s))


def _inventory(finished: Finished) -> Inventory:
    host: dict[str, Scalar | Missing] = {}
    devices: dict[str, Device] = {}
    problems: list[str] = []
    step, done, garbage = "starting", False, 0
    for data in finished.output.split(b"\n"):
        match _decoded(data):
            case _HostLine(facts=facts):
                host = facts
            case _DeviceLine() as line:
                devices[line.device] = Device(line.device, line.index, line.kind, line.name, line.facts)
            case _Problem(text=text):
                problems.append(text)
            case _Step(text=text):
                step = text
            case _Done():
                done = True
            case None:
                garbage += bool(data.strip())
    if garbage:
        problems.append(f"the hardware probe printed {garbage} line(s) that are not its own")
    if finished.ended or not done:
        problems.append(_unfinished(finished, step))
    devices.setdefault(CPU, Device(CPU, -1, CPU, "CPU", {}))
    return Inventory(host, tuple(sorted(devices.values(), key=_order)), tuple(problems))


def _order(device: Device) -> tuple[bool, int]:
    return device.kind == CPU, device.index


def _decoded(data: bytes) -> _Line | None:
    try:
        line: _Line = msgspec.convert(clean_tree(msgspec.json.decode(data), 1000), _Line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return line


def _unfinished(finished: Finished, step: str) -> str:
    last = finished.error_tail.strip().split(b"\n")[-1]
    said = f" ({clean(last, 200)})" if last else ""
    return f"the hardware probe did not finish: {finished.ended or 'it ended early'} while {step}{said}"


def first_of_kinds(devices: Iterable[Device]) -> dict[str, str]:
    """The first device of each kind: one is enough to see whether a framework can use the kind."""
    first: dict[str, str] = {}
    for device in devices:
        first.setdefault(device.kind, device.device)
    return first
