"""`aibench-tui compare`: the arms of a session in pairs, on stdout and as a file that a third party can recompute."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from engine import exits, sessions
from engine.analysis.paired import Comparison, compare_arms
from engine.compare_file import write_comparison
from engine.errors import AibenchError
from engine.session import Session
from engine.values import Missing, Reading
from tui.cli import output
from tui.cli.numbers import figure, readable_unit
from tui.cli.printing import say


def main(arguments: argparse.Namespace) -> int:
    """Compare, and write the file."""
    path = sessions.locate(arguments.session, arguments.folder or sessions.default_folder())
    session = sessions.load(path)
    comparisons = arms_of(session, arguments.reference)
    target = arguments.output or Path(f"{path.resolve().name.removesuffix('.toml')}.compare.toml")
    write_comparison(target, session, path, comparisons)
    if arguments.json:
        output.print_json({"file": str(target), "comparisons": msgspec.to_builtins(comparisons)})
        return exits.DONE
    for line in lines(comparisons):
        say(line)
    say(f"comparison: {target}")
    return exits.DONE


def arms_of(session: Session, reference: str | None = None) -> list[Comparison]:
    """Every other arm of a session against `reference`, by default "bare" or else the first.

    Raises AibenchError (code 2) where there is nothing to compare.
    """
    arms = list(dict.fromkeys(trial.environment for trial in session.trials))
    if len(arms) < 2:
        raise AibenchError(f"session {session.run} has one arm", "run with two, such as --env bare --env podman")
    if reference is not None and reference not in arms:
        raise AibenchError(f"{reference!r} is no arm of session {session.run}", f"there are: {', '.join(arms)}")
    base = reference or ("bare" if "bare" in arms else arms[0])
    found = [each for arm in arms if arm != base for each in compare_arms(session.measurements, base, arm)]
    if not found:
        raise AibenchError(
            f"no pair of session {session.run} is complete", "aibench-tui show says why its trials failed"
        )
    return found


def lines(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """A heading for each pair of arms and variant, a line for each metric, for 80 columns."""
    heading = ""
    yield f"  {'metric':<15} {'reference':>9} {'other':>9} {'unit':<8} {'degradation, + is worse':<27} pairs"
    for each in comparisons:
        now = f"{each.scenario} {each.variant}: {each.other} against {each.reference}"
        if now != heading:
            heading = now
            yield now
        factor, unit = readable_unit(each.reference_median, each.unit)
        values = f"{figure(each.reference_median * factor):>9} {figure(each.other_median * factor):>9} {unit:<8}"
        yield f"  {each.metric:<15} {values} {_effect(each):<27} {each.n:>5}"
    yield from _why(comparisons)


def _effect(each: Comparison) -> str:
    if isinstance(each.low, Missing) or isinstance(each.high, Missing):
        return f"{_signed(each.degradation)} % [no interval]"
    return f"{_signed(each.degradation)} % [{_signed(each.low)}, {_signed(each.high)}]"


def _signed(fraction: float) -> str:
    return f"{100 * fraction:+.2f}"


def _why(comparisons: Sequence[Comparison]) -> Iterator[str]:
    coverages: dict[str, None] = {}
    for each in comparisons:
        coverages.setdefault(_coverage(each.n, each.coverage))
    yield from coverages


def _coverage(n: int, coverage: Reading) -> str:
    if isinstance(coverage, Missing):
        return f"  {coverage.missing}"
    return f"  {n} pairs: the interval holds the median with {100 * coverage:.1f} % (order statistics)"
