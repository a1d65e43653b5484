"""`aibench-tui compare`, and a third party who has nothing but the file that it writes."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sys
from pathlib import Path

import pytest

from engine import runfolder
from engine.journal import read_events
from engine.session import Session, fold
from tests.program import Program
from tui.cli.compare import arms_of, lines

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RECORDED = Path(__file__).parent.parent / "fixtures" / "sessions" / "h200-bare-podman" / runfolder.JOURNAL


@pytest.fixture(scope="module")
def session() -> Session:
    return fold(read_events(RECORDED))


@pytest.fixture
def folder(program: Program) -> Path:
    """The recording as a run folder."""
    folder = program.sessions / "20261201-182014-h200-bare-podman-10a658"
    folder.mkdir(parents=True)
    shutil.copy(RECORDED, folder)
    return folder


def test_the_lines_fit_into_80_columns(session: Session) -> None:
    told = list(lines(arms_of(session)))
    assert max(map(len, told)) <= 80
    assert told[1] == "compute/gemm bf16 8192x8192x8192: podman against bare"
    assert told[2] == "  rate                681.2     682.1 TFLOP/s  -0.05 % [-1.56, +1.50]         10"
    assert told[-1] == "  10 pairs: the interval holds the median with 97.9 % (order statistics)"


def test_a_third_party_recomputes_every_figure_from_the_file_alone(program: Program, folder: Path) -> None:
    target = program.home / "h200.compare.toml"
    done = program.call("compare", str(folder), "--output", str(target))
    assert done.returncode == 0, done.stderr
    assert target.stat().st_mode & 0o777 == 0o600
    document = tomllib.loads(target.read_text())
    assert document["source"]["sha256"] == hashlib.sha256((folder / runfolder.JOURNAL).read_bytes()).hexdigest()
    assert document["order_seed"] == 41
    assert len(document["comparison"]) == 6
    for each in document["comparison"]:
        assert each["better"] == "higher"
        worse = sorted(math.log(pair["reference"] / pair["other"]) for pair in each["pair"])
        assert each["n"] == len(worse) == 10
        assert each["degradation"] == pytest.approx(math.expm1((worse[4] + worse[5]) / 2), abs=1e-12)
        assert [each["low"], each["high"]] == pytest.approx([math.expm1(worse[1]), math.expm1(worse[8])], abs=1e-12)
        assert each["coverage"] == pytest.approx(1 - 2 * (1 + 10) / 2**10)


def test_a_comparison_is_never_replaced(program: Program, folder: Path) -> None:
    target = program.home / "once.toml"
    assert program.call("compare", str(folder), "--output", str(target)).returncode == 0
    again = program.call("compare", str(folder), "--output", str(target))
    assert again.returncode == 2
    assert "once.toml" in again.stderr


def test_json_is_one_document(program: Program, folder: Path) -> None:
    done = program.call("compare", str(folder), "--json", "--reference", "podman")
    document = json.loads(done.stdout)
    assert {each["reference"] for each in document["comparisons"]} == {"podman"}
    assert Path(program.home / document["file"]).is_file()


def test_one_arm_and_an_unknown_arm_are_refused(program: Program, folder: Path) -> None:
    program.run_json("--preset", "floor")
    (single,) = [each for each in program.folders() if each != folder]
    alone = program.call("compare", str(single))
    assert alone.returncode == 2
    assert "has one arm" in alone.stderr
    unknown = program.call("compare", str(folder), "--reference", "docker")
    assert unknown.returncode == 2
    assert "bare, podman" in unknown.stderr
