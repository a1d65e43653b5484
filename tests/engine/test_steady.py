from __future__ import annotations

import random
from itertools import accumulate

import pytest

from engine.analysis.steady import Steady, change_points, steady_segment


def noisy(rng: random.Random, n: int, level: float = 1e-3, sigma: float = 0.005) -> list[float]:
    return [level * rng.gauss(1, sigma) for _ in range(n)]


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)


def test_change_points_by_hand() -> None:
    assert change_points([1.0] * 10 + [2.0] * 10 + [1.0] * 10) == [0, 10, 20]
    assert change_points([1.0] * 30) == [0]


@pytest.mark.parametrize("n", [8, 59, 60, 500, 501, 100_000])
def test_level_durations_are_steady_from_the_start(rng: random.Random, n: int) -> None:
    assert steady_segment(noisy(rng, n, sigma=0.001)) == Steady(0, "")


@pytest.mark.parametrize("scale", [1, 10, 200])
def test_a_slow_start_is_cut_off(rng: random.Random, scale: int) -> None:
    steady = steady_segment(noisy(rng, 100 * scale, 1.5e-3) + noisy(rng, 400 * scale))
    assert steady.why == ""
    assert steady.begin == pytest.approx(100 * scale, abs=5 * scale)


def test_a_start_that_settles_in_steps_is_cut_off_at_the_last(rng: random.Random) -> None:
    steady = steady_segment(noisy(rng, 300, 1.5e-3) + noisy(rng, 300, 1.2e-3) + noisy(rng, 3000))
    assert steady.why == ""
    assert steady.begin == pytest.approx(600, abs=20)


def test_an_exponential_warm_up(rng: random.Random) -> None:
    values = [value * (1 + 2 * 2.718 ** (-number / 50)) for number, value in enumerate(noisy(rng, 2000))]
    steady = steady_segment(values)
    assert steady.why == ""
    assert 100 < steady.begin < 600


def test_single_outliers_are_no_change(rng: random.Random) -> None:
    values = [value * (20 if number % 97 == 50 else 1) for number, value in enumerate(noisy(rng, 3000))]
    assert steady_segment(values) == Steady(0, "")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("few", "7 durations are too few to tell"),
        ("late change", "are on one level"),
        ("spread", "the spread is"),
        ("walk", "are on one level"),
        ("zeros", "the durations are zero"),
    ],
)
def test_without_a_steady_state_everything_is_kept_and_the_reason_said(
    rng: random.Random, kind: str, words: str
) -> None:
    values = {
        "few": noisy(rng, 7),
        "late change": noisy(rng, 700) + noisy(rng, 300, 2e-3),
        "spread": noisy(rng, 2000, sigma=0.2),
        "walk": [1e-3 * (1 + step) for step in accumulate(rng.gauss(0, 0.001) for _ in range(3000))],
        "zeros": [0.0] * 100,
    }[kind]
    steady = steady_segment(values)
    assert steady.begin == 0
    assert steady.why.startswith("no steady state: ")
    assert words in steady.why


def test_a_slow_drift_is_not_steady(rng: random.Random) -> None:
    values = [value * (1 + 0.015 * number / 400) for number, value in enumerate(noisy(rng, 400, sigma=0.01))]
    assert steady_segment(values).why != ""


@pytest.mark.parametrize("values", [[1e-3] * 500, [1e-3, 1.001e-3] * 2500])
def test_a_coarse_clock_makes_no_changes(values: list[float]) -> None:
    assert steady_segment(values) == Steady(0, "")
