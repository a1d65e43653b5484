"""Runs a command that ends with whoever started it: `python -I -S lifeline.py UNSET COMMAND...`, run by path.

stdin is a pipe that the starter holds open. Its end-of-file, however the starter ended, kills this whole process
group, which is ours alone (start_new_session). UNSET names, joined by "=", the variables that the command must not
have: we start with them, since our own Python may need some. Ends as the command ended.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
import sys
from typing import NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4


def main(unset: str, *command: str) -> NoReturn:
    """Run the command to its end, or kill everything at end-of-file."""
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):  # Python has changed these; a command expects them
        signal.signal(number, signal.SIG_DFL)
    own = os.getpid()
    child = os.fork()  # by the main thread, which ends last: a parent-death signal follows the thread that forked
    if child == 0:
        _become(command, set(unset.split("=")), own)
    _thread.start_new_thread(_end_with_starter, ())
    _end_as(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _become(command: tuple[str, ...], unset: set[str], parent: int) -> NoReturn:
    """In the forked child: an empty stdin, SIGKILL when the parent is killed; then the command."""
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the signal was armed
            os._exit(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvpe(command[0], command, {name: value for name, value in os.environ.items() if name not in unset})
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error.strerror}\n".encode(errors="surrogateescape"))
    finally:
        os._exit(127)


def _end_with_starter() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


def _end_as(code: int) -> NoReturn:
    """End by the command's exit code, or by its signal."""
    if code < 0:
        _prctl(_PR_SET_DUMPABLE, 0)  # the command's own core is the one that tells something
        os.kill(os.getpid(), -code)
    os._exit(code)


def _prctl(option: int, argument: int) -> None:
    """prctl(2). A refusal costs one layer of several, so it is passed over."""
    ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
