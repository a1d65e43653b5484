"""`aibench-tui run`: from flags to a plan, a runner of its own process, progress on stderr and the result on stdout."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine import exits, files, runfolder, sessions
from engine.errors import AibenchError
from engine.owner import Request, StartedRun, start_runner
from engine.plan import Plan, Repetition, ScenarioChoice
from engine.plan_file import check_plan, dump_plan, load_plan, parse_plan
from engine.presets import preset
from engine.registry import find
from engine.schedule import parse_devices, parse_environment
from engine.session import Session
from tui.cli import output
from tui.cli.printing import say
from tui.cli.progress import Progress
from tui.cli.session_text import print_session

POLL_S = 0.25
STOP_LIMIT_S = 15.0


class _Interrupted(Exception):
    """A signal asks the run to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(arguments: argparse.Namespace) -> int:
    """Run, report, and return the run's exit code, or that of the signal that ended it."""
    request, as_json = _request(arguments)
    progress = Progress(sys.stderr)
    _on_signals(_interrupt)
    try:
        progress.say("looking for devices and an interpreter …")
        run = start_runner(request)
    except _Interrupted as stop:
        progress.say("stopped before it started")
        return exits.by_signal(stop.number)
    code, why = _follow(run, progress)
    _on_signals(signal.SIG_DFL)
    session = sessions.load(run.folder)
    try:
        _report(session, run.folder, as_json)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        what = f"the result could not be printed: {error.strerror}"
        raise AibenchError(what, f"it is kept in {run.folder}", code=exits.INCOMPLETE) from error
    if code:
        progress.say(f"aibench-tui: {why or _why(session, run.folder)}")
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
    return Path(folder).expanduser() if folder else sessions.default_folder()


def plan_from(arguments: argparse.Namespace) -> Plan:
    """The plan that the flags describe: a file or preset, with each flag's key replaced."""
    plan = _base(arguments)
    target, repetition, output_ = plan.target, plan.repetition, plan.output
    if arguments.devices is not None:
        target = msgspec.structs.replace(target, devices=parse_devices(arguments.devices))
    for name in ("framework", "python"):
        if getattr(arguments, name) is not None:
            target = msgspec.structs.replace(target, **{name: getattr(arguments, name)})
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


def _base(arguments: argparse.Namespace) -> Plan:
    if arguments.plan is not None:
        if str(arguments.plan) == "-":
            return parse_plan(sys.stdin.read(files.MAX_PLAN_BYTES + 1), "standard input")
        return load_plan(arguments.plan)
    if arguments.preset is None and arguments.scenario:
        return Plan(name="scenarios", repetition=Repetition(seconds=1.0))
    return preset(arguments.preset or "quick")


def _scenarios(plan: Plan, names: list[str]) -> tuple[ScenarioChoice, ...]:
    """The named scenarios, with the parameters that the plan gives them."""
    given = {find(choice.id).CARD.id: choice for choice in plan.scenarios}
    wanted = dict.fromkeys(find(name).CARD.id for name in names)
    return tuple(given.get(name, ScenarioChoice(id=name)) for name in wanted)


def _interrupt(number: int, _frame: object) -> None:
    raise _Interrupted(number)


def _on_signals(handler: Callable[[int, object], None] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)


def _follow(run: StartedRun, progress: Progress) -> tuple[int, str]:
    """Stay until the run has ended; returns the exit code, and why where the runner itself said so.

    The first signal asks the run to stop; a second one leaves it to end by itself.
    """
    number = 0
    try:
        try:
            _watch(run, progress)
        except _Interrupted as stop:
            number = stop.number
            progress.say("stopping: what is finished is kept; once more to leave at once")
            run.stop(f"interrupted by {signal.Signals(number).name}" + (" (ctrl+c)" if number == signal.SIGINT else ""))
            _watch(run, progress, limit_s=STOP_LIMIT_S)
    except _Interrupted as stop:
        number = stop.number
        run.detach()
    progress.close()
    ended = run.ended
    why = ended.text if ended is not None else ""
    if number:
        return exits.by_signal(number), why
    return (ended.code if ended is not None else exits.INCOMPLETE), why


def _watch(run: StartedRun, progress: Progress, limit_s: float = float("inf")) -> None:
    progress.open(run.folder)
    waited = 0.0
    while not run.poll(POLL_S) and waited < limit_s:
        progress.update()
        waited += POLL_S
    progress.update()


def _report(session: Session, folder: Path, as_json: bool) -> None:
    if as_json:
        output.print_json(output.document(session, folder))
        return
    print_session(session)
    file = folder / runfolder.SESSION
    say(f"session: {file if file.exists() else folder}")


def _why(session: Session, folder: Path) -> str:
    """The last line of a run that did not end well: what, why, and what to do."""
    if session.outcome != "completed":
        return f"run {session.outcome}: {session.reason}; go on with: aibench-tui run --resume {folder}"
    failed = [trial for trial in session.trials if trial.outcome == "failed"]
    if not failed:
        return "no trial completed; each one's reason stands in the table"
    first = failed[0]
    return f"{len(failed)} of {len(session.trials)} trials failed; the first, {first.trial}: {first.reason}"
