"""The names inside a run folder, the only hand-over between the runner and whatever shows, stores or judges a run."""

from __future__ import annotations

from pathlib import Path

JOURNAL = "journal.jsonl"
PLAN = "plan.toml"
SESSION = "session.toml"
SERIES = "series"
LOGS = "logs"
STAGE = "stage"
SCRATCH = "scratch"
LOCK = "run.lock"
RUNNER_LOG = "runner.log"
RESERVE = "reserve"


def trial_log(folder: Path, trial: str) -> Path:
    """Where everything a trial printed is kept."""
    return folder / LOGS / f"{trial}.log"
