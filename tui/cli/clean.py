"""`aibench-tui clean`: end and remove what runs that are over left behind; never anything that is not ours."""

from __future__ import annotations

import argparse

from engine import exits, sessions
from engine.sweep import Leftover, clean_up, leftovers
from tui.cli.printing import say


def main(arguments: argparse.Namespace) -> int:
    """Clean, and name each thing; code 1 when something could not be ended."""
    found = leftovers(sessions.folders(arguments.folder or sessions.default_folder()))
    if not found:
        say("nothing is left of runs that are over")
        return exits.DONE
    if arguments.dry_run:
        _tell("would go", found)
        return exits.DONE
    left = clean_up(found)
    _tell("gone", [each for each in found if each not in left])
    _tell("still there", left)
    return exits.FAILED if left else exits.DONE


def _tell(state: str, things: list[Leftover]) -> None:
    for thing in things:
        say(f"{state}: {thing.kind} {thing.name} of run {thing.run} ({thing.detail})")
