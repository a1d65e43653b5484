"""The trial's spec as the runner wrote it: one JSON object, in a file or as the first line of stdin."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, get_args

from engine.worker.card import Frameworks, Value
from engine.worker.work import ProtocolError

MAX_BYTES = 1 << 20
_SCENARIO_ID = re.compile(r"[a-z0-9_]+/[a-z0-9_]+")


@dataclass(frozen=True)
class Spec:
    """What one worker does. `counts` are iterations per metric; empty means that `seconds` calibrates them."""

    token: str
    run: str
    trial: str
    scenario: str
    parameters: dict[str, Value]
    framework: Frameworks
    device_kind: str
    device_index: int
    seed: int
    seconds: float
    counts: dict[str, int]


def _field(tree: dict[str, Any], key: str, kind: type | tuple[type, ...]) -> Any:
    value = tree.get(key)
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    raise ProtocolError(f"the trial's spec has no usable {key!r}: {value!r}")


def _counts(tree: dict[str, Any]) -> dict[str, int]:
    counts: dict[str, Any] = _field(tree, "counts", dict)
    for metric, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ProtocolError(f"the trial's spec has a bad count for {metric!r}: {count!r}")
    return counts


def _seconds(tree: dict[str, Any]) -> float:
    seconds = float(_field(tree, "seconds", (int, float)))
    if not math.isfinite(seconds) or seconds <= 0:
        raise ProtocolError(f"the trial's spec has bad 'seconds': {seconds!r}")
    return seconds


def _one_of(tree: dict[str, Any], key: str, allowed: tuple[str, ...]) -> Any:
    value = _field(tree, key, str)
    if value not in allowed:
        raise ProtocolError(f"the trial's spec has {key} {value!r}; allowed: {', '.join(allowed)}")
    return value


def parse(text: str | bytes) -> Spec:
    """The spec in a JSON text. Raises ProtocolError naming the key that is missing or wrong."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the trial's spec is not JSON: {error}") from None
    if not isinstance(tree, dict):
        raise ProtocolError("the trial's spec is not a JSON object")
    scenario = _field(tree, "scenario", str)
    if not _SCENARIO_ID.fullmatch(scenario):
        raise ProtocolError(f"the trial's spec names no scenario id: {scenario!r}")
    device = _field(tree, "device", dict)
    return Spec(
        token=_field(tree, "token", str),
        run=_field(tree, "run", str),
        trial=_field(tree, "trial", str),
        scenario=scenario,
        parameters=_field(tree, "parameters", dict),
        framework=_one_of(tree, "framework", get_args(Frameworks)),
        device_kind=_one_of(device, "kind", ("cpu", "cuda")),
        device_index=_field(device, "index", int),
        seed=_field(tree, "seed", int),
        seconds=_seconds(tree),
        counts=_counts(tree),
    )
