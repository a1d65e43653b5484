"""A session as text for 80 columns: the figures of each arm, the conditions they were measured under, and the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from statistics import fmean, median

from engine.events import TelemetrySummary
from engine.session import Measurement, Session, Trial
from engine.telemetry.samples import HOST
from engine.values import Missing, Reading
from tui.cli.numbers import figure, percent, readable_unit, span
from tui.cli.printing import say
from tui.cli.progress import short_device

HEADER = f"  {'metric':<15} {'arm':<9} {'median':>8} {'unit':<8} {'best':>8} {'p95':>8} {'cv':>7} {'n':>8}"
LEAST_SHARE = 0.005
"""A limit that held for less of the window than this is not worth a word."""


def print_session(session: Session) -> None:
    """Everything that a person asks first: what, on what, how it ended, the figures, and what has none and why."""
    devices = ", ".join(f"{device.name} ({short_device(device.device)})" for device in session.devices)
    say(f"{session.name} · {session.started} · {devices}")
    say(f"outcome: {session.outcome}" + (f" · {session.reason}" if session.reason else ""))
    if session.measurements:
        say("")
        say(HEADER)
    for line in figures(session):
        say(line)
    say("")
    for line in rest(session.trials):
        say(line)
    for notice in session.notices:
        say(f"note: {notice}")


def figures(session: Session) -> Iterator[str]:
    """A heading for each variant on each device, a line for each metric of each arm, and its conditions."""
    several = len(session.devices) > 1
    for (scenario, variant, device), group in groupby(sorted(session.measurements, key=_subject), key=_subject):
        yield f"{scenario} {variant}" + (f" · {short_device(device)}" if several else "")
        arms: dict[str, list[Measurement]] = {}
        for each in group:
            arms.setdefault(each.environment, []).append(each)
        for arm, measured in arms.items():
            yield from _arm(arm, measured)


def _subject(each: Measurement) -> tuple[str, str, str]:
    return (each.scenario, each.variant, each.device)


def _arm(arm: str, measured: Sequence[Measurement]) -> Iterator[str]:
    by_metric: dict[str, list[Measurement]] = {}
    for each in measured:
        by_metric.setdefault(each.metric, []).append(each)
    for trials in by_metric.values():
        yield _line(arm, trials)
        yield from _between(trials)
    first = next(iter(by_metric.values()))
    yield from _unsteady(measured)
    if told := conditions(first):
        yield f"    {told}"


def _line(arm: str, trials: Sequence[Measurement]) -> str:
    """One metric of one arm; of several trials, the median of their medians and the best of their bests."""
    first = trials[0]
    middle = median(each.median for each in trials)
    factor, unit = readable_unit(middle, first.unit)
    best = (max if first.better == "higher" else min)(each.best for each in trials)
    count = f"{len(trials)}x{first.n}" if len(trials) > 1 else str(first.n)
    return (
        f"  {first.metric:<15} {_cut(arm, 9):<9} {figure(middle * factor):>8} {unit:<8} {figure(best * factor):>8}"
        f" {figure(_middle((each.p95 for each in trials), factor)):>8}"
        f" {percent(_middle(each.cv for each in trials)):>7} {count:>8}"
    )


def _between(trials: Sequence[Measurement]) -> Iterator[str]:
    if len(trials) > 1:
        low, *_, high = sorted(each.median for each in trials)
        factor, unit = readable_unit(low, trials[0].unit)
        apart = percent((high - low) / low) if low else "n/a"
        yield f"    medians of the trials: {figure(low * factor)} to {figure(high * factor)} {unit} ({apart})"


def _unsteady(measured: Sequence[Measurement]) -> Iterator[str]:
    loose = [each for each in measured if each.steady != "yes"]
    if loose:
        many = f" in {len(loose)} of {len(measured)}" if len(measured) > 1 else ""
        yield f"    {loose[0].steady}{many}"


def _middle(values: Iterable[Reading], factor: float = 1.0) -> Reading:
    """The median of what there is; a value that is missing in one trial is missing."""
    known: list[float] = []
    for value in values:
        if isinstance(value, Missing):
            return value
        known.append(value * factor)
    return median(known)


def conditions(trials: Sequence[Measurement]) -> str:
    """Power, clock, temperature and limits of the device and the load of the host, over the trials' windows."""
    device = trials[0].device
    parts = [
        _mean(trials, device, "power_w", "{} W"),
        _mean(trials, device, "sm_clock_mhz", "SM {} MHz"),
        _mean(trials, device, "temperature_c", "{} °C"),
        *_limits(trials, device),
        _mean(trials, HOST, "cpu_utilisation_percent", "host CPU {} %"),
        _mean(trials, HOST, "cpu_temperature_c", "host {} °C"),
    ]
    return " · ".join(part for part in parts if part)


def _mean(trials: Sequence[Measurement], device: str, quantity: str, form: str) -> str:
    means = [summary.mean for each in trials if (summary := _summary(each, device, quantity)) is not None]
    return form.format(f"{fmean(means):.0f}") if means else ""


def _limits(trials: Sequence[Measurement], device: str) -> Iterator[str]:
    """Reasons for a lower clock that the device named, each with its share of the window."""
    names = sorted({name for each in trials for name in each.telemetry.get(device, {}) if name.startswith("limit_")})
    for name in names:
        shares = [summary.mean for each in trials if (summary := _summary(each, device, name)) is not None]
        if shares and fmean(shares) >= LEAST_SHARE and name != "limit_gpu_idle":
            yield f"{name.removeprefix('limit_').replace('_', ' ')} {100 * fmean(shares):.0f} %"


def _summary(each: Measurement, device: str, quantity: str) -> TelemetrySummary | None:
    found = each.telemetry.get(device, {}).get(quantity)
    return found if isinstance(found, TelemetrySummary) else None


def rest(trials: Sequence[Trial]) -> Iterator[str]:
    """Trials without figures, those that ended for the same reason together."""
    without = [trial for trial in trials if trial.outcome != "completed"]
    for (outcome, reason), group in groupby(without, key=lambda trial: (trial.outcome, trial.reason)):
        same = list(group)
        yield f"{outcome}: {_which(same)}" + (f": {reason}" if reason else "")


def _which(trials: Sequence[Trial]) -> str:
    first = trials[0]
    if len(trials) > 1:
        return f"{len(trials)} trials, {first.trial} to {trials[-1].trial}"
    took = f" ({span(first.seconds)})" if isinstance(first.seconds, float) else ""
    return f"{first.trial} {first.scenario} {first.variant} · {first.environment}{took}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
