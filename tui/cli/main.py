"""The commands: what to type, and where each goes. Modules of a command are imported when it runs."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from engine import exits
from engine.errors import AibenchError, remedy
from engine.text import clean
from engine.version import VERSION
from tui.cli import interrupts
from tui.cli.printing import STDOUT, give_stdout_up, protect_streams

OUT_OF_MEMORY = f"aibench-tui: out of memory; {remedy('MemoryError')}\n".encode()
"""Made beforehand: when it is needed there is nothing left to make it of."""

TOPICS = ("exit-codes", "environment", "files", "figures")
INTERRUPTED = "aibench-tui: interrupted"


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line that says what to do."""

    def error(self, message: str) -> NoReturn:
        raise AibenchError(message, f"see `{self.prog} --help`")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Help that cannot be printed is an error as for any other text; argparse itself passes over it."""
        (file or sys.stderr).write(message)


Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


def parser() -> argparse.ArgumentParser:
    """The whole command line; completion and help are made from it."""
    top = _Parser(
        prog="aibench-tui",
        description="Benchmarks accelerators on bare metal and in containers, with numbers that can be checked.",
        epilog=f"aibench-tui help {'|'.join(TOPICS)} tells more.",
    )
    top.add_argument("--version", action="version", version=f"aibench-tui {VERSION}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_run(commands)
    _add_sessions(commands)
    _add_care(commands)
    _add_plan(commands)
    return top


def _add_run(commands: Commands) -> None:
    run = commands.add_parser("run", help="run a plan or a preset and keep the session")
    run.set_defaults(module="tui.cli.run")
    what = run.add_argument_group("what to run")
    source = what.add_mutually_exclusive_group()
    source.add_argument("--plan", metavar="FILE", type=Path, help="a plan file (TOML); - is standard input")
    _with_choices(
        source.add_argument("--preset", metavar="NAME", help="a plan that comes with the program: quick, floor"),
        "presets",
    )
    _with_choices(
        source.add_argument("--resume", metavar="SESSION", help="go on with a run that was stopped or died"), "sessions"
    )
    _with_choices(
        what.add_argument("--scenario", metavar="NAME", action="append", help="only this scenario (repeatable)"),
        "scenarios",
    )
    where = run.add_argument_group("where to run it")
    where.add_argument("--devices", metavar="LIST", help="indices or UUIDs with commas, cpu, or auto")
    _with_choices(
        where.add_argument(
            "--env", metavar="KIND[,KEY=VALUE]", action="append", help="an arm: bare, podman,cpus=4 (repeatable)"
        ),
        "environments",
    )
    where.add_argument("--framework", choices=("auto", "torch", "jax"), help="what the workers compute with")
    where.add_argument(
        "--python", metavar="PATH", help="the workers' interpreter; auto looks for one with the framework"
    )
    how = run.add_argument_group("how long and how often")
    how.add_argument("--repeat", metavar="N", type=int, help="trials of each variant in each arm")
    how.add_argument(
        "--seconds", metavar="S", type=float, help="measured time of a trial, which sets its count of work"
    )
    how.add_argument("--seed", metavar="N", type=int, help="seed of the inputs and of the order of arms")
    result = run.add_argument_group("the result")
    result.add_argument("--out", metavar="FOLDER", help="where the session's folder is made")
    result.add_argument("--json", action="store_true", default=None, help="one JSON document on stdout, nothing else")


def _add_sessions(commands: Commands) -> None:
    show = commands.add_parser("show", help="show a session; a run that died too")
    show.set_defaults(module="tui.cli.show")
    _session_arguments(show)
    form = show.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON document on stdout")
    form.add_argument("--series", action="store_true", help="the telemetry of the whole run as CSV")
    listing = commands.add_parser("list", help="list the sessions")
    listing.set_defaults(module="tui.cli.list")
    _folder_argument(listing)
    listing.add_argument("--json", action="store_true", help="one JSON document on stdout")
    export = commands.add_parser("export", help="pack a session into one archive")
    export.set_defaults(module="tui.cli.export")
    _session_arguments(export)
    export.add_argument(
        "--output", metavar="FILE", type=Path, help="the archive (.tar.gz); by default in the current folder"
    )
    compare = commands.add_parser("compare", help="compare the arms of a session, in pairs")
    compare.set_defaults(module="tui.cli.compare")
    _session_arguments(compare)
    compare.add_argument(
        "--reference", metavar="ARM", help="the arm that the others are compared with; by default bare"
    )
    compare.add_argument(
        "--output", metavar="FILE", type=Path, help="the comparison (.compare.toml); by default in the current folder"
    )
    compare.add_argument("--json", action="store_true", help="one JSON document on stdout")
    recover = commands.add_parser("recover", help="write the session file of a run that died")
    recover.set_defaults(module="tui.cli.recover")
    _session_arguments(recover)


def _add_care(commands: Commands) -> None:
    clean = commands.add_parser("clean", help="end and remove what dead runs left behind, ours alone")
    clean.set_defaults(module="tui.cli.clean")
    _folder_argument(clean)
    clean.add_argument("--dry-run", action="store_true", help="only say what would go")
    doctor = commands.add_parser("doctor", help="check that this machine is ready")
    doctor.set_defaults(module="tui.cli.doctor")
    _folder_argument(doctor)
    doctor.add_argument("--need", choices=("torch", "jax"), help="only find an interpreter with this framework")
    doctor.add_argument("--python", metavar="PATH", default="auto", help="look at this interpreter only")
    doctor.add_argument("--json", action="store_true", help="one JSON document on stdout")
    topics = commands.add_parser("help", help=f"more about {', '.join(TOPICS)}")
    topics.set_defaults(module="tui.cli.topics")
    topics.add_argument("topic", choices=TOPICS, nargs="?", help="without one, the topics are listed")
    completion = commands.add_parser("completion", help="print the shell's completion code")
    completion.set_defaults(module="tui.cli.completion")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))


def _add_plan(commands: Commands) -> None:
    plan = commands.add_parser("plan", help="make or check a plan file")
    verbs = plan.add_subparsers(dest="verb", metavar="VERB", required=True)
    init = verbs.add_parser("init", help="write a plan file to edit")
    init.set_defaults(module="tui.cli.plan_init")
    init.add_argument("file", metavar="FILE", nargs="?", type=Path, default=Path("plan.toml"))
    _with_choices(
        init.add_argument("--preset", metavar="NAME", default="quick", help="the preset to start from"), "presets"
    )
    check = verbs.add_parser("check", help="say what a plan would do, or what is wrong with it")
    check.set_defaults(module="tui.cli.plan_check")
    check.add_argument("file", metavar="FILE", type=Path, help="a plan file (TOML); - is standard input")


def _session_arguments(command: argparse.ArgumentParser) -> None:
    _with_choices(
        command.add_argument(
            "session", metavar="SESSION", nargs="?", default="latest", help="a folder, part of its name, or latest"
        ),
        "sessions",
    )
    _folder_argument(command)


def _folder_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument("--folder", metavar="FOLDER", type=Path, help="where the sessions are")


def _with_choices(action: argparse.Action, kind: str) -> None:
    """Completion offers live values; nothing is imported for them until the shell asks."""

    def values(**_: object) -> list[str]:
        module = importlib.import_module("tui.cli.completion")
        result: list[str] = module.values(kind)
        return result

    action.completer = values  # type: ignore[attr-defined]  # argcomplete looks for this attribute


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; whatever goes wrong is one line on stderr."""
    os.umask(0o077)
    protect_streams()
    interrupts.leave_at_once(INTERRUPTED)
    interrupts.quiet_where_python_cannot_raise(INTERRUPTED)
    try:
        return _explained(list(sys.argv[1:] if argv is None else argv))
    except interrupts.Interrupted as stop:
        return _fail("interrupted", exits.by_signal(stop.number))
    except MemoryError as error:
        error.__traceback__ = error.__context__ = None  # what their frames hold is needed to leave in order
        with contextlib.suppress(OSError):
            os.write(2, OUT_OF_MEMORY)
        return exits.INCOMPLETE


def _explained(argv: list[str]) -> int:
    try:
        return _dispatch(argv)
    except MemoryError:
        raise
    except AibenchError as error:
        return _fail(str(error), error.code)
    except OSError as error:
        return _system_refused(error)
    except RecursionError:
        return _fail("the input is nested too deeply", exits.USAGE)
    except Exception as error:
        do = remedy(f"{type(error).__name__} {error}")
        if do:
            return _fail(f"out of memory; {do}", exits.INCOMPLETE)
        return _fail(f"an internal error, {type(error).__name__}; {_keep_traceback()}", exits.INCOMPLETE)


def _dispatch(argv: list[str]) -> int:
    top = parser()
    if "_ARGCOMPLETE" in os.environ:
        importlib.import_module("argcomplete").autocomplete(top)
    try:
        arguments = top.parse_args(argv)
    except SystemExit as end:  # --help and --version have printed and are done
        sys.stdout.flush()
        return int(end.code or 0)
    if arguments.command is None:
        top.print_help(sys.stderr)
        return exits.USAGE
    module = importlib.import_module(arguments.module)
    with interrupts.unwinding(INTERRUPTED):
        code: int = module.main(arguments)
    sys.stdout.flush()
    return code


def _system_refused(error: OSError) -> int:
    """The line for what the system refused: to take our output, or anything else that no code expected."""
    if error.filename == STDOUT:
        give_stdout_up()
        if isinstance(error, BrokenPipeError):
            return exits.by_signal(13)
        return _fail(f"{STDOUT}: {error.strerror}", exits.INCOMPLETE)
    from engine.files import FileError

    told = FileError(error, error.filename or "the command", "use" if error.filename else "finish")
    return _fail(str(told), exits.INCOMPLETE)


def _fail(text: str, code: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        print(clean(f"aibench-tui: {text}"), file=sys.stderr, flush=True)
    return code


def _keep_traceback() -> str:
    """Append the traceback to the user's log and say where it is."""
    import platformdirs

    from engine import files

    path = Path(platformdirs.user_log_dir("aibench-tui", appauthor=False)) / "errors.log"
    try:
        files.make_private_folder(path.parent)
        files.append_bytes(path, traceback.format_exc().encode())
    except OSError as problem:
        return f"its traceback could not be written to {path}: {problem.strerror}"
    return f"its traceback is in {path}"
