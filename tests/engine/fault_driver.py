"""The process that a disk fault hits: it journals trials and writes the session, over and over, a later call failing.

Arguments: the folder that faults are for, the errno, 1 for a fault that stays. Prints one JSON line for each n: what
was promised (synced trials), what stands on the disk, and which error came out.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

from engine import runfolder
from engine.errors import AibenchError
from engine.journal import JournalWriter, read_events
from engine.session import fold
from engine.session_file import read_session, write_session
from tests.engine.journal_cases import run_ended, run_started, setting, trial_events

TRIALS = 3


def attempt(folder: Path, promised: list[str]) -> None:
    """A small run; the trials whose sync returned are `promised`."""
    writer = JournalWriter(folder, reserve_bytes=16_384)
    try:
        for event in (run_started(TRIALS), *setting()):
            writer.append(event)
        writer.sync()
        for number in range(1, TRIALS + 1):
            for event in trial_events(f"t{number:04}"):
                writer.append(event)
            writer.sync()
            promised.append(f"t{number:04}")
        writer.append(run_ended())
    finally:
        writer.close()
    promised.append("end")
    write_session(folder / runfolder.SESSION, fold(read_events(folder / runfolder.JOURNAL)))
    promised.append("session")


def main() -> None:
    root, error, sticky = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    shim = ctypes.CDLL(None)
    n = 0
    fired = True
    while fired:
        n += 1
        folder = root / f"run-{n}"
        folder.mkdir(mode=0o700)
        promised: list[str] = []
        line = ""
        shim.aib_fault_arm(n, error, sticky)
        try:
            attempt(folder, promised)
        except AibenchError as problem:
            line = f"{problem.code} {problem}"
        fired = shim.aib_fault_count() >= n
        shim.aib_fault_arm(0, 0, 0)
        report(n, folder, promised, line)


def report(n: int, folder: Path, promised: list[str], error: str) -> None:
    journal, file = folder / runfolder.JOURNAL, folder / runfolder.SESSION
    session = fold(read_events(journal)) if journal.exists() else fold([])
    document = {
        "n": n,
        "promised": promised,
        "error": error,
        "completed": [trial.trial for trial in session.trials if trial.outcome == "completed"],
        "trials": len(session.trials),
        "medians": [each.median for each in session.measurements],
        "session": read_session(file) == session if file.exists() else None,
        "left": sorted(path.name for path in folder.iterdir()),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
