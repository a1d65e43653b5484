"""`aibench-tui show`: a session as a table or as JSON; what a dead run finished is there too."""

from __future__ import annotations

import argparse

from engine import exits, sessions
from tui.cli import output
from tui.cli.session_text import print_session


def main(arguments: argparse.Namespace) -> int:
    """Show it."""
    path = sessions.locate(arguments.session, arguments.folder or sessions.default_folder())
    session = sessions.load(path)
    if arguments.json:
        output.print_json(output.document(session, path))
    else:
        print_session(session)
    return exits.DONE
