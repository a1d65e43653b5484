"""The exit codes of every command, in one place (shown by `aibench-tui help exit-codes`)."""

from __future__ import annotations

DONE = 0
FAILED = 1
USAGE = 2
INCOMPLETE = 3
NOT_READY = 4
SIGNAL_BASE = 128

MEANINGS: dict[str, str] = {
    "0": "done, and nothing failed",
    "1": "a trial failed, or no trial completed, or a verdict is bad",
    "2": "wrong usage, plan, device or framework; nothing was started",
    "3": "the run did not complete; what was finished is kept",
    "4": "the machine is not ready: a device is busy, or doctor found a problem",
    "128+n": "ended by signal n (130 is ctrl+c, 141 a closed pipe, 143 SIGTERM)",
}


def by_signal(number: int) -> int:
    """The exit code of a command that signal `number` ended."""
    return SIGNAL_BASE + number
