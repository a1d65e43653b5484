"""A child that may hang, crash or print for ever, run so that it costs its time limit and nothing else.

It ends with us too, however we end: engine/hardware/lifeline.py stands between.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.children import ROOT
from engine.variables import RUN_FOLDER, RUN_ID

LIFELINE = ROOT / "engine" / "hardware" / "lifeline.py"

OUTPUT_LIMIT = 1 << 20
_ERROR_TAIL = 4096
_REAP_S = 1.0


@dataclass(frozen=True)
class Finished:
    """What a child left: its output (bounded), the tail of its stderr, and how it ended.

    `ended` is "" for exit code 0, else words for an operator: "exit code 3", "signal 11 (SIGSEGV)",
    "no end within 5 s", "more than 1048576 bytes of output". In the last two cases it was cut off: we ended it.
    """

    output: bytes
    error_tail: bytes
    ended: str
    cut_off: bool = False


def run_bounded(
    command: Sequence[str], timeout_s: float, *, environment: Mapping[str, str] | None = None, cwd: str = "/"
) -> Finished:
    """Runs a command with an empty stdin in a session of its own; after `timeout_s` seconds all of it is killed.

    `environment` is all that it sees (None: what we have), and the marks of our run where we have them, by which
    `clean` finds what got away. A command that cannot be started ends with code 127 and the reason in its error tail;
    raises OSError where no process can be started at all.
    """
    given = os.environ if environment is None else environment
    unset = "=".join(os.environ.keys() - given.keys() - {RUN_ID, RUN_FOLDER})
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", str(LIFELINE), unset, *command],
        stdin=subprocess.PIPE,  # held open, never written to: its end-of-file is our end
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **given},
        cwd=cwd,
        start_new_session=True,
    )
    try:
        output, error_tail, why = _collect(child, time.monotonic() + timeout_s)
    finally:
        _end(child)
    if why == "deadline":
        why = f"no end within {timeout_s:g} s"
    return Finished(output, error_tail, why or _ending(child.returncode), bool(why))


def _collect(child: subprocess.Popen[bytes], deadline: float) -> tuple[bytes, bytes, str]:
    output, errors = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for pipe, into in ((child.stdout, output), (child.stderr, errors)):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, into)
        while selector.get_map():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return bytes(output), bytes(errors), "deadline"
            for key, _ in selector.select(left_s):
                if chunk := os.read(key.fd, 65536):
                    key.data.extend(chunk)
                else:
                    selector.unregister(key.fileobj)
            del errors[:-_ERROR_TAIL]
            if len(output) > OUTPUT_LIMIT:
                return bytes(output[:OUTPUT_LIMIT]), bytes(errors), f"more than {OUTPUT_LIMIT} bytes of output"
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(max(0.0, deadline - time.monotonic()))
    return bytes(output), bytes(errors), "" if child.returncode is not None else "deadline"


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends the session. A child stuck in the kernel is left to it: it cannot be waited for."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_REAP_S)
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


def _ending(code: int) -> str:
    if code == 0:
        return ""
    if code > 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"signal {-code}"
