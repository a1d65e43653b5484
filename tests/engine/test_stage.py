"""The stage: what workers run by path."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from engine.launch.bare import BareLauncher
from engine.launch.base import TrialFiles
from engine.stage import stage
from tests.worker.driving import a_spec


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_stage_holds_the_worker_and_the_scenarios_and_nothing_else(tmp_path: Path) -> None:
    names = set(content(stage(tmp_path)))
    assert {"engine/__init__.py", "engine/worker/keeper.py", "engine/worker/card.py", "scenarios/__init__.py"} <= names
    assert {name.split("/")[0] for name in names} == {"engine", "scenarios"}
    assert {"/".join(name.split("/")[:2]) for name in names if name.startswith("engine")} == {
        "engine/__init__.py",
        "engine/worker",
    }
    assert {Path(name).suffix for name in names} == {".py"}
    assert (tmp_path / "stage" / "engine" / "__init__.py").read_bytes() == b""


def test_the_stage_is_for_its_owner_alone(tmp_path: Path) -> None:
    staged = stage(tmp_path)
    assert {path.stat().st_mode & 0o077 for path in (staged, *staged.rglob("*"))} == {0}


def test_a_staged_module_is_imported_from_the_stage(tmp_path: Path) -> None:
    staged = stage(tmp_path)
    code = f"import sys; sys.path.insert(0, {str(staged)!r}); import engine.worker.card as card; print(card.__file__)"
    seen = subprocess.run([sys.executable, "-I", "-B", "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == str(staged / "engine" / "worker" / "card.py")


def test_staging_again_keeps_what_is_the_same(tmp_path: Path) -> None:
    before = {path: path.stat().st_ino for path in stage(tmp_path).rglob("*")}
    assert {path: path.stat().st_ino for path in stage(tmp_path).rglob("*")} == before


def test_a_bare_trial_leaves_the_stage_as_it_was(tmp_path: Path) -> None:
    """Bytecode that it wrote would make its successors start faster, and those in containers too."""
    staged = stage(tmp_path)
    before = content(staged)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "spec.json").write_bytes(msgspec.json.encode(a_spec()))
    files = TrialFiles(stage=staged, spec=scratch / "spec.json", scratch=scratch)
    launch = BareLauncher(sys.executable, "cpu", "cpu").prepare("r1", "t0001", "tok", 60.0, files)
    pipe = subprocess.PIPE
    with subprocess.Popen(launch.argv, stdin=pipe, stdout=pipe, stderr=pipe, env=launch.env, cwd=scratch) as trial:
        assert trial.stdin is not None and trial.stdout is not None
        for line in iter(trial.stdout.readline, b""):
            if b'"ping"' in line:
                pong = {"pong": msgspec.json.decode(line)["n"], "t": time.monotonic()}
                trial.stdin.write(msgspec.json.encode(pong) + b"\n")
                trial.stdin.flush()
            last = line
    assert msgspec.json.decode(last)["exit_code"] == 0
    assert content(staged) == before


def test_a_stage_that_something_changed_is_made_anew(tmp_path: Path) -> None:
    right = content(stage(tmp_path))
    card = tmp_path / "stage" / "engine" / "worker" / "card.py"
    card.write_text("raise SystemExit")
    assert content(stage(tmp_path)) == right
    card.unlink()
    assert content(stage(tmp_path)) == right
    (tmp_path / "stage" / "torch.py").write_text("shadows the image's own")
    assert content(stage(tmp_path)) == right


def test_a_link_in_the_place_of_the_stage_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept.txt").write_text("not ours")
    folder = tmp_path / "run"
    folder.mkdir()
    os.symlink(elsewhere, folder / "stage")
    assert not stage(folder).is_symlink()
    assert content(elsewhere) == {"kept.txt": b"not ours"}


def test_a_link_inside_the_stage_is_replaced_by_the_file(tmp_path: Path) -> None:
    card = stage(tmp_path) / "engine" / "worker" / "card.py"
    original = tmp_path / "card.py"
    card.rename(original)
    card.symlink_to(original)
    stage(tmp_path)
    assert not card.is_symlink()
    assert card.read_bytes() == original.read_bytes()
