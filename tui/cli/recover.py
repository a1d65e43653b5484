"""`aibench-tui recover`: the session file of a run whose runner died, from the journal that it left."""

from __future__ import annotations

import argparse

from engine import exits, runfolder, sessions
from engine.errors import AibenchError
from engine.journal import read_events
from engine.locks import lock_run_folder
from engine.session import fold
from engine.session_file import write_session
from engine.text import clean
from tui.cli.printing import say
from tui.cli.session_text import print_session


def main(arguments: argparse.Namespace) -> int:
    """Write session.toml and show it. Refused while the run lives."""
    folder = sessions.locate(arguments.session, arguments.folder or sessions.default_folder())
    if not (folder / runfolder.JOURNAL).is_file():
        raise AibenchError(f"{clean(str(folder))} has no journal to recover from", "name a run's folder")
    with lock_run_folder(folder):
        session = fold(read_events(folder / runfolder.JOURNAL))
        write_session(folder / runfolder.SESSION, session)
    print_session(session)
    say(f"session: {folder / runfolder.SESSION}")
    return exits.DONE
