"""A comparison as TOML, so that a third party can recompute it from the file alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import tomli_w

from engine import exits, files, runfolder
from engine.analysis.paired import LEVEL, Comparison
from engine.session import Session
from engine.toml import to_table
from engine.version import VERSION

SCHEMA = 1
METHOD = (
    "plus is worse; d = ln(reference / other) where better is higher, ln(other / reference) where it is lower; "
    "degradation = exp(median d) - 1; low and high are the order statistics of d that hold its median with `coverage`"
)


def write_comparison(path: Path, session: Session, source: Path, comparisons: Sequence[Comparison]) -> None:
    """Write every figure and the raw pairs of `comparisons`, with the source by its digest, into a new file.

    Raises AibenchError (code 2) where `path` is there already or cannot be written.
    """
    document = {
        "schema": SCHEMA,
        "kind": "arms of one session, paired",
        "version": VERSION,
        "method": METHOD,
        "level": LEVEL,
        "source": {"run": session.run, "name": session.name, "started": session.started, **_digest(source)},
        "order_seed": session.seed,
        "comparison": [_table(each) for each in comparisons],
    }
    with files.explained(path, "write", code=exits.USAGE):
        files.create_private(path, tomli_w.dumps(to_table(document)).encode())


def _table(comparison: Comparison) -> dict[str, object]:
    fields = msgspec.structs.asdict(comparison)
    return {**{name: value for name, value in fields.items() if name != "pairs"}, "pair": fields["pairs"]}


def _digest(source: Path) -> dict[str, str]:
    """SHA-256 of what the figures were folded from: the journal of a run folder, or the session file."""
    path = source / runfolder.JOURNAL if source.is_dir() else source
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return {"file": path.name, "sha256": digest.hexdigest()}
