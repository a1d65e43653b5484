"""Figures as people read them."""

from __future__ import annotations

import pytest

from engine.values import Missing
from tui.cli.numbers import figure, percent, readable_unit, span


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.070123, "0.07012"),
        (1.0, "1.000"),
        (9.9999, "10.000"),
        (698.24, "698.2"),
        (4322.7, "4 323"),
        (1234567.0, "1 234 567"),
        (-3.25, "-3.250"),
        (1.8e-8, "1.800e-08"),
        (12345678.0, "1.235e+07"),
        (Missing("no"), "n/a"),
    ],
)
def test_figure(value: float | Missing, text: str) -> None:
    assert figure(value) == text


def test_seconds_get_a_readable_unit_and_rates_keep_theirs() -> None:
    factor, unit = readable_unit(1.8e-8, "s")
    assert (round(factor), unit) == (10**9, "ns")
    factor, unit = readable_unit(0.25, "s")
    assert (round(factor), unit) == (1000, "ms")
    assert readable_unit(3.0, "s") == (1.0, "s")
    assert readable_unit(0.5, "TFLOP/s") == (1.0, "TFLOP/s")


def test_percent_and_span() -> None:
    assert percent(0.0123) == "1.2 %"
    assert percent(Missing("one sample")) == "n/a"
    assert [span(each) for each in (0.42, 42.0, 142.0, 7200.0)] == ["0.4 s", "42 s", "2 min 22 s", "2.0 h"]
    assert span(Missing("it did not run")) == "n/a"
