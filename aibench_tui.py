"""The console script `aibench-tui`: makes sure that it is this program's modules that run, then calls tui.cli.

The name is unique on purpose: machine-learning repositories often have an `engine.py` of their own, and PYTHONPATH
comes before site-packages. This file has to parse on Python 3.8, so that an old interpreter gets a sentence.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # built in: no signal.py on PYTHONPATH takes its place
import os
import sys

TYPE_CHECKING = False  # typing's own would have to be imported
if TYPE_CHECKING:
    from typing import NoReturn

OLDEST_PYTHON = (3, 10)
ROOT = os.path.dirname(os.path.abspath(__file__))


def main() -> int:
    """Run the command line and return its exit code (engine.exits)."""
    try:
        _fill_descriptors()
        if sys.version_info < OLDEST_PYTHON:
            sys.stderr.write(_too_old())
            return 4
        _answer_signals()
        return _answered(sys.argv[1:])
    except KeyboardInterrupt:  # from before signals are answered
        _leave(2)


def _answered(arguments: list[str]) -> int:
    """The command, with nothing left in stdout's buffer that would raise when the interpreter ends."""
    sys.path[:] = own_path(sys.path)
    try:
        try:
            return _command(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _give_stdout_up()
        return 141
    except OSError as error:
        _give_stdout_up()
        _tell(f"standard output: {error.strerror}")
        return 3
    finally:
        _ignore_signals()


def own_path(path: list[str]) -> list[str]:
    """The import path with this program first and without the current folder.

    The current folder is there as "" or, after `python -m`, as the first entry; elsewhere it stands on purpose.
    """
    try:
        here = os.getcwd()
    except OSError:
        here = ""
    rest = path[1:] if path[:1] == [here] else path
    return [ROOT, *(entry for entry in rest if entry not in ("", ROOT))]


def _command(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        from engine.version import VERSION

        print(f"aibench-tui {VERSION}")
        return 0
    _restart_without_pythonpath(arguments)
    try:
        from tui.cli.main import main as command_line
    except (ImportError, MemoryError, OSError) as error:
        _tell(f"the program cannot be loaded: {error}; raise the limits of this shell (see ulimit -a)")
        return 3
    return command_line(arguments)


def _restart_without_pythonpath(arguments: list[str]) -> None:
    """Start again without PYTHONPATH on the import path, where a `json.py` would stand in for the standard library's.

    The variable itself stays for the workers: module systems and vendor images put torch there. -E rather than -I,
    which would also hide a user's own installation of this program.
    """
    if os.environ.get("PYTHONPATH") and not sys.flags.ignore_environment and sys.executable:
        _hold_signals()
        os.execv(sys.executable, [sys.executable, "-E", os.path.join(ROOT, "aibench_tui.py"), *arguments])


def _fill_descriptors() -> None:
    """Open what of stdin, stdout and stderr was closed: a socket would take its number, and be written to."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _give_stdout_up() -> None:
    """What is left in the buffer would raise once more when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _tell(text: str) -> None:
    """A line on stderr, where it takes one."""
    try:  # noqa: SIM105  # contextlib, as any module, could be another's so early
        os.write(2, f"aibench-tui: {text}\n".encode())
    except OSError:
        pass


def _answer_signals() -> None:
    """End with a line and no traceback, until a command has its own way; those held over a restart come now."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup is to be obeyed
            signal.signal(number, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))


def _leave(number: int, _frame: object = None) -> NoReturn:
    _hold_signals()  # or a second one would print the line again
    _tell("interrupted")
    os._exit(128 + number)


def _hold_signals() -> None:
    """None comes any more, also not while Python starts again, which it would answer with a traceback."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))


def _ignore_signals() -> None:
    """All is said and done, and the exit code stands."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _too_old() -> str:
    import shutil

    names = [f"python3.{minor}" for minor in range(OLDEST_PYTHON[1], 20)]
    later = ", ".join(filter(None, map(shutil.which, names))) or "none on PATH"
    needed, found = (".".join(map(str, version[:2])) for version in (OLDEST_PYTHON, sys.version_info))
    return f"aibench-tui needs Python {needed} or later; {sys.executable} is {found}; later ones here: {later}\n"


if __name__ == "__main__":
    sys.exit(main())
