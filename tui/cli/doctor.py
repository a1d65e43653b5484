"""`aibench-tui doctor`: is this machine ready, and if not, what to do."""

from __future__ import annotations

import argparse

import msgspec

from engine import exits, sessions
from engine.doctor import Check, examine, interpreter_for_auto
from engine.errors import AibenchError
from tui.cli import output
from tui.cli.printing import say

MARKS = {"ok": "ok  ", "warning": "warn", "problem": "FAIL"}


def main(arguments: argparse.Namespace) -> int:
    """Run the checks; code 4 when one of them says that the machine is not ready."""
    if arguments.need is not None:
        return _need(arguments)
    checks = examine(arguments.folder or sessions.default_folder(), arguments.python)
    if arguments.json:
        output.print_json({"checks": msgspec.to_builtins(checks)})
    else:
        for check in checks:
            _print(check)
    return exits.NOT_READY if any(check.state == "problem" for check in checks) else exits.DONE


def _need(arguments: argparse.Namespace) -> int:
    """Name the interpreter that has the framework for the devices here; code 4 where there is none."""
    try:
        found = interpreter_for_auto(arguments.python, arguments.need)
    except AibenchError as error:
        raise AibenchError(str(error), code=exits.NOT_READY) from error
    say(f"{found.path} has {', '.join(f'{name} {version}' for name, version in found.versions.items())}")
    return exits.DONE


def _print(check: Check) -> None:
    say(f"{MARKS[check.state]}  {check.name}: {check.found}" + (f"; {check.do}" if check.do else ""))
