"""One trial from its spec to its result: import, prepare, measure, check, report."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Mapping
from typing import Any, Protocol, cast

from engine.worker.adapters.base import Adapter, open_adapter
from engine.worker.card import BadParameter, Card, Scalar, Value
from engine.worker.protocol import LineReader, Wire
from engine.worker.spec import MAX_BYTES, Spec, parse
from engine.worker.timing import Measured, measure
from engine.worker.work import OutOfMemory, ProtocolError, Unsupported, Work, WorkerError

_FACT_CHARS = 200


class Scenario(Protocol):
    """What the worker needs of a scenario's module."""

    @property
    def CARD(self) -> Card:  # noqa: N802 - the module's constant
        """What it measures."""

    def prepare(self, parameters: Mapping[str, Value], adapter: Adapter, seed: int) -> Work:
        """Allocate and compile one variant. Raises WorkerError and BadParameter."""


def read_spec(source: str, reader: LineReader) -> Spec:
    """The spec in the file `source`, or in the first line from the runner when it is "-". Raises ProtocolError."""
    if source == "-":
        return parse(reader.line())
    try:
        with open(source, "rb") as file:
            return parse(file.read(MAX_BYTES))
    except OSError as error:
        raise ProtocolError(f"cannot read the trial's spec: {error}") from error


def run_trial(source: str, reading: int, writing: int) -> int:
    """Run the trial that `source` specifies over these two file descriptors; returns the exit code."""
    reader = LineReader(reading)
    try:
        spec = read_spec(source, reader)
    except WorkerError as error:
        # Without a spec there is no token for a protocol line: these are last words in the log.
        print(error, file=sys.stderr)
        return 1
    wire = Wire(writing, spec.token)
    try:
        wire.greet(reader)
        _work(spec, wire)
    except WorkerError as error:
        wire.failure(error.cause, str(error))
        return 1
    except Exception as error:
        traceback.print_exc()
        wire.failure("error", _named(error))
        return 1
    wire.bye()
    return 0


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _work(spec: Spec, wire: Wire) -> None:
    wire.phase("import")
    adapter = open_adapter(spec)
    try:
        _measure_and_check(spec, adapter, wire)
    except BadParameter as error:
        raise WorkerError(str(error)) from error
    except Exception as error:
        if adapter.ran_out_of_memory(error):
            raise OutOfMemory(f"memory ran out: {_named(error)}") from error
        raise


def load(scenario_id: str) -> Scenario:
    """The scenario with this full id ("compute/gemm"). Raises WorkerError when there is none."""
    name = "scenarios." + scenario_id.replace("/", ".")
    try:
        return cast(Scenario, importlib.import_module(name))
    except ModuleNotFoundError as error:
        raise WorkerError(f"scenario {scenario_id!r} cannot be imported: {error}") from error


def _measure_and_check(spec: Spec, adapter: Adapter, wire: Wire) -> None:
    scenario = load(spec.scenario)
    card = scenario.CARD
    if spec.framework not in card.frameworks:
        raise Unsupported(f"not supported by framework: {card.id} has no {spec.framework} body")
    wire.phase("setup")
    work = scenario.prepare(spec.parameters, adapter, spec.seed)
    budget_s = min(spec.seconds, work.max_seconds)
    measured = measure(work.kernels, adapter, budget_s, spec.counts, wire.phase)
    for kernel, durations_s in zip(work.kernels, measured.durations_s, strict=True):
        wire.iterations(kernel.metric, measured.group, durations_s)
    facts = {**adapter.facts(), **work.facts, **work.check(adapter.rounds)}
    wire.send("result", metrics=metric_results(card, work, adapter.timer, measured), facts=shortened(facts))


def metric_results(card: Card, work: Work, timer: str, measured: Measured) -> list[dict[str, Any]]:
    """The result's metrics, from the card and the work of one iteration of each kernel."""
    metrics = {metric.name: metric for metric in card.metrics}
    return [
        {
            "metric": kernel.metric,
            "unit": metrics[kernel.metric].unit,
            "better": metrics[kernel.metric].better,
            "work": kernel.work,
            "work_unit": metrics[kernel.metric].work_unit,
            "scale": metrics[kernel.metric].scale,
            "count": measured.count,
            "timer": timer,
        }
        for kernel in work.kernels
    ]


def shortened(facts: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Facts with long texts cut, so that a result fits in one protocol line."""
    return {key: value[:_FACT_CHARS] if isinstance(value, str) else value for key, value in facts.items()}
