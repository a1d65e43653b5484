"""Containers of ours as their runtime sees them: listed by label, and removed only when the label is verified."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec

from engine import exits
from engine.errors import AibenchError
from engine.hardware.bounded import Finished, run_bounded
from engine.text import clean
from engine.values import Missing

RUNTIMES = ("podman", "docker", "nerdctl")
RUN_LABEL = "aibench.run"
CALL_LIMIT_S = 10.0
"""A runtime that does not answer within this is not waited for."""

_CLIENT_NAMES = re.compile(
    "PATH|HOME|USER|LOGNAME|LANG|TMPDIR|XDG_(RUNTIME_DIR|CONFIG_HOME|DATA_HOME)|DBUS_SESSION_BUS_ADDRESS|STORAGE_DRIVER"
    "|(CONTAINER|CONTAINERS|CONTAINERD|DOCKER|NERDCTL|PODMAN)_.*"
)


class Container(msgspec.Struct, frozen=True):
    """A container with our label. `expires` is wall time in Unix seconds, `folder` its run folder."""

    runtime: str
    id: str
    name: str
    run: str
    trial: str
    expires: float
    folder: str


def client_environment() -> dict[str, str]:
    """What a runtime's client needs of our environment to find its daemon, its configuration and its store."""
    return {name: value for name, value in os.environ.items() if _CLIENT_NAMES.fullmatch(name)}


def find_runtime(runtime: str) -> str:
    """The absolute path of a runtime's client.

    Raises AibenchError (code 2) where it is not on the PATH.
    """
    found = shutil.which(runtime) if runtime in RUNTIMES else None  # it may come from a journal
    if found is None:
        raise AibenchError(
            f"{runtime} is not installed: it is nowhere on the PATH", "install it or use another environment"
        )
    return str(Path(found).absolute())


def runtime_version(runtime: str) -> str | Missing:
    """What the client says of its version, in a line."""
    try:
        answer = _ask(runtime, "--version")
    except AibenchError as error:
        return Missing(error.what, runtime)
    version = clean(answer.output.strip(), 120)
    return Missing(_complaint(answer), runtime) if answer.ended or not version else version


def list_ours(runtime: str, run: str = "") -> list[Container]:
    """Every container with our label (of one run, or of all), running or not.

    Raises AibenchError (code 4) where the runtime is not there or does not answer.
    """
    label = f"label={RUN_LABEL}={run}" if run else f"label={RUN_LABEL}"
    answer = _ask(runtime, "ps", "--all", "--quiet", "--no-trunc", "--filter", label)
    if answer.ended:
        raise _unanswered(runtime, _complaint(answer))
    found = (_inspect(runtime, name) for name in answer.output.decode(errors="replace").split())
    return [container for container in found if container is not None]


def remove(runtime: str, name: str, run: str) -> bool:
    """End a container of a run at once, whatever it is doing; True once the run has none of that name.

    A container without the run's label is never touched, whatever its name. False where the runtime does not answer
    or cannot end it.
    """
    try:
        for found in _named(runtime, name, run):
            _ask(runtime, "kill", "--signal=KILL", found.id)  # by id: the name may have gone to another one by now
            _ask(runtime, "rm", "--force", found.id)
        return not _named(runtime, name, run)
    except AibenchError:
        return False


def _named(runtime: str, name: str, run: str) -> list[Container]:
    return [container for container in list_ours(runtime, run) if (container.name, container.run) == (name, run)]


def _inspect(runtime: str, name: str) -> Container | None:
    """A container by its id; None where it has gone meanwhile or lacks our label."""
    answer = _ask(runtime, "container", "inspect", name)
    try:
        return _container(runtime, json.loads(answer.output)[0])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _container(runtime: str, facts: Any) -> Container | None:
    labels = facts["Config"]["Labels"] or {}
    if RUN_LABEL not in labels:
        return None
    expires = str(labels.get("aibench.expires", ""))
    return Container(
        runtime=runtime,
        id=str(facts["Id"]),
        name=clean(str(facts["Name"]).lstrip("/"), 200),
        run=clean(str(labels[RUN_LABEL]), 100),
        trial=clean(str(labels.get("aibench.trial", "")), 100),
        expires=float(expires) if expires.isascii() and expires.isdigit() else 0.0,
        folder=clean(str(labels.get("aibench.folder", ""))),
    )


def _ask(runtime: str, *arguments: str) -> Finished:
    try:
        answer = run_bounded([find_runtime(runtime), *arguments], CALL_LIMIT_S, environment=client_environment())
    except OSError as error:
        raise _unanswered(runtime, error.strerror or "it cannot be started") from error
    if answer.cut_off:
        raise _unanswered(runtime, f"`{arguments[0]}`: {answer.ended}")
    return answer


def _complaint(answer: Finished) -> str:
    """Why there is no answer, in the client's own words where it has some."""
    return clean(answer.error_tail.strip(), 200) or answer.ended or "it says nothing"


def _unanswered(runtime: str, why: str) -> AibenchError:
    return AibenchError(f"{runtime} does not answer: {why}", f"check `{runtime} ps`", code=exits.NOT_READY)
