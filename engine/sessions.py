"""Sessions on disk: where they are, how one is named, and how a run folder becomes a Session again."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from engine import exits, files, runfolder
from engine.errors import AibenchError
from engine.journal import read_events
from engine.locks import is_running
from engine.session import Session, fold
from engine.session_file import read_session
from engine.text import clean

LATEST = "latest"

FOLDER_FORM = re.compile(r"[0-9]{8}-[0-9]{6}-.+-[0-9a-f]{6}", re.DOTALL)
NAMED = 3
"""How many of the sessions that match are named."""


def default_folder() -> Path:
    """Where sessions go when nothing else is said: the user's own data folder."""
    return Path(platformdirs.user_data_dir("aibench-tui", appauthor=False)) / "sessions"


def folders(parent: Path) -> Iterator[Path]:
    """The run folders below `parent`, oldest first; nothing where there is no such folder.

    One that is named as a run's and cannot be looked into is among them, for `load` to say why. Raises FileError
    (code 2) where `parent` cannot be read.
    """
    with files.explained(parent, "read", code=exits.USAGE):
        try:
            names = sorted(os.listdir(parent))
        except (FileNotFoundError, NotADirectoryError):
            names = []
    yield from (parent / name for name in names if _is_run(parent / name))


def _is_run(folder: Path) -> bool:
    try:
        return stat.S_ISREG(os.stat(folder / runfolder.JOURNAL).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return bool(FOLDER_FORM.fullmatch(folder.name))


def locate(name: str, parent: Path) -> Path:
    """The run folder or session file that `name` means: a path, "latest", or a part of one folder's name.

    Raises AibenchError (code 2) where that is none or several, or cannot be looked into.
    """
    path = Path(os.path.expanduser(name))  # which leaves an unknown ~user as it is
    if os.sep in name or os.path.exists(path):
        return _existing(path)
    known = list(folders(parent))
    where = clean(str(parent), files.PATH_LIMIT)
    if not known:
        do = "`aibench-tui run` makes one; --folder names another place"
        raise AibenchError(f"there are no sessions in {where}", do)
    if name == LATEST:
        return _existing(next(filter(_is_open, reversed(known)), known[-1]))
    found = [folder for folder in known if name in folder.name]
    if len(found) == 1:
        return _existing(found[0])
    asked = repr(clean(name, 300))
    what = f"{len(found)} sessions match {asked}: {_some(found)}" if found else f"no session matches {asked} in {where}"
    raise AibenchError(what, "name a session's folder or a longer part of its name; `aibench-tui list` shows them")


def _some(found: list[Path]) -> str:
    more = [f"{len(found) - NAMED} more"] if len(found) > NAMED else []
    return ", ".join([*(clean(folder.name, 100) for folder in found[:NAMED]), *more])


def _is_open(folder: Path) -> bool:
    """Whether we can look into a folder; in one that many share, "latest" is not somebody else's closed one."""
    return os.path.isfile(folder / runfolder.JOURNAL)


def load(path: Path) -> Session:
    """The session of a run folder, folded from its journal, or of a session.toml on its own.

    Raises AibenchError (code 2) where it cannot be read.
    """
    if os.path.isfile(path):
        return read_session(path)
    journal = path / runfolder.JOURNAL
    if _is_file(journal):
        return fold(read_events(journal), alive=is_running(path))
    return read_session(path / runfolder.SESSION)


def _existing(path: Path) -> Path:
    if any(map(_is_file, (path, path / runfolder.JOURNAL, path / runfolder.SESSION))):
        return path
    why = "holds no session" if os.path.isdir(path) else "is not there"
    what = f"{clean(str(path), files.PATH_LIMIT)} {why}"
    raise AibenchError(what, "name a session's folder; `aibench-tui list` shows them")


def _is_file(path: Path) -> bool:
    """Raises FileError (code 2) where that cannot be told."""
    with files.explained(path, "read", code=exits.USAGE):
        try:
            return stat.S_ISREG(os.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
