"""`aibench-tui plan init`: a plan file with every key and what it means, ready to edit."""

from __future__ import annotations

import argparse

from engine import exits, files
from engine.errors import AibenchError
from engine.plan_file import plan_template
from engine.presets import preset
from engine.text import clean
from tui.cli.printing import say


def main(arguments: argparse.Namespace) -> int:
    """Write it; a file that is there already is never replaced."""
    text = plan_template(preset(arguments.preset))
    try:
        files.create_private(arguments.file, text.encode())
    except FileExistsError as error:
        raise AibenchError(
            f"{clean(str(arguments.file))} is there already", "name another file or remove it"
        ) from error
    say(str(arguments.file))
    return exits.DONE
