"""A scenario that does everything a worker must not do; tests put it into a copy of the program."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from engine.worker.card import Card, Metric, Parameter, Value, Variant
from engine.worker.protocol import Wire
from engine.worker.work import Kernel, Work

CARD = Card(
    id="hostile/misbehave",
    title="Misbehaviour",
    measures="nothing",
    metrics=(Metric("calls", "s", "lower", "call", 0.0, "none"),),
    parameters=(Parameter("how", "what goes wrong", {"": ["exit"]}, form="a list of behaviours"),),
    frameworks=("python",),
    depends_on="nothing",
    source="tests",
)


def variants(parameters: dict[str, Value], device_kind: str) -> list[Variant]:
    """One variant for each behaviour."""
    how = parameters["how"]
    assert isinstance(how, list)
    return [Variant(str(each), {"how": each}) for each in how]


def prepare(parameters: dict[str, Value], adapter: object, seed: int) -> Work:
    """Misbehave as asked; whoever comes back measures a no-op."""
    BEHAVIOURS[str(parameters["how"])]()
    return Work(kernels=(Kernel("calls", lambda: None, 1.0),), check=lambda rounds: {}, max_seconds=0.05)


def _exit() -> None:
    os._exit(7)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


def _garbage() -> None:
    for _ in range(200):
        os.write(1, os.urandom(1000))
        os.write(2, os.urandom(1000))
    os._exit(0)


def _endless_line() -> None:
    os.write(1, b"x" * 1_000_000)
    os._exit(0)


def _forged_lines() -> None:
    os.write(1, b'{"token":"wrong","rank":0,"seq":0,"t":1,"kind":"bye"}\n{"kind":' + b"[" * 5000 + b"\n")
    os._exit(0)


def _flood() -> None:
    block = b"spam " * 200_000
    while True:
        os.write(2, block)


def _memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    held = []
    while True:
        held.append(bytearray(64 << 20))


def _escape() -> None:
    """A daemon of its own session, deaf to everything but SIGKILL; the worker then ends as if nothing were."""
    if os.fork() == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)


def _brood() -> None:
    """A daemon as in _escape, and then no end: whoever ends the worker has the daemon to end as well."""
    if os.fork() == 0:
        os.setsid()
        os.execvp("sleep", ["sleep", "600"])
    _hang()


def _kids() -> None:
    """What data loaders and compile workers look like: own sessions, and the worker's pipes in their hands."""
    for _ in range(3):
        subprocess.Popen(["sleep", "600"], start_new_session=True)
    _hang()


def _nameless() -> None:
    """A child that nothing but its descent tells of; its number stands in the log."""
    null = subprocess.DEVNULL
    child = subprocess.Popen(["sleep", "600"], env={}, stdin=null, stdout=null, stderr=null, start_new_session=True)
    print(f"nameless {child.pid}", file=sys.stderr, flush=True)
    _hang()


def _huge_clock() -> None:
    for wire in _wires():
        wire._clock = lambda: 1.7e308


def _flood_of_lines() -> None:
    """Valid lines without end, each of another rank."""
    for wire in _wires():
        while True:
            wire._rank += 1
            wire.iterations("calls", 1, [0.0] * 400)


def _wires() -> list[Wire]:
    return [each for each in gc.get_objects() if isinstance(each, Wire)]


def _raises() -> None:
    raise RuntimeError("bad \x1b]0;owned\x07 thing\nsecond line")


def _escape_codes() -> None:
    sys.stderr.write("\x1b[2J\x1b]52;c;AAAA\x07 last words\n")
    sys.stderr.flush()
    os._exit(3)


BEHAVIOURS: dict[str, Callable[[], None]] = {
    "exit": _exit,
    "kill": _kill,
    "segfault": _segfault,
    "hang": _hang,
    "garbage": _garbage,
    "endless line": _endless_line,
    "forged lines": _forged_lines,
    "flood": _flood,
    "memory": _memory,
    "escape": _escape,
    "brood": _brood,
    "kids": _kids,
    "nameless": _nameless,
    "huge clock": _huge_clock,
    "flood of lines": _flood_of_lines,
    "raises": _raises,
    "escape codes": _escape_codes,
    "nothing": lambda: None,
}
