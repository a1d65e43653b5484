"""Which Python runs the workers: the first one here that has the framework and can use the device.

Our own environment never needs a framework, and an operator's is used as it is, never replaced.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from engine import exits
from engine.children import ROOT
from engine.errors import AibenchError
from engine.hardware.bounded import Finished, run_bounded
from engine.text import clean, clean_tree
from engine.variables import worker_environment

INSPECT = ROOT / "engine" / "worker" / "inspect_frameworks.py"
FRAMEWORKS = ("torch", "jax")
PURE = "python"
"""The framework of scenarios that need none: any Python of OLDEST or later will do."""

OLDEST = (3, 10)
FIND_LIMIT_S = 10.0
IMPORT_LIMIT_S = 120.0
"""Importing torch from a cold network file system takes most of a minute."""


class Interpreter(msgspec.Struct, frozen=True):
    """The chosen Python. `versions` are builds by name (python, torch, torch_cuda, jax, numpy ...); `tried` says, in
    order, what was looked at before and why it was not taken."""

    path: str
    framework: str
    versions: dict[str, str]
    tried: tuple[str, ...]


class _Found(msgspec.Struct):
    python: str
    executable: str
    found: dict[str, str]


class _Inspected(msgspec.Struct):
    versions: dict[str, str]
    devices: int
    reason: str


Answer = TypeVar("Answer", _Found, _Inspected)


class _Unfit(Exception):
    """This candidate will not do; the text says why."""


def choose(
    python: str, framework: str, kind: str, *, device: str = "", environment: Mapping[str, str] = os.environ
) -> Interpreter:
    """The interpreter for a framework ("auto", "torch", "jax", "python") on a kind of device ("cpu", "cuda").

    `python` is "auto" or a path or command. Candidates are children with a worker's environment, which see `device`
    (a UUID) alone, so that no other one gets a context, and with a time limit, so that one that hangs or prints garbage
    only costs that. Raises AibenchError (code 2) naming what was tried and how to install or name one.
    """
    search = _Search(kind, worker_environment(environment, device, kind), _of_shims(environment), python == "auto")
    paths = list(candidates(environment)) if python == "auto" else [_named(python, environment)]
    for wanted in FRAMEWORKS if framework == "auto" else (framework,):
        for path in paths:
            try:
                versions = search.versions(path, wanted)
                return Interpreter(search.executable(path), wanted, versions, tuple(search.tried))
            except _Unfit as why:
                search.note(path, str(why))
    raise _none_found(python, framework, kind, search.tried)


def candidates(environment: Mapping[str, str]) -> Iterator[str]:
    """The Pythons of this machine, likeliest first, each once: two virtual environments on one binary are two."""
    active = [environment.get(key, "") for key in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    places = [
        *(os.path.join(prefix, "bin", "python") for prefix in active if prefix),
        shutil.which("python3", path=environment.get("PATH")) or "",
        "/usr/bin/python3",
        sys.executable,
    ]
    seen = set()
    for path in places:
        if path and os.access(path, os.X_OK) and (key := _identity(path)) not in seen:
            seen.add(key)
            yield path


def _identity(path: str) -> tuple[str, str]:
    """The binary and the environment it runs in, which the pyvenv.cfg beside the link as named decides."""
    binary = os.path.realpath(path)
    folder = os.path.dirname(os.path.abspath(path))
    for home in (folder, os.path.dirname(folder)):
        if os.path.exists(os.path.join(home, "pyvenv.cfg")):
            return binary, os.path.realpath(home)
    return binary, ""


def _of_shims(environment: Mapping[str, str]) -> dict[str, str]:
    """What a version manager's shim decides by which Python it is; a worker is run without it, by the Python itself."""
    return {name: value for name, value in environment.items() if name.startswith(("PYENV_", "ASDF_", "MISE_"))}


def _named(python: str, environment: Mapping[str, str]) -> str:
    path = os.path.expanduser(python)
    found = shutil.which(path, path=environment.get("PATH"))
    if found:
        return os.path.abspath(found)
    shown = clean(python, 200)
    why = "is not executable" if os.path.isfile(path) else "is a folder" if os.path.isdir(path) else "is not there"
    raise AibenchError(
        f"the Python {shown!r} {why}", 'give --python the path of an interpreter, or "auto"', code=exits.USAGE
    )


@dataclass
class _Search:
    """One search: what each candidate answered, so that none is asked the same thing twice."""

    kind: str
    environment: dict[str, str]
    of_shims: dict[str, str]
    automatic: bool
    tried: list[str] = field(default_factory=list)
    _found: dict[str, _Found | _Unfit] = field(default_factory=dict)

    def versions(self, path: str, framework: str) -> dict[str, str]:
        """The builds that `framework` would run with, or _Unfit."""
        found = self._find(path)
        versions = {"python": found.python}
        if framework == PURE:
            return versions
        if framework not in found.found:
            absent = [name for name in FRAMEWORKS if name not in found.found]
            raise _Unfit(f"Python {found.python} without {' or '.join(absent)}")
        question = (framework, self.kind)
        inspected = self._ask(self.executable(path), IMPORT_LIMIT_S, _Inspected, question, self.environment)
        if inspected.devices < 1:
            raise _Unfit(inspected.reason or f"{framework} sees no device of kind {self.kind}")
        return versions | inspected.versions

    def executable(self, path: str) -> str:
        """The binary behind a candidate that may be a shim, whose answer depends on folder and environment.

        One that the operator named is run as it was named.
        """
        if not self.automatic:
            return path
        executable = self._find(path).executable
        return executable if os.access(executable, os.X_OK) else path

    def note(self, path: str, why: str) -> None:
        """Remembers why a candidate was passed over, once for each reason."""
        line = clean(f"{path} ({why})", 400)
        if line not in self.tried:
            self.tried.append(line)

    def _find(self, path: str) -> _Found:
        if path not in self._found:
            try:
                self._found[path] = self._look(path)
            except _Unfit as why:
                self._found[path] = why
        answer = self._found[path]
        if isinstance(answer, _Unfit):
            raise answer
        return answer

    def _look(self, path: str) -> _Found:
        environment = self.environment | (self.of_shims if self.automatic else {})
        found = self._ask(path, FIND_LIMIT_S, _Found, ("find",), environment)
        if _version(found.python) < OLDEST:
            raise _Unfit(f"Python {found.python} is older than {'.'.join(map(str, OLDEST))}")
        return found

    @staticmethod
    def _ask(
        path: str, limit_s: float, form: type[Answer], question: tuple[str, ...], environment: dict[str, str]
    ) -> Answer:
        try:
            finished = run_bounded([path, str(INSPECT), *question], limit_s, environment=environment)
        except OSError as error:
            raise _Unfit(f"it cannot be started: {error.strerror}") from error
        last = finished.output.strip().split(b"\n")[-1]
        try:
            return msgspec.convert(clean_tree(msgspec.json.decode(last), 300), form)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise _Unfit(_no_answer(finished, question)) from None


def _no_answer(finished: Finished, question: tuple[str, ...]) -> str:
    doing = "looking for frameworks" if question == ("find",) else f"importing {question[0]}"
    said = clean(finished.error_tail.strip().split(b"\n")[-1], 120)
    ended = finished.ended or "an answer that is not a Python's"
    return f"{doing}: {ended}{': ' if said else ''}{said}"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _none_found(python: str, framework: str, kind: str, tried: list[str]) -> AibenchError:
    wanted = " or ".join(FRAMEWORKS) if framework == "auto" else framework
    device = "an NVIDIA GPU" if kind == "cuda" else "the CPU"
    which = "no Python here" if python == "auto" else f"the Python {clean(python, 200)!r} does not"
    need = f"has {wanted} for {device}" if python == "auto" else f"have {wanted} for {device}"
    package = "torch" if framework == "auto" else framework
    do = f"name one that does with --python PATH, or install it: pip install {package}"
    return AibenchError(f"{which} {need}; tried {', '.join(tried) or 'none: there is no Python'}", do, code=exits.USAGE)
