"""Small files of /sys and /proc: read whole, bounded, cleaned, with a reason where they cannot be read."""

from __future__ import annotations

from pathlib import Path

from engine.telemetry.provider import Unreadable
from engine.text import clean

_LIMIT = 1 << 20


def read_text(path: Path, limit: int = _LIMIT) -> str:
    """A file's text, cleaned but for its newlines. Raises Unreadable with a reason an operator understands."""
    try:
        with path.open("rb") as file:
            data = file.read(limit)
    except FileNotFoundError as error:
        raise Unreadable(f"{clean(str(path), 200)} is not there", lasting=True) from error
    except PermissionError as error:
        raise Unreadable(f"{clean(str(path), 200)}: permission denied", lasting=True) from error
    except OSError as error:
        raise Unreadable(f"{clean(str(path), 200)}: {error.strerror}") from error
    return clean(data, limit, keep_newlines=True).strip()


def read_number(path: Path) -> int:
    """A file that holds one whole number. Raises Unreadable also where it holds something else."""
    text = read_text(path, 200)
    try:
        return int(text)
    except ValueError as error:
        raise Unreadable(f"{clean(str(path), 200)} holds no number: {text[:40]!r}") from error


def folders(parent: Path, pattern: str) -> list[Path]:
    """The entries of a folder that match, in order of the numbers in their names; none where it cannot be read."""
    try:
        return sorted(parent.glob(pattern), key=lambda path: (len(path.name), path.name))
    except OSError:
        return []
