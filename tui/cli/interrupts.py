"""Ctrl-C and its kin: what a command does when SIGINT, SIGTERM or SIGHUP ask it to end.

A handler that raises can do so at any line, also in one that puts things away. So most of the time the handler
ends the process there and then; only a command's own code is unwound, once; and a run counts what it hears.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from engine import exits

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

SAME_S = 0.5
"""Signals this close together are one: a key held down, or a wrapper that hands on what the terminal sent as well."""

_taken_at = float("-inf")


class Interrupted(KeyboardInterrupt):
    """Signal `number` asks the command to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Heard:
    """What a run has heard: the last signal, and how often one came. The third one gets out of any line."""

    def __init__(self) -> None:
        self.number = 0
        self.times = 0

    def __call__(self, number: int, _frame: object) -> None:
        if _is_new():
            self.number = number
            self.times += 1
            if self.times > 2:  # two were not seen: a terminal takes no more output, or a disk does not answer
                os._exit(exits.by_signal(number))


def heard() -> Heard:
    """From now on signals are only counted."""
    counted = Heard()
    _install(counted)
    return counted


def leave_at_once(last_line: str) -> None:
    """From now on a signal prints `last_line` and ends the process; nothing must be half done."""

    def leave(number: int, _frame: object) -> None:
        if _is_new():
            _leave(number, last_line)

    _install(leave)


@contextlib.contextmanager
def unwinding(last_line: str) -> Iterator[None]:
    """Inside, the first signal raises Interrupted, so that files are put away; a later one leaves at once."""

    def unwind(number: int, _frame: object) -> None:
        if _is_new():
            leave_at_once(last_line)
            raise Interrupted(number)

    _install(unwind)
    try:
        yield
    finally:
        leave_at_once(last_line)


def quiet_where_python_cannot_raise(last_line: str) -> None:
    """Where Python would only print Interrupted with a traceback, as in a destructor, the process ends."""

    def hook(problem: Any) -> None:
        if isinstance(problem.exc_value, Interrupted):
            _leave(problem.exc_value.number, last_line)
        sys.__unraisablehook__(problem)

    sys.unraisablehook = hook


def _install(handler: Callable[[int, object], None]) -> None:
    for number in NUMBERS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup is to be obeyed
            signal.signal(number, handler)


def _is_new() -> bool:
    global _taken_at
    now = time.monotonic()
    is_new = now - _taken_at >= SAME_S
    if is_new:
        _taken_at = now
    return is_new


def _leave(number: int, last_line: str) -> None:
    """End here, with a line where stderr takes one now."""
    with contextlib.suppress(OSError, ValueError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, f"{last_line}\n".encode())
    os._exit(exits.by_signal(number))
