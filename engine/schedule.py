"""Which trials a plan gives, on which devices, and in which order; and the command line's forms of devices and arms.

The order. A round of the schedule visits every variant, and within it every device, so that a drift of the node
spreads over all of them. With one environment a visit is one trial: repeat r of everything comes after all of
repeat r - 1. With k >= 2 environments a visit is a block of two pairs: the environments in a random order, then in
the reverse of it (for two: ABBA or BAAB), so that within a block each has the same mean place in time. With an odd
`repeat` the last block is one pair, and is not balanced.

The random order can be recomputed from the plan without this program. For block b, counted from 1, of a scenario (full
id), variant and device, the environments stand in ascending order of the hexadecimal SHA-256 of the UTF-8 text

    seed, scenario, variant, device, b, environment      (joined by single newlines, numbers in decimal)

so every (variant, device) has coins of its own. The method, pairs of fresh processes in randomised blocks, is the
counterbalanced crossover of clinical trials; it cancels a linear drift within each block exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from engine.errors import AibenchError
from engine.plan import Environment, Plan, PlannedTrial
from engine.plan_file import check_environment, check_trial_count, refuse_unsafe, to_plan
from engine.registry import Find, find, plan_variants
from engine.schema import convert_table, nearest, refusal, shown
from engine.session import Device
from engine.worker.card import Card, Variant

Point = tuple[Card, Variant, Device]
"""What is repeated: one variant on one device."""


def expand(
    plan: Plan, devices: Sequence[Device], frameworks: Mapping[str, str] | str, *, find: Find = find
) -> tuple[PlannedTrial, ...]:
    """Every trial of a plan, in the order in which they run; ids count in that order.

    `frameworks`: one for all devices, or one per device's UUID; a scenario without a framework gets "python". Raises
    AibenchError (code 2) as `check_plan` does, for the kinds of these devices.
    """
    points = _points(plan, devices, find)
    check_trial_count(len(points) * len(plan.environments) * plan.repetition.repeat, "plan")
    chosen = {device.device: _framework(frameworks, device) for device in devices}
    trials = [
        _trial(point, environment, pair, slot, chosen)
        for point, environment, pair, slot in _order(plan, points)
    ]  # fmt: skip
    width = max(4, len(str(len(trials))))
    return tuple(msgspec.structs.replace(trial, trial=f"t{n:0{width}d}") for n, trial in enumerate(trials, 1))


def _points(plan: Plan, devices: Sequence[Device], find: Find) -> list[Point]:
    """Every variant on every device whose kind has it, the devices of a variant side by side."""
    kinds = dict.fromkeys(device.kind for device in devices)
    by_kind = {kind: plan_variants(plan.scenarios, kind, find=find) for kind in kinds}
    places: dict[tuple[str, str], list[Point]] = {}
    for device in devices:
        for card, variant in by_kind[device.kind]:
            places.setdefault((card.id, variant.name), []).append((card, variant, device))
    return [point for points in places.values() for point in points]


def _framework(frameworks: Mapping[str, str] | str, device: Device) -> str:
    return frameworks if isinstance(frameworks, str) else frameworks[device.device]


def _order(plan: Plan, points: Sequence[Point]) -> Iterator[tuple[Point, str, int, int]]:
    """Every point in every environment as often as the plan says: the point, environment, pair and slot, from 1."""
    labels = [environment.label for environment in plan.environments]
    repeat = plan.repetition.repeat
    per_block = 1 if len(labels) == 1 else 2
    for first in range(1, repeat + 1, per_block):
        for point in points:
            order = block_order(plan.repetition.seed, point, (first - 1) // per_block + 1, labels)
            for pair in range(first, min(first + per_block, repeat + 1)):
                arms = order if pair == first else order[::-1]
                for slot, label in enumerate(arms, 1):
                    yield point, label, pair, slot


def block_order(seed: int, point: Point, block: int, labels: Sequence[str]) -> list[str]:
    """The environments of a block's first pair in order (see the module's text); its second pair is the reverse."""
    card, variant, device = point

    def key(label: str) -> str:
        text = "\n".join((str(seed), card.id, variant.name, device.device, str(block), label))
        return hashlib.sha256(text.encode()).hexdigest()

    return sorted(labels, key=key)


def _trial(point: Point, environment: str, pair: int, slot: int, frameworks: Mapping[str, str]) -> PlannedTrial:
    card, variant, device = point
    return PlannedTrial(
        trial="",
        scenario=card.id,
        variant=variant.name,
        parameters=dict(variant.parameters),
        environment=environment,
        device=device.device,
        framework="python" if card.frameworks == ("python",) else frameworks[device.device],
        repeat=pair,
        pair=pair,
        slot=slot,
    )


def resolve_devices(wanted: Sequence[str], present: Sequence[Device]) -> tuple[Device, ...]:
    """The devices that a plan's `devices` mean here, each once, in the order given.

    "auto" is every accelerator, else the CPU; a number is an index, anything else "cpu" or a UUID. Raises AibenchError
    (code 2) that names the devices there are.
    """
    found: dict[str, Device] = {}
    for name in wanted:
        for device in _named(name, present):
            found.setdefault(device.device, device)
    return tuple(found.values())


def _named(name: str, present: Sequence[Device]) -> list[Device]:
    if name == "auto":
        accelerators = [device for device in present if device.kind != "cpu"]
        return accelerators or _named("cpu", present)
    matches = [device for device in present if name == device.device or name == _index(device)]
    if not matches:
        raise _not_there(name, present)
    return matches[:1]


def _index(device: Device) -> str | None:
    return str(device.index) if device.index >= 0 else None


def _not_there(name: str, present: Sequence[Device]) -> AibenchError:
    there = ", ".join(_described(device) for device in present) or "none"
    close = nearest(name, [device.device for device in present])
    return refusal("device", "", f"{shown(name)} is not there", f"{close}there are: {there}")


def _described(device: Device) -> str:
    return device.device if device.index < 0 else f"{device.index} ({device.name})"


def estimate_s(plan: Plan, trials: Sequence[PlannedTrial], *, find: Find = find) -> float:
    """About how long the trials take, in seconds.

    Each takes what its card says, the measured time, and half of that (10 s at most) to warm up.
    """
    own = {name: find(name).CARD.seconds for name in {trial.scenario for trial in trials}}
    budget_s = plan.repetition.seconds + min(plan.repetition.seconds / 2, 10.0)
    return sum(own[trial.scenario] + budget_s for trial in trials)


def parse_devices(text: str) -> tuple[str, ...]:
    """The `devices` of a plan from "auto", "cpu", "0,1" or UUIDs, each named once.

    Raises AibenchError (code 2).
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise refusal("--devices", "", f"{shown(text)} names no device", "such as --devices 0,1 or cpu or auto")
    data = {"target": {"devices": names}}
    return to_plan(data, what="--devices").target.devices


def parse_environment(text: str) -> Environment:
    """One `[[environment]]` from its short form, such as "podman,cpus=0.5,memory=2g,name=half".

    A part without "=" after `cpuset` belongs to it, so that "cpuset=0-3,8" reads as it looks. Raises AibenchError
    (code 2).
    """
    what = f"--env {text}"
    kind, *parts = text.split(",")
    data: dict[str, Any] = {"kind": kind.strip()}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals and "cpuset" in data and next(reversed(data)) == "cpuset":
            data["cpuset"] += f",{part.strip()}"
        elif not equals:
            raise refusal(what, "", f"{shown(part)} is no key=value", "such as podman,cpus=0.5,memory=2g,name=half")
        elif key.strip() in data:
            raise refusal(what, "", f"{shown(key.strip())} is given twice", "name each key once")
        else:
            data[key.strip()] = _number(value.strip()) if key.strip() == "cpus" else value.strip()
    refuse_unsafe(data, what)
    environment = convert_table(data, Environment, what=what)
    check_environment(environment, what)
    return environment


def _number(text: str) -> float | str:
    """A number where the text is one; else the text, for the type check to refuse."""
    try:
        return float(text)
    except ValueError:
        return text
