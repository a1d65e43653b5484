"""Sessions on disk: where they are, how one is named, and how a run folder becomes a Session again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from engine import runfolder
from engine.errors import AibenchError
from engine.journal import read_events
from engine.locks import is_running
from engine.session import Session, fold
from engine.session_file import read_session
from engine.text import clean

LATEST = "latest"


def default_folder() -> Path:
    """Where sessions go when nothing else is said: the user's own data folder."""
    return Path(platformdirs.user_data_dir("aibench-tui", appauthor=False)) / "sessions"


def folders(parent: Path) -> Iterator[Path]:
    """The run folders below `parent`, oldest first; nothing where there is no such folder."""
    if parent.is_dir():
        yield from sorted(entry for entry in parent.iterdir() if os.path.isfile(entry / runfolder.JOURNAL))


def locate(name: str, parent: Path) -> Path:
    """The run folder or session file that `name` means: a path, "latest", or a part of one folder's name.

    Raises AibenchError (code 2) where that is none or several.
    """
    path = Path(os.path.expanduser(name))  # which leaves an unknown ~user as it is
    if os.sep in name or os.path.exists(path):
        return _existing(path)
    known = list(folders(parent))
    if name == LATEST and known:
        return known[-1]
    if not known:
        raise AibenchError(
            f"there are no sessions in {clean(str(parent))}",
            "`aibench-tui run` makes one; --folder names another place",
        )
    found = [folder for folder in known if name in folder.name]
    if len(found) == 1:
        return found[0]
    asked = repr(clean(name, 300))
    what = f"{len(found)} sessions match {asked}" if found else f"no session matches {asked} in {clean(str(parent))}"
    raise AibenchError(what, "name a session's folder or a longer part of its name; `aibench-tui list` shows them")


def load(path: Path) -> Session:
    """The session of a run folder, folded from its journal, or of a session.toml on its own."""
    if path.is_file():
        return read_session(path)
    journal = path / runfolder.JOURNAL
    if journal.is_file():
        return fold(read_events(journal), alive=is_running(path))
    return read_session(path / runfolder.SESSION)


def _existing(path: Path) -> Path:
    # by os.path, since a Path's own tests raise for a name that is too long or in a folder closed to us
    if any(map(os.path.isfile, (path, path / runfolder.JOURNAL, path / runfolder.SESSION))):
        return path
    why = "holds no session" if os.path.isdir(path) else "is not there"
    raise AibenchError(f"{clean(str(path))} {why}", "name a session's folder; `aibench-tui list` shows them")
