"""The console script `aibench-tui`: makes sure that it is this program's modules that run, then calls tui.cli.

The name is unique on purpose: machine-learning repositories often have an `engine.py` of their own, and PYTHONPATH
comes before site-packages. This file has to parse on Python 3.8, so that an old interpreter gets a sentence.
"""

from __future__ import annotations

import os
import sys

OLDEST_PYTHON = (3, 10)
ROOT = os.path.dirname(os.path.abspath(__file__))


def main() -> int:
    """Run the command line and return its exit code (engine.exits)."""
    if sys.version_info < OLDEST_PYTHON:
        sys.stderr.write(_too_old())
        return 4
    sys.path[:] = own_path(sys.path)
    try:
        try:
            return _command(sys.argv[1:])
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffer would raise once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except KeyboardInterrupt:
        return 130


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
    from tui.cli.main import main as command_line

    return command_line(arguments)


def _restart_without_pythonpath(arguments: list[str]) -> None:
    """Start again without PYTHONPATH on the import path, where a `json.py` would stand in for the standard library's.

    The variable itself stays for the workers: module systems and vendor images put torch there. -E rather than -I,
    which would also hide a user's own installation of this program.
    """
    if os.environ.get("PYTHONPATH") and not sys.flags.ignore_environment and sys.executable:
        os.execv(sys.executable, [sys.executable, "-E", os.path.join(ROOT, "aibench_tui.py"), *arguments])


def _too_old() -> str:
    import shutil

    names = [f"python3.{minor}" for minor in range(OLDEST_PYTHON[1], 20)]
    later = ", ".join(filter(None, map(shutil.which, names))) or "none on PATH"
    needed, found = (".".join(map(str, version[:2])) for version in (OLDEST_PYTHON, sys.version_info))
    return f"aibench-tui needs Python {needed} or later; {sys.executable} is {found}; later ones here: {later}\n"


if __name__ == "__main__":
    sys.exit(main())
