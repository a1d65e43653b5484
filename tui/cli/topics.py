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

FIGURES = {
    "median": "the middle one of the steady iterations; of several trials, the median of their medians",
    "best": "the fastest iteration: the highest rate, the shortest duration",
    "p95": "95 of 100 iterations took no longer; so a rate's p95 is its slow side, below the median",
    "cv": "how far iterations scatter: standard deviation by mean; n/a where there are too few",
    "n": "iterations that the figures are of, warm-up left out; 10x605 is 10 trials of 605",
    "no steady state: ...": "why the figures are of all iterations, warm-up with them: take them with care",
    "medians of the trials": "the lowest and the highest, and how far apart: what a repeated run may differ by",
    "conditions": "the last line of an arm: means over the measured windows of power, clock, temperature, host load",
    "sw power cap 40 %": "the device held its clock down for that share of the window, and names this reason",
}
"""What `aibench-tui show` prints."""

TOPICS = {
    "exit-codes": "what each exit code says",
    "environment": "the environment variables that are looked at",
    "files": "what is kept where",
    "figures": "how to read the figures of a run",
}


def main(arguments: argparse.Namespace) -> int:
    """Print the topic, or which there are."""
    for key, text in _topic(arguments.topic).items():
        say(f"{key:28} {text}")
    return exits.DONE


def _topic(name: str | None) -> dict[str, str]:
    if name is None:
        return TOPICS
    if name == "figures":
        return FIGURES
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
