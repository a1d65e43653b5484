"""The runner's process, `python -m engine.runner_main FD`: from its owner's request to the session file.

Its exit code is the run's. The owner has the only terminal, so whatever happens here is told over the owner pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from engine import exits, files, runfolder
from engine.errors import AibenchError
from engine.events import RunStarted
from engine.journal import read_events
from engine.launch.environment import RUN_FOLDER, RUN_ID
from engine.locks import acquire, lock_run_folder
from engine.owner import OwnerEnd, Reply, Request
from engine.plan_file import dump_plan, parse_plan
from engine.runner import Runner, unexpected
from engine.session import fold
from engine.session_file import write_session
from engine.setup import Ground, set_up, survey, survey_again


def main() -> int:
    """Serve the owner at the other end of FD; returns the run's exit code."""
    os.umask(0o077)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(exits.by_signal(signal.SIGTERM)))  # until the run listens to it
    owner = OwnerEnd(int(sys.argv[1]))
    try:
        code = _serve(owner, owner.request())
    except AibenchError as error:
        owner.say(Reply("error", text=str(error), code=error.code))
        return error.code
    except Exception as error:  # the owner has the only terminal: it must hear of every end
        owner.say(Reply("error", text=f"the runner failed: {unexpected(error, 'report it')}", code=exits.INCOMPLETE))
        return exits.INCOMPLETE
    owner.say(Reply("ended", code=code))
    return code


def _serve(owner: OwnerEnd, request: Request) -> int:
    """Prepare, run and write the session. What a journal says is read under the lock of its folder alone."""
    folder = Path(request.folder)
    with contextlib.ExitStack() as held:
        if request.resume:
            held.enter_context(lock_run_folder(folder))
        ground = survey_again(folder) if request.resume else survey(parse_plan(request.plan, "the plan"))
        locks = held.enter_context(acquire(tuple(device.device for device in ground.devices), ground.run))
        setup = set_up(ground)
        if not request.resume:
            folder = held.enter_context(_new_folder(folder, ground))
            held.enter_context(lock_run_folder(folder))
        # what every process of the run carries, so that `clean` can tell whose it is
        os.environ.update({RUN_ID: ground.run, RUN_FOLDER: str(folder)})
        return _run(Runner(setup, folder, locks), owner, ground.run, folder)


def _run(runner: Runner, owner: OwnerEnd, run: str, folder: Path) -> int:
    code = asyncio.run(_run_owned(runner, owner, Reply("ready", run=run, folder=str(folder))))
    write_session(folder / runfolder.SESSION, fold(read_events(folder / runfolder.JOURNAL)))
    return code


def _has_start(journal: Path) -> bool:
    return journal.is_file() and any(isinstance(event, RunStarted) for event in read_events(journal))


@contextlib.contextmanager
def _new_folder(parent: Path, ground: Ground) -> Iterator[Path]:
    """The run's own folder, named for people to find it, with the plan as it was asked for.

    It goes again where the run ends before even its start could be written.
    """
    stamp, _, unique = ground.run.rpartition("-")
    folder = parent / f"{stamp}-{re.sub('[^A-Za-z0-9._]+', '-', ground.plan.name)}-{unique}"
    try:
        files.make_private_folder(folder)
        for name in (runfolder.SERIES, runfolder.LOGS, runfolder.SCRATCH):
            files.make_private_folder(folder / name)
        files.atomic_write(folder / runfolder.PLAN, dump_plan(ground.plan).encode())
        yield folder
    finally:
        if not _has_start(folder / runfolder.JOURNAL):
            shutil.rmtree(folder, ignore_errors=True)


async def _run_owned(runner: Runner, owner: OwnerEnd, ready: Reply) -> int:
    """Run, listening to signals and to the owner's end of the pipe."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, runner.stop, "aborted", f"the runner got {signal.Signals(number).name}")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def owner_spoke() -> None:
        why = owner.heard()
        if why is None:
            loop.remove_reader(owner.socket)
            runner.owner_is_gone()
        elif why:
            runner.stop("aborted", why)

    loop.add_reader(owner.socket, owner_spoke)
    owner.say(ready)
    return await runner.run()


if __name__ == "__main__":
    sys.exit(main())
