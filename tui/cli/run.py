"""`aibench-tui run`: from flags to a plan, a runner of its own process, progress on stderr and the result on stdout."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from engine import exits, files, runfolder, sessions
from engine.errors import AibenchError
from engine.owner import NotWanted, Request, StartedRun, start_runner
from engine.plan import Plan, Repetition, ScenarioChoice
from engine.plan_file import check_plan, dump_plan, load_plan, parse_plan
from engine.presets import preset
from engine.registry import find
from engine.schedule import parse_devices, parse_environment
from engine.session import DIED, Session
from engine.text import clean
from tui.cli import interrupts, output
from tui.cli.compare import arms_of, lines
from tui.cli.interrupts import Heard
from tui.cli.printing import give_stdout_up, say
from tui.cli.progress import Progress
from tui.cli.session_text import print_session

POLL_S = 0.25
STOP_LIMIT_S = 15.0
STDIN = "standard input"


def main(arguments: argparse.Namespace) -> int:
    """Run, report, and return the run's exit code, or that of the signal that ended it."""
    request, as_json = _request(arguments)
    heard = interrupts.heard()
    progress = Progress(sys.stderr)
    progress.say("looking for devices and an interpreter …")
    try:
        run = start_runner(request, give_up=lambda: heard.times > 0)
    except NotWanted:
        progress.say("stopped before it started")
        return exits.by_signal(heard.number)
    is_over = _follow(run, progress, heard)
    interrupts.leave_at_once(clean(f"aibench-tui: interrupted; the session is kept in {run.folder}"))
    line = _report(run, as_json) if is_over else _left(run, at_once=heard.times > 1)
    run.let_go()
    code = exits.by_signal(heard.number) if heard.number else _code(run)
    if code:
        progress.say(f"aibench-tui: {line or 'interrupted when the run had completed'}")
    return code


def _request(arguments: argparse.Namespace) -> tuple[Request, bool]:
    if arguments.resume is not None:
        _refuse_with_resume(arguments)
        folder = sessions.locate(arguments.resume, _parent(arguments.out or ""))
        return Request(folder=_told(folder), resume=True), bool(arguments.json)
    plan = plan_from(arguments)
    check_plan(plan)
    parent = _parent(plan.output.folder).absolute()
    files.probe_writable(parent)
    return Request(folder=_told(parent), plan=dump_plan(plan)), plan.output.json


def _told(folder: Path) -> str:
    """A folder as the runner is told of it, in JSON, which has no way to carry bytes that are not UTF-8."""
    path = str(folder.absolute())
    if path != path.encode("utf-8", "replace").decode():
        raise AibenchError(f"{path} is not UTF-8", "name or make a folder that is, with --out")
    return path


def _refuse_with_resume(arguments: argparse.Namespace) -> None:
    flags = ("scenario", "devices", "env", "framework", "python", "repeat", "seconds", "seed")
    given = [f"--{name}" for name in flags if getattr(arguments, name) is not None]
    if given:
        raise AibenchError(
            f"{', '.join(given)} cannot change a run that is resumed", "leave it out, or start a new run"
        )


def _parent(folder: str) -> Path:
    path = os.path.expanduser(folder)
    if path.startswith("~"):
        raise AibenchError(f"{path}: there is no such user", f"name a folder that is there, or ./{path}")
    return Path(path) if path else sessions.default_folder()


def plan_from(arguments: argparse.Namespace) -> Plan:
    """The plan that the flags describe: a file or preset, with each flag's key replaced."""
    plan = _base(arguments)
    target, repetition, output_ = plan.target, plan.repetition, plan.output
    if arguments.devices is not None:
        target = msgspec.structs.replace(target, devices=parse_devices(arguments.devices))
    if arguments.framework is not None:
        target = msgspec.structs.replace(target, framework=arguments.framework)
    python = target.python if arguments.python is None else arguments.python
    target = msgspec.structs.replace(target, python=_absolute(python))
    for name in ("repeat", "seconds", "seed"):
        if getattr(arguments, name) is not None:
            repetition = msgspec.structs.replace(repetition, **{name: getattr(arguments, name)})
    if arguments.out is not None:
        output_ = msgspec.structs.replace(output_, folder=arguments.out)
    if arguments.json is not None:
        output_ = msgspec.structs.replace(output_, json=True)
    changes: dict[str, object] = {"target": target, "repetition": repetition, "output": output_}
    if arguments.scenario:
        changes["scenarios"] = _scenarios(plan, arguments.scenario)
    if arguments.env:
        changes["environments"] = tuple(parse_environment(text) for text in arguments.env)
    return msgspec.structs.replace(plan, **changes)


def _absolute(python: str) -> str:
    """A path is meant from here, and the runner is elsewhere; links stay, since a venv's Python is one."""
    return python if os.sep not in python else str(Path(os.path.expanduser(python)).absolute())


def _base(arguments: argparse.Namespace) -> Plan:
    if arguments.plan is not None:
        return read_plan(arguments.plan)
    if arguments.preset is None and arguments.scenario:
        return Plan(name="scenarios", repetition=Repetition(seconds=1.0))
    return preset(arguments.preset or "quick")


def read_plan(file: Path) -> Plan:
    """The plan in a file, or on standard input for "-". Raises AibenchError (code 2)."""
    if str(file) != "-":
        return load_plan(file)
    try:
        return parse_plan(sys.stdin.buffer.read(files.MAX_PLAN_BYTES + 1).decode("utf-8-sig"), STDIN)
    except UnicodeDecodeError:
        raise AibenchError(f"{STDIN} is not UTF-8 text", "save the plan as UTF-8") from None


def _scenarios(plan: Plan, names: list[str]) -> tuple[ScenarioChoice, ...]:
    """The named scenarios, with the parameters that the plan gives them."""
    given = {find(choice.id).CARD.id: choice for choice in plan.scenarios}
    wanted = dict.fromkeys(find(name).CARD.id for name in names)
    return tuple(given.get(name, ScenarioChoice(id=name)) for name in wanted)


def _follow(run: StartedRun, progress: Progress, heard: Heard) -> bool:
    """Stay until the run has ended; False where it was left before.

    The first signal asks the run to stop; a second one leaves it to end by itself, and so does a runner that stands
    still.
    """
    progress.open(run.folder)
    while not run.poll(POLL_S) and not heard.times:
        progress.update()
    if heard.times and not run.is_over:
        progress.say("stopping: what is finished is kept; once more to leave at once")
        name = signal.Signals(heard.number).name
        run.stop(f"interrupted by {name}" + (" (ctrl+c)" if heard.number == signal.SIGINT else ""))
        deadline = time.monotonic() + STOP_LIMIT_S
        while not run.poll(POLL_S) and heard.times < 2 and time.monotonic() < deadline:
            progress.update()
    progress.update()
    progress.close()
    return run.is_over


def _code(run: StartedRun) -> int:
    return exits.INCOMPLETE if run.ended is None else run.ended.code


def _left(run: StartedRun, *, at_once: bool) -> str:
    """The last line where the command does not wait for the run's end any longer."""
    if at_once:
        return f"left; the run was asked to stop, and `aibench-tui show {run.folder}` tells how it ended"
    do = f"wake it with `kill -CONT {run.pid}`, or end it with `kill -KILL {run.pid}` and `aibench-tui clean`"
    return f"the runner does not answer; {do}; what is finished is kept in {run.folder}"


def _report(run: StartedRun, as_json: bool) -> str:
    """Print the result; returns the last line of a run that did not end well: what, why, and what to do."""
    session = sessions.load(run.folder)
    why = run.why()
    if why and session.reason == DIED:
        session = msgspec.structs.replace(session, reason=why)
    try:
        _print(session, run.folder, as_json)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        give_stdout_up()
        what = f"the result could not be printed: {error.strerror}"
        raise AibenchError(what, f"it is kept in {run.folder}", code=exits.INCOMPLETE) from error
    return why or _why(session, run.folder)


def _print_comparison(session: Session) -> None:
    """What the other arms cost against the reference; with one arm there is nothing to say."""
    if len({trial.environment for trial in session.trials}) < 2:
        return
    try:
        for line in lines(arms_of(session)):
            say(line)
    except AibenchError as error:
        say(f"comparison: {error}")


def _print(session: Session, folder: Path, as_json: bool) -> None:
    if as_json:
        output.print_json(output.document(session, folder))
        return
    print_session(session)
    _print_comparison(session)
    file = folder / runfolder.SESSION
    say(f"session: {file if file.exists() else folder}")


def _why(session: Session, folder: Path) -> str:
    if session.outcome != "completed":
        return f"run {session.outcome}: {session.reason}; go on with: aibench-tui run --resume {folder}"
    failed = [trial for trial in session.trials if trial.outcome == "failed"]
    if failed:
        return f"{len(failed)} of {len(session.trials)} trials failed; the first, {failed[0].trial}: {failed[0].reason}"
    if any(trial.outcome == "completed" for trial in session.trials):
        return ""
    return "no trial completed; each one's reason stands in the table"
