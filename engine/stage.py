"""The stage: the copy of the worker's code in the run folder that trials run by path, in every environment."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from engine import files
from engine.children import ROOT
from engine.runfolder import STAGE


def stage(folder: Path) -> Path:
    """Copy engine/worker and scenarios into the run folder and return the copy.

    A copy that is there already is kept if it is the same to the byte, else made anew (a run resumed after an
    upgrade, or a file that something has changed). Only sources are copied; owner-only. Raises FileError where the
    folder cannot be written.
    """
    target = folder / STAGE
    wanted = _sources()
    if _content(target) != wanted:
        _remove(target)
        for name, data in wanted.items():
            files.make_private_folder((target / name).parent)
            files.write_private(target / name, data)
    return target


def _sources() -> dict[str, bytes]:
    """Relative path and content of everything a worker may import; engine/__init__.py is empty by contract."""
    paths = [*(ROOT / "engine" / "worker").rglob("*.py"), *(ROOT / "scenarios").rglob("*.py")]
    sources = {str(path.relative_to(ROOT)): path.read_bytes() for path in paths}
    return {"engine/__init__.py": b"", **sources}


def _content(target: Path) -> dict[str, bytes]:
    """Relative path and content of every file of a stage; a link in it makes it differ from any source."""
    found: dict[str, bytes] = {}
    for parent, folders, names in os.walk(target):
        for name in names + folders:
            path = Path(parent) / name
            if path.is_symlink():
                found[str(path.relative_to(target))] = b"a link"
            elif path.is_file():
                found[str(path.relative_to(target))] = path.read_bytes()
    return found


def _remove(target: Path) -> None:
    with files.explained(target, "replace"):
        if target.is_symlink():
            target.unlink()
        elif target.exists():
            shutil.rmtree(target)
