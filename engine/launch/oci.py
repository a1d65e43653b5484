"""Trials in containers, by the command line of podman, docker or nerdctl.

Without an image a trial runs in a mirror: the host's own root file system under an overlay (podman's --rootfs /:O),
so that the same software is measured with and without a container. The keeper is PID 1 and holds the container's
stdin (-i): when the client dies, end-of-file ends the container, which would outlive its client otherwise.
"""

from __future__ import annotations

import math
import os
import re
import resource
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from engine.errors import AibenchError
from engine.launch.base import Launch, TrialFiles, keeper_command
from engine.launch.containers import (
    RUN_LABEL,
    Container,
    client_environment,
    find_runtime,
    list_ours,
    remove,
    runtime_version,
)
from engine.launch.environment import RUN_FOLDER, RUN_ID, TOKEN, trial_environment
from engine.launch.mounts import mounted_below_root
from engine.plan import Environment
from engine.values import Missing, Scalar

__all__ = ["Container", "OciLauncher", "list_ours", "remove"]

IMAGE_PYTHON = "python3"
"""The worker's interpreter in an image: the image's own, whatever the host has."""

TIMEOUT_GRACE_S = 30.0
"""How long after the keeper's deadline podman itself ends a container."""

EXPIRY_GRACE_S = 300.0
"""How long after its deadline a container may be swept whoever started it."""

NVIDIA_DRIVER = Path("/usr/local/nvidia")
CDI_SPECS = (Path("/etc/cdi/nvidia.yaml"), Path("/var/run/cdi/nvidia.yaml"))

# What describes the host's files, not how a trial should behave: an image has its own.
_OF_THE_HOST = re.compile(
    "PATH|HOME|USER|LOGNAME|LD_LIBRARY_PATH|PYTHONPATH|VIRTUAL_ENV|CONDA_PREFIX|NVIDIA_.*|CUDA_(HOME|PATH|ROOT|VERSION)"
)


class OciLauncher:
    """Starts a trial's keeper as PID 1 of a container that is gone with it.

    Raises AibenchError (code 2) where the runtime is not installed or cannot mirror the host.
    """

    def __init__(
        self,
        environment: Environment,
        python: str,
        device: str,
        kind: str,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._environment = environment
        self._runtime = environment.kind
        self._command = find_runtime(environment.kind)
        self._python = IMAGE_PYTHON if environment.image else python
        self._device = device
        self._kind = kind
        self._wall_clock = wall_clock
        if not environment.image and self._runtime != "podman":
            what = (
                f"environment {environment.label!r}: {self._runtime} cannot mirror the host's software without an image"
            )
            raise AibenchError(what, 'name an image, or use kind = "podman"')
        if environment.image.startswith("-"):
            raise AibenchError(f"environment {environment.label!r}: {environment.image!r} is no image", "name one")

    def prepare(self, run: str, trial: str, token: str, deadline_s: float, files: TrialFiles) -> Launch:
        """The client's command: everything of the trial in its arguments, but the token, which others must not read."""
        name = f"aibench-{run}-{trial}"
        inside = self._inside(run, trial, token, files)
        argv = [
            self._command, "run", "--interactive", "--rm", "--pull=never", "--log-driver=none", f"--name={name}",
            *self._labels(run, trial, deadline_s, files),
            *self._limits(deadline_s),
            *self._accelerator(),
            *(f"--volume={path}:{path}:{mode}" for path, mode in self._binds(files).items()),
            *(f"--env={name}={value}" for name, value in sorted(inside.items())),
            f"--env={TOKEN}",
            f"--workdir={files.scratch}",
            *self._software(keeper_command(self._python, run, trial, deadline_s, files)),
        ]  # fmt: skip
        marks = {RUN_ID: run, RUN_FOLDER: str(files.run_folder), TOKEN: token}
        return Launch(tuple(argv), client_environment() | marks, files.scratch, handle=name, runtime=self._runtime)

    def describe(self) -> dict[str, Scalar | Missing]:
        """The runtime, where its software comes from, and the limits that the plan sets."""
        limits = {"cpus": f"{self._environment.cpus:g}"} if self._environment.cpus else {}
        limits |= {name: value for name, value in self._text_limits().items() if value}
        return {
            "runtime": runtime_version(self._runtime),
            "software": self._environment.image or "the host's own, under an overlay",
            "network": self._environment.network,
            **{f"limit_{name}": value for name, value in limits.items()},
        }

    def _text_limits(self) -> dict[str, str]:
        environment = self._environment
        return {"memory": environment.memory, "cpuset-cpus": environment.cpuset, "shm-size": environment.shm}

    def _inside(self, run: str, trial: str, token: str, files: TrialFiles) -> dict[str, str]:
        inside = trial_environment(
            os.environ,
            run=run,
            trial=trial,
            token=token,
            device=self._device,
            kind=self._kind,
            run_folder=files.run_folder,
            scratch=files.scratch,
        )
        del inside[TOKEN]
        if self._environment.image:
            return {name: value for name, value in inside.items() if not _OF_THE_HOST.fullmatch(name)}
        return inside

    def _labels(self, run: str, trial: str, deadline_s: float, files: TrialFiles) -> list[str]:
        expires = math.ceil(self._wall_clock() + deadline_s + EXPIRY_GRACE_S)
        labels = {
            RUN_LABEL: run,
            "aibench.trial": trial,
            "aibench.expires": expires,
            "aibench.folder": files.run_folder,
        }
        return [f"--label={name}={value}" for name, value in labels.items()]

    def _limits(self, deadline_s: float) -> Iterator[str]:
        if self._runtime == "podman":
            yield f"--timeout={math.ceil(deadline_s + TIMEOUT_GRACE_S)}"  # by conmon, even with the client dead
        if self._environment.cpus:
            yield f"--cpus={self._environment.cpus:g}"
        for name, value in self._text_limits().items():
            if value:
                yield f"--{name}={value}"
        yield f"--network={self._environment.network}"
        yield from _ulimits()

    def _accelerator(self) -> Iterator[str]:
        if self._kind == "cpu":
            return
        if self._environment.image and self._runtime != "podman":
            yield "--gpus=all"
        elif self._environment.image and any(spec.exists() for spec in CDI_SPECS):
            yield "--device=nvidia.com/gpu=all"
        else:
            for path in _nvidia_devices():
                yield f"--device={path}"

    def _binds(self, files: TrialFiles) -> dict[str, str]:
        """Folder to mode, bound at the same path: what an overlay of / leaves out, the driver, the trial's own."""
        binds = {} if self._environment.image else dict.fromkeys(mounted_below_root(), "ro")
        if self._kind != "cpu" and NVIDIA_DRIVER.is_dir():
            binds[str(NVIDIA_DRIVER)] = "ro"
        own = {str(files.stage): "ro", str(files.spec): "ro", str(files.scratch): "rw"}
        if any(":" in path for path in own):
            raise AibenchError(
                f"a container cannot be given {files.run_folder}: its path has a colon", "set output.folder"
            )
        return binds | own

    def _software(self, command: tuple[str, ...]) -> tuple[str, ...]:
        if self._environment.image:
            return (f"--entrypoint={command[0]}", self._environment.image, *command[1:])
        return ("--security-opt=label=disable", "--rootfs", "/:O", *command)


def _ulimits() -> Iterator[str]:
    """Our own limits, so that both arms have the same; a runtime's defaults may lie above what we may hand on."""
    for name, which in (("nofile", resource.RLIMIT_NOFILE), ("memlock", resource.RLIMIT_MEMLOCK)):
        yield f"--ulimit={name}={':'.join(str(limit) for limit in resource.getrlimit(which))}"
    most = int(Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii"))  # podman lowers its own limit to that
    ours = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = (most if limit == resource.RLIM_INFINITY else min(limit, most) for limit in ours)
    yield f"--ulimit=nproc={':'.join(str(limit) for limit in limits)}"


def _nvidia_devices() -> list[str]:
    """Every device file of the NVIDIA driver; which accelerator is used is said by CUDA_VISIBLE_DEVICES."""
    found = [*Path("/dev").glob("nvidia*"), *Path("/dev").glob("nvidia-caps/*")]
    return sorted(str(path) for path in found if stat.S_ISCHR(path.lstat().st_mode))
