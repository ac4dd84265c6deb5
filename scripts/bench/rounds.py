"""Competitors in turns, and what their times say: what every benchmark has in common."""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def turns(rounds: int, functions: Mapping[str, Callable[[], Any]]) -> dict[str, list[Any]]:
    """Call each function once a round, after one round to warm up; return what they returned."""
    found: dict[str, list[Any]] = {name: [] for name in functions}
    for turn in range(rounds + 1):
        for name, function in functions.items():
            result = function()
            if turn:
                found[name].append(result)
    return found


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile of one value or more, none beyond the extremes."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Return each round's own ratio, so that what else the machine does meets both sides; [] where one did not run."""
    return [a / b for a, b in zip(above, below, strict=True)] if above and below else []


def load() -> float:
    """Return how many processes wanted a processor in the last minute: what else runs here is measured too."""
    return os.getloadavg()[0]
