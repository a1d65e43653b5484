"""The policy of the suite: a time budget for each folder, skips that must be justified, nothing left running."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import defaultdict
from pathlib import Path

import pytest

BUDGET_MINUTES: dict[str, float] = {
    "architecture": 1,
    "benchmarks": 1,
    "cli": 4,
    "end_to_end": 7,
    "engine": 3,
    "scenarios": 1,
    "worker": 1,
}
"""For each folder of tests/: the sum of its tests' durations on two cores. Twenty minutes is all that CI gets."""

CANNOT_HERE = "cannot here: "
"""How the reason of a skip starts that is right on the machines that run CI, such as a missing accelerator."""

GRACE_S = 5.0


class SuitePolicy:
    """A plugin of the process that reports (with xdist the controller). `root` is the session's own folder."""

    def __init__(self, root: Path, *, strict: bool) -> None:
        self.root = root
        self.strict = strict
        self.failed = False
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.skips: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test's time to its folder's, and look at its skip."""
        self.seconds[_folder(report.nodeid)] += report.duration
        if not hasattr(report, "wasxfail"):
            self._look_at_skip(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that skips itself counts like a test."""
        self._look_at_skip(report)

    def _look_at_skip(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if self.strict and report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            if not reason.startswith(CANNOT_HERE):
                self.skips.append(f"{report.nodeid}: {reason}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Report every breach as an error of the session, so that the closing line counts it."""
        breaches = [*self._over_budget(), *self._unjustified(), *end_leftovers(self.root)]
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(reporter, pytest.TerminalReporter)
        where = ("tests/policy.py", None, "suite")
        errors = [pytest.TestReport("suite policy", where, {}, "failed", text, "teardown") for text in breaches]
        reporter.stats.setdefault("error", []).extend(errors)
        if breaches and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self.failed = session.exitstatus != pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what each folder took of its budget, and where the files of a failed session are."""
        for folder, seconds in sorted(self.seconds.items()):
            budget = BUDGET_MINUTES.get(folder, 0) * 60
            terminalreporter.write_line(f"tests/{folder}: {seconds:.0f} s of {budget:.0f} s")
        if self.failed:
            terminalreporter.write_line(f"run folders and logs of this session: {self.root}")

    def _over_budget(self) -> list[str]:
        return [
            f"tests/{folder} took {seconds:.0f} s, over its budget of {BUDGET_MINUTES.get(folder, 0):g} minutes:"
            " make it faster, or change BUDGET_MINUTES in tests/policy.py and say why"
            for folder, seconds in sorted(self.seconds.items())
            if seconds > BUDGET_MINUTES.get(folder, 0) * 60
        ]

    def _unjustified(self) -> list[str]:
        return [
            f'skipped under CI=true without a reason that starts with "{CANNOT_HERE}": {skip}' for skip in self.skips
        ]


def end_leftovers(root: Path) -> list[str]:
    """A line for each process of a run of this session that is alive after GRACE_S; each is then killed."""
    end = time.monotonic() + GRACE_S
    while (found := _of_this_session(root)) and time.monotonic() < end:
        time.sleep(0.1)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [f"left running after the tests (now killed): {pid} {command}" for pid, command in sorted(found.items())]


def _of_this_session(root: Path) -> dict[int, str]:
    """Processes with a run's id that name the session's folder (a trial's TMPDIR lies in it), by process id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            environment = (entry / "environ").read_bytes()  # empty for a zombie
            if b"AIBENCH_RUN_ID=" in environment and bytes(root) in environment:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(entry.name)] = command.decode(errors="replace")[:200].strip()
    return found


def _folder(nodeid: str) -> str:
    """The folder below tests/ that a test lies in: "engine" for tests/engine/test_plan.py::test_x."""
    return nodeid.removeprefix("tests/").partition("/")[0].partition("::")[0]
