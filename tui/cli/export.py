"""`aibench-tui export`: a run folder as one archive that another program or person can open."""

from __future__ import annotations

import argparse
import gzip
import os
import tarfile
from collections.abc import Container, Iterator
from pathlib import Path
from typing import IO

from engine import exits, files, runfolder, sessions
from engine.errors import AibenchError
from engine.text import clean
from tui.cli.printing import say

LEFT_OUT = frozenset({runfolder.SCRATCH, runfolder.STAGE, runfolder.LOCK, runfolder.RESERVE})


def main(arguments: argparse.Namespace) -> int:
    """Pack it; the archive is ours alone to read, there whole or not at all, and replaces nothing."""
    folder = sessions.locate(arguments.session, arguments.folder or sessions.default_folder())
    if not folder.is_dir():
        raise AibenchError(
            f"{clean(str(folder))} is a file, not a run folder", "name the folder; a session.toml needs no packing"
        )
    name = folder.resolve().name  # also of "." and ".."
    target = arguments.output or Path(f"{name}.tar.gz")
    # before the archive is begun, which may lie in this very folder, like one of before
    contents = list(_contents(folder, {*LEFT_OUT, f"{name}.tar.gz"}))
    with files.replacing(target, is_new=True, code=exits.USAGE) as stream:
        _pack(folder, name, contents, stream)
    say(str(target))
    return exits.DONE


def _pack(folder: Path, name: str, contents: list[Path], stream: IO[bytes]) -> None:
    # no time stamp in the gzip header, names sorted, no owner: the same session gives the same bytes
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in contents:
            _add(archive, path, f"{name}/{path.relative_to(folder)}")


def _contents(folder: Path, left_out: Container[str] = ()) -> Iterator[Path]:
    """Plain files alone: a link leads out of the folder, and a pipe would hold us up."""
    with files.explained(folder, "read", code=exits.USAGE):
        names = sorted(os.listdir(folder))
    for path in (folder / name for name in names if name not in left_out):
        if path.is_symlink():
            continue
        if path.is_dir():
            yield from _contents(path)
        elif path.is_file():
            yield path


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    with files.explained(path, "read", code=exits.USAGE):
        source = os.fdopen(files.open_regular(path, clean(str(path))), "rb")
    with source:
        entry = tarfile.TarInfo(name)
        entry.size = os.fstat(source.fileno()).st_size
        entry.mode = 0o600
        entry.mtime = int(os.fstat(source.fileno()).st_mtime)
        archive.addfile(entry, source)
