"""Cuts for interleaved stages: a device's stages are summed, so more cuts balance devices where layers are large."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, combinations, pairwise
from math import comb

Bounds = tuple[int, ...]  # 0, where each stage but the first begins, the number of layers
_FEW = 50_000  # cuts of which all are tried: a quarter of a second


def lap_bounds(start: Bounds, seconds: Sequence[Sequence[float]], lap: int) -> Bounds:
    """Cut where the most loaded device, then the largest stage, has least to do.

    `seconds[k]` are those of every layer on the device of stage k. All cuts are tried where there are few; else those
    of `start` are moved, two at a time, until no pair helps.
    """
    before = [[0.0, *accumulate(row)] for row in seconds]

    def load(bounds: Bounds) -> tuple[float, float]:
        stages = [row[b] - row[a] for row, (a, b) in zip(before, pairwise(bounds), strict=True)]
        return max(sum(stages[k::lap]) for k in range(lap)), max(stages)

    num_layers = start[-1]
    if comb(num_layers - 1, len(seconds) - 1) <= _FEW:
        return min(((0, *cuts, num_layers) for cuts in combinations(range(1, num_layers), len(seconds) - 1)), key=load)
    best = start
    while load(found := min(_moved(best), key=load, default=best)) < load(best):
        best = found
    return best


def _moved(bounds: Bounds) -> Iterator[Bounds]:
    """Yield the bounds with two cuts anywhere between their neighbours."""
    for i, j in combinations(range(1, len(bounds) - 1), 2):
        first_stop = bounds[i + 1] if i + 1 < j else bounds[j + 1] - 1
        for first in range(bounds[i - 1] + 1, first_stop):
            second_start = bounds[j - 1] if i + 1 < j else first
            for second in range(second_start + 1, bounds[j + 1]):
                yield (*bounds[:i], first, *bounds[i + 1 : j], second, *bounds[j + 1 :])
