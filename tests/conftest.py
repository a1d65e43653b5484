"""What holds for every test: its own folders for everything that the program keeps, and the policy of the suite."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from tests.policy import SuitePolicy


def pytest_configure(config: pytest.Config) -> None:
    """Give the whole session (xdist's workers inherit it) one folder; locks and sessions never meet a real user's."""
    # nohup and background jobs hand ignored signals on, which every program that the tests start would inherit
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        return
    root = Path(tempfile.mkdtemp(prefix="aibench-tests-"))
    for variable, name in (
        ("TMPDIR", "tmp"),
        ("AIBENCH_RUNTIME_DIR", "runtime"),
        ("XDG_DATA_HOME", "data"),
        ("XDG_STATE_HOME", "state"),
    ):
        folder = root / name
        folder.mkdir(mode=0o700)
        os.environ[variable] = str(folder)
    tempfile.tempdir = None  # it remembers the old one
    config.pluginmanager.register(SuitePolicy(root, strict=os.environ.get("CI") == "true"), "suite-policy")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Keep the folder of a session that failed, for a look at its run folders."""
    policy = config.pluginmanager.get_plugin("suite-policy")
    if policy is not None and not policy.failed:
        shutil.rmtree(policy.root, ignore_errors=True)
