"""`aibench-tui export`: a run folder as one archive that another program or person can open."""

from __future__ import annotations

import argparse
import gzip
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from engine import exits, files, runfolder, sessions
from engine.errors import AibenchError
from engine.text import clean
from tui.cli.printing import say

LEFT_OUT = frozenset({runfolder.SCRATCH, runfolder.STAGE, runfolder.LOCK, runfolder.RESERVE})


def main(arguments: argparse.Namespace) -> int:
    """Pack it; the archive is ours alone to read, and there whole or not at all."""
    folder = sessions.locate(arguments.session, arguments.folder or sessions.default_folder())
    if not folder.is_dir():
        raise AibenchError(
            f"{clean(str(folder))} is a file, not a run folder", "name the folder; a session.toml needs no packing"
        )
    target = arguments.output or Path(f"{folder.name}.tar.gz")
    with files.replacing(target) as stream:
        _pack(folder, stream)
    say(str(target))
    return exits.DONE


def _pack(folder: Path, stream: IO[bytes]) -> None:
    # no time stamp in the gzip header, names sorted, no owner: the same session gives the same bytes
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in _contents(folder):
            _add(archive, path, f"{folder.name}/{path.relative_to(folder)}")


def _contents(folder: Path) -> Iterator[Path]:
    for name in sorted(os.listdir(folder)):
        path = folder / name
        if name in LEFT_OUT or path.is_symlink():
            continue
        if path.is_dir():
            yield from sorted(each for each in path.rglob("*") if each.is_file() and not each.is_symlink())
        elif path.is_file():
            yield path


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    with path.open("rb") as source:
        entry = tarfile.TarInfo(name)
        entry.size = os.fstat(source.fileno()).st_size
        entry.mode = 0o600
        entry.mtime = int(os.fstat(source.fileno()).st_mtime)
        archive.addfile(entry, source)
