"""`aibench-tui clean`: end and remove what runs that are over left behind; never anything that is not ours."""

from __future__ import annotations

import argparse

from engine import exits, sessions
from engine.sweep import Leftover, clean_up, look
from tui.cli.printing import say


def main(arguments: argparse.Namespace) -> int:
    """Clean, and name each thing in a line; code 1 when something could not be ended."""
    seen = look(sessions.folders(arguments.folder or sessions.default_folder()))
    found = [each for each in seen if not each.why]
    left = [] if arguments.dry_run else clean_up(found)
    _tell("would go" if arguments.dry_run else "gone", [each for each in found if each not in left])
    _tell("still there", left)
    _tell("left alone", [each for each in seen if each.why])
    if not found:
        say("nothing is left of runs that are over")
    return exits.FAILED if left else exits.DONE


def _tell(state: str, things: list[Leftover]) -> None:
    for thing in things:
        say(f"{state}: {thing.detail}" + (f": {thing.why}" if thing.why else ""))
