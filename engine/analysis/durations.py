"""The durations of one metric, in order, each with the number of iterations it is the mean of, in bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

MAX_KEPT = 131_072
"""Above this, neighbours are averaged in pairs. A worker groups above 100 000 already, so honest ones never are."""

MAX_WEIGHT = 2**62


class Durations:
    """Durations in seconds and their weights (iterations). Append-only until released."""

    def __init__(self) -> None:
        self.seconds = array("d")
        self.weights = array("q")

    def add(self, durations_s: Sequence[float], group: int) -> None:
        """Take in durations that are each the mean of `group` consecutive iterations."""
        self.seconds.extend(durations_s)
        self.weights.extend([min(max(group, 1), MAX_WEIGHT)] * len(durations_s))
        while len(self.seconds) > MAX_KEPT:
            self._halve()

    @property
    def n(self) -> int:
        """The number of iterations."""
        return sum(self.weights)

    def _halve(self) -> None:
        seconds, weights = self.seconds, self.weights
        pairs = range(0, len(seconds) - 1, 2)
        means = array("d", (_mean(seconds[i], weights[i], seconds[i + 1], weights[i + 1]) for i in pairs))
        sums = array("q", (min(weights[i] + weights[i + 1], MAX_WEIGHT) for i in pairs))
        if len(seconds) % 2:
            means.append(seconds[-1])
            sums.append(weights[-1])
        self.seconds, self.weights = means, sums


def _mean(first: float, first_weight: int, second: float, second_weight: int) -> float:
    share = second_weight / (first_weight + second_weight)
    return first + (second - first) * share
