"""Ends the processes of trials, by the ids in their environment: what forks, leaves its session or is stopped does not
get away, and what lacks the run's id is never touched."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from engine.variables import RUN_ID, TRIAL_ID
from engine.worker.keeper import UNKILLABLE_S, environment, living

PAUSE_S = 0.01

_ANY_TRIAL = f"{TRIAL_ID}=".encode()


def kill_trial(run: str, trial: str) -> list[int]:
    """End every process whose environment carries both ids, repeatedly until none is left.

    Returns those that the kernel does not let go within UNKILLABLE_S (a hung driver call). Others are never touched.
    """
    marks = trial_marks(run, trial)
    return kill_all(lambda pid: marks <= environment(pid))


def kill_trials(run: str) -> list[int]:
    """`kill_trial` for every trial of a run; its telemetry and guard, which carry no trial's id, stay."""
    mark = f"{RUN_ID}={run}".encode()
    return kill_all(lambda pid: mark in (entries := environment(pid)) and _is_of_trial(entries))


def trial_marks(run: str, trial: str) -> set[bytes]:
    """What the environment of every process of a trial holds."""
    return {f"{RUN_ID}={run}".encode(), f"{TRIAL_ID}={trial}".encode()}


def is_helper(run: str, entries: set[bytes]) -> bool:
    """Whether this is the environment of a process that the runner started for itself."""
    return f"{RUN_ID}={run}".encode() in entries and not _is_of_trial(entries)


def _is_of_trial(entries: set[bytes]) -> bool:
    return any(entry.startswith(_ANY_TRIAL) for entry in entries)


def kill_all(is_meant: Callable[[int], bool]) -> list[int]:
    """SIGKILL what matches until a look at /proc shows none, so that a process that forks meanwhile does not escape.

    Returns what is still there after UNKILLABLE_S without a new one.
    """
    killed: set[int] = set()
    last_new = time.monotonic()
    while victims := {pid for pid in living() if pid != os.getpid() and is_meant(pid)}:
        now = time.monotonic()
        last_new = last_new if victims <= killed else now
        if now - last_new > UNKILLABLE_S:
            break
        killed |= victims
        for pid in victims:
            send_kill(pid)
        time.sleep(PAUSE_S)
    return sorted(victims)


def send_kill(pid: int) -> None:
    """SIGKILL, if the process is still there and ours to end."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
