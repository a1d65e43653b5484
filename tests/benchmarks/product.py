"""The whole product as an arm of a benchmark: `aibench-tui run`, and the median that an operator reads from it.

Counts have to be equal in both arms, and a run calibrates its own. So one run of two trials is made first, and its
journal is cut behind the first trial: a run that died there. Every measurement then resumes a copy of it, which runs
the second trial, with the count of the first, by an own runner, keeper and telemetry process at 10 Hz.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PER_UNIT = {"TFLOP/s": 1e12, "GB/s": 1e9}

PLAN = """schema = 1
name = "pairs"
[target]
devices = [{device}]
framework = "torch"
python = {python}
[repetition]
repeat = 2
seconds = {seconds}
seed = {seed}
[[scenario]]
id = {scenario}
[scenario.parameters]
"""


class Product:
    """Runs the program `command` by its own interpreter, its workers by `python`. Of `spec` it takes what is measured.

    Standard library only, since the interpreter with torch need not have the program's packages.
    """

    def __init__(self, command: Sequence[str], python: str, spec: Mapping[str, Any], folder: Path) -> None:
        self._command = list(command)
        self._folder = folder
        self._plan = folder / "plan.toml"
        self._plan.write_text(plan_text(spec, python))
        self._number = 0
        self.counts: dict[str, int] = {}
        self.facts: dict[str, Any] = {}
        self.device = ""

    def calibrate(self) -> None:
        """The first run, which gives `counts`, `facts` and the `device` as the product names it."""
        document = self._run("--plan", str(self._plan), "--out", str(self._folder / "first"))
        first = _measurements(document, "t0001")
        self.counts = {each["metric"]: _count(each) for each in first}
        self.facts = {**first[0]["facts"], "version": document["version"], "telemetry": sorted(first[0]["telemetry"])}
        self.device = str(first[0]["device"])
        cut_after_first_trial(Path(document["folder"]))

    def medians(self) -> dict[str, float]:
        """One run of one trial: the median duration of each metric, in seconds, from what the session says."""
        (first,) = (self._folder / "first").iterdir()
        self._number += 1
        copy = self._folder / f"run{self._number}" / first.name
        shutil.copytree(first, copy)
        measured = _measurements(self._run("--resume", str(copy)), "t0002")
        shutil.rmtree(copy)
        counts = {each["metric"]: _count(each) for each in measured}
        if counts != self.counts:
            raise SystemExit(f"the run did {counts} iterations and not {self.counts}")
        return {each["metric"]: each["work"] / (each["median"] * PER_UNIT[each["unit"]]) for each in measured}

    def _run(self, *arguments: str) -> dict[str, Any]:
        command = [*self._command, "run", "--json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"the program ended with code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
        document: dict[str, Any] = json.loads(done.stdout)
        return document


def plan_text(spec: Mapping[str, Any], python: str) -> str:
    """A plan of two trials of what a worker's spec says; JSON's strings and numbers are TOML's too."""
    values = {
        "device": json.dumps("cpu" if spec["device"]["kind"] == "cpu" else str(spec["device"]["index"])),
        "python": json.dumps(shutil.which(python) or python),
        "seconds": json.dumps(spec["seconds"]),
        "seed": json.dumps(spec["seed"]),
        "scenario": json.dumps(spec["scenario"]),
    }
    parameters = (f"{name}s = [{json.dumps(value)}]\n" for name, value in spec["parameters"].items())
    return PLAN.format(**values) + "".join(parameters)


def cut_after_first_trial(folder: Path) -> None:
    """Leave of a finished run what one that died after its first trial leaves."""
    journal = folder / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    end = next(number for number, line in enumerate(lines) if json.loads(line)["event"] == "trial_ended")
    journal.write_bytes(b"".join(lines[: end + 1]))
    (folder / "session.toml").unlink()


def _measurements(document: Mapping[str, Any], trial: str) -> list[dict[str, Any]]:
    found = [each for each in document["measurements"] if each["trial"] == trial]
    if not found:
        raise SystemExit(f"the run measured nothing: {[each['reason'] for each in document['trials']]}")
    return found


def _count(measurement: Mapping[str, Any]) -> int:
    return int(measurement["n"]) + int(measurement["warmup_n"])
