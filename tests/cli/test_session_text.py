"""What a session looks like in 80 columns, from a recording of an H200."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import runfolder
from engine.journal import read_events
from engine.session import Session, Trial, fold
from engine.values import Missing
from tui.cli.session_text import HEADER, figures, print_session, rest

SESSIONS = Path(__file__).parent.parent / "fixtures" / "sessions"


def recorded(name: str) -> Session:
    return fold(read_events(SESSIONS / name / runfolder.JOURNAL))


@pytest.mark.parametrize("name", ["h200-quick-unsettled", "h200-bare-podman"])
def test_every_line_fits_into_80_columns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_session(recorded(name))
    lines = capsys.readouterr().out.splitlines()
    assert HEADER in lines
    assert max(len(line) for line in lines) <= 80


def test_ten_trials_of_an_arm_are_one_line_with_their_spread() -> None:
    lines = list(figures(recorded("h200-bare-podman")))
    assert lines[0] == "compute/gemm bf16 8192x8192x8192"
    assert lines[1] == "  rate            bare         681.2 TFLOP/s     704.5    634.6   3.0 %   10x605"
    assert lines[2] == "    medians of the trials: 671.8 to 685.0 TFLOP/s (2.0 %)"
    assert lines[4] == "    691 W · SM 1480 MHz · 57 °C · sw power cap 100 % · host CPU 6 %"


def test_trials_without_figures_that_ended_alike_are_one_line() -> None:
    def trial(number: int, outcome: str, reason: str) -> Trial:
        return Trial(
            trial=f"t{number:04}", scenario="s/x", variant="v", environment="bare", device="cpu", framework="torch",
            repeat=1, pair=1, slot=1, outcome=outcome, reason=reason, seconds=Missing("it did not run"),  # type: ignore[arg-type]
        )  # fmt: skip

    trials = [
        trial(1, "completed", ""),
        trial(2, "failed", "bad"),
        *(trial(n, "not_run", "stopped") for n in (3, 4, 5)),
    ]
    assert list(rest([*trials, trial(6, "running", "")])) == [
        "failed: t0002 s/x v · bare: bad",
        "not_run: 3 trials, t0003 to t0005: stopped",
        "running: t0006 s/x v · bare",
    ]
