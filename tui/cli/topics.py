"""`aibench-tui help TOPIC`: what a manual page would say, from the tables that the program itself uses."""

from __future__ import annotations

import argparse

from engine import exits, runfolder, sessions
from engine.locks import runtime_path
from tui.cli.printing import say

ENVIRONMENT = {
    "AIBENCH_RUNTIME_DIR": "folder of control sockets and device locks (all users of a node must share the locks)",
    "XDG_DATA_HOME": "sessions are in aibench-tui/sessions below it",
    "VIRTUAL_ENV, CONDA_PREFIX": "their Python is tried first as the workers' interpreter",
    "PYTHONPATH": "not used by the program itself; handed on to the workers",
}


def main(arguments: argparse.Namespace) -> int:
    """Print the topic."""
    for key, text in _topic(arguments.topic).items():
        say(f"{key:28} {text}")
    return exits.DONE


def _topic(name: str) -> dict[str, str]:
    if name == "exit-codes":
        return exits.MEANINGS
    if name == "environment":
        return ENVIRONMENT
    return {
        str(sessions.default_folder()): "sessions, a folder each",
        f"…/{runfolder.SESSION}": "the result: measurements, outcomes, fingerprint",
        f"…/{runfolder.JOURNAL}": "every event of the run; the result is folded from it",
        f"…/{runfolder.SERIES}/": "telemetry samples",
        f"…/{runfolder.LOGS}/": "what each trial printed",
        f"…/{runfolder.PLAN}": "the plan as it was run",
        str(runtime_path()): "control sockets of running runs",
    }
