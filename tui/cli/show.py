"""`aibench-tui show`: a session as a table, as JSON, or its telemetry as CSV; what a dead run finished is there too."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from engine import exits, runfolder, sessions
from engine.errors import AibenchError
from engine.series_reader import SeriesReader
from engine.timeline import utc
from tui.cli import output
from tui.cli.session_text import print_session

COLUMNS = ("time_utc", "device", "quantity", "window_s", "n", "mean", "min", "max")


def main(arguments: argparse.Namespace) -> int:
    """Show it."""
    path = sessions.locate(arguments.session, arguments.folder or sessions.default_folder())
    if arguments.series:
        _print_series(path)
        return exits.DONE
    session = sessions.load(path)
    if arguments.json:
        output.print_json(output.document(session, path))
    else:
        print_session(session)
    return exits.DONE


def _print_series(path: Path) -> None:
    """The whole run's telemetry, a line for each quantity and window, as RFC 4180 has it."""
    folder = path / runfolder.SERIES
    if not folder.is_dir():
        raise AibenchError(f"{path} has no telemetry series", "name a run's folder")
    out = csv.writer(sys.stdout)
    out.writerow(COLUMNS)
    for row in SeriesReader(folder).history():
        when = utc(row.wall_s, "milliseconds")
        for name, window in row.values.items():
            out.writerow((when, row.device, name, row.window_s, window.n, window.mean, window.min, window.max))
