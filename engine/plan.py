"""The plan: everything a run will do, as one TOML file that a person can edit. The screen edits nothing else.

Ranges, forms and one-line meanings stand with the fields (msgspec.Meta): the loader, its error messages, the template
of `plan init` and the JSON Schema all read them there.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine.values import Scalar

SCHEMA = 1

_PLAN_NAME = Meta(
    pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    description="part of the run folder's name",
    extra={"form": "1 to 64 of A-Z a-z 0-9 . _ -, with a letter or digit first"},
)
_LABEL = Meta(max_length=64, description="the arm's name in every table; empty: its kind")
_IMAGE = Meta(
    pattern=r"^([A-Za-z0-9][A-Za-z0-9._/:@+-]{0,511})?$",
    description="container image; empty: the host's own software",
    extra={"form": "an image reference such as docker.io/library/debian:12"},
)
_MEMORY = Meta(
    pattern=r"^([1-9][0-9]{0,14}[bkmg]?)?$",
    description="memory limit; empty: none",
    extra={"form": "a whole number of bytes, or one with b, k, m or g, such as 2g or 512m"},
)
_SHM = Meta(
    pattern=r"^([1-9][0-9]{0,14}[bkmg]?)?$",
    description="size of /dev/shm; empty: the runtime's default",
    extra={"form": "a whole number of bytes, or one with b, k, m or g, such as 2g or 512m"},
)
_CPUSET = Meta(
    pattern=r"^([0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?){0,255})?$",
    description="the CPUs a trial may use; empty: all",
    extra={"form": "CPU numbers and ranges such as 0-3,8"},
)
_DEVICE = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9:._/-]{0,127}$",
        extra={"form": "auto, cpu, an index, or a UUID"},
    ),
]

Parameter = Scalar | Annotated[list[Scalar], Meta(min_length=1, max_length=64)]
"""A scenario parameter: one value, or a list of up to 64 that gives one variant each."""


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is measured and by which interpreter.

    `devices`: "auto" (every accelerator, else the CPU), "cpu", or a device's UUID; an index is taken too, and means
    whatever has that number when the run starts. `framework`: "auto" takes the first of torch and jax that an
    interpreter offers with the device. `python`: "auto" or the worker's interpreter.
    """

    devices: Annotated[
        tuple[_DEVICE, ...],
        Meta(min_length=1, max_length=256, description="auto (every accelerator, else the CPU), cpu, or UUIDs"),
    ] = ("auto",)
    framework: Annotated[
        Literal["auto", "torch", "jax"], Meta(description="auto, torch or jax; auto: the first one found")
    ] = "auto"
    python: Annotated[
        str, Meta(min_length=1, max_length=4096, description="auto, or the path of the interpreter that has it")
    ] = "auto"


class Environment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where trials run: one arm of a comparison. Empty and zero mean "not limited"."""

    kind: Annotated[
        Literal["bare", "podman", "docker", "nerdctl"], Meta(description="bare, podman, docker or nerdctl")
    ] = "bare"
    name: Annotated[str, _LABEL] = ""
    image: Annotated[str, _IMAGE] = ""
    cpus: Annotated[float, Meta(ge=0, le=4096, description="CPUs' worth of time, such as 0.5; 0: no limit")] = 0.0
    memory: Annotated[str, _MEMORY] = ""
    cpuset: Annotated[str, _CPUSET] = ""
    shm: Annotated[str, _SHM] = ""
    network: Annotated[Literal["host", "none"], Meta(description="host or none")] = "host"

    @property
    def label(self) -> str:
        """The arm's name in every table."""
        return self.name or self.kind


class ScenarioChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scenario by its full id or its last part, with the parameters that differ from its card's defaults."""

    id: Annotated[str, Meta(min_length=1, max_length=128, description="folder/name, or the name alone")]
    parameters: Annotated[dict[str, Parameter], Meta(max_length=64)] = {}


class Repetition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often and how long. `seconds` only calibrates: the count of work found with it is the same in all arms."""

    repeat: Annotated[int, Meta(ge=1, le=1000, description="trials of each variant on each device, per arm")] = 1
    seconds: Annotated[float, Meta(gt=0, le=3600, description="measured time that the count of work aims at")] = 2.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="fixes the order of the arms and all random inputs")] = 0
    trial_timeout_s: Annotated[float, Meta(gt=0, le=86_400, description="ends a trial that hangs")] = 300.0


class Output(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the session goes ("" is the user's own data folder) and whether stdout carries one JSON document."""

    folder: Annotated[str, Meta(max_length=4096, description="where run folders go; empty: your data folder")] = ""
    json: Annotated[bool, Meta(description="print one JSON document and nothing else")] = False


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run, complete. `hard_end_s` ends it whatever happens; `on_owner_exit` says what a lost owner means."""

    schema: Annotated[int, Meta(ge=1, le=SCHEMA, description="version of this format")] = SCHEMA
    name: Annotated[str, _PLAN_NAME] = "plan"
    target: Target = Target()
    environments: Annotated[tuple[Environment, ...], Meta(min_length=1, max_length=16)] = msgspec.field(
        name="environment", default=(Environment(),)
    )
    scenarios: Annotated[tuple[ScenarioChoice, ...], Meta(max_length=64)] = msgspec.field(name="scenario", default=())
    repetition: Repetition = Repetition()
    output: Output = Output()
    on_owner_exit: Annotated[
        Literal["stop", "continue"], Meta(description="stop or continue when the command that started it goes away")
    ] = "stop"
    hard_end_s: Annotated[float, Meta(gt=0, le=2_592_000, description="ends the run whatever happens")] = 86_400.0


class PlannedTrial(msgspec.Struct, frozen=True):
    """One trial of the schedule: one variant, on one device, in one environment, by one fresh process.

    `pair` numbers the repeats of one (scenario, variant, device) from 1; `slot` is the trial's place in its pair, so
    that the order (randomised ABBA/BAAB) can be recomputed from a session.
    """

    trial: str
    scenario: str
    variant: str
    parameters: dict[str, Parameter]
    environment: str
    device: str
    framework: str
    repeat: int
    pair: int
    slot: int
