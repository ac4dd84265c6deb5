"""Cuts for interleaved stages: a device's stages are summed, so more cuts balance devices where layers are large."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, combinations, pairwise
from math import comb

Bounds = tuple[int, ...]  # 0, where each stage but the first begins, the number of layers
_FEW = 50_000  # cuts of which all are tried: a quarter of a second
_ALIKE = 1.005  # most loaded devices that count as equally loaded


def lap_bounds(
    start: Bounds, seconds: Sequence[Sequence[float]], lap: int, *, crossing: Sequence[float], kept: Sequence[float]
) -> Bounds:
    """Cut where the most loaded device has least to do; among cuts that are alike, where fewest bytes move.

    `seconds[k]` are those of every layer on the device of stage k. Bytes move across cuts, `crossing` at each place,
    and in the update of every stage but the last: `kept` of each layer, whose older versions stay. All cuts are tried
    where there are few; else those of `start` are moved, two at a time, until no pair helps.
    """
    before, weights = [[0.0, *accumulate(row)] for row in seconds], [0.0, *accumulate(kept)]

    def load(bounds: Bounds) -> float:
        stages = [row[b] - row[a] for row, (a, b) in zip(before, pairwise(bounds), strict=True)]
        return max(sum(stages[k::lap]) for k in range(lap))

    def moved(bounds: Bounds) -> float:
        return sum(crossing[cut] for cut in bounds[1:-1]) + weights[bounds[-2]]

    num_layers, num_cuts = start[-1], len(seconds) - 1
    if comb(num_layers - 1, num_cuts) <= _FEW:
        every = ((0, *cuts, num_layers) for cuts in combinations(range(1, num_layers), num_cuts))
        tried: dict[Bounds, float] = {bounds: load(bounds) for bounds in every}
    else:
        best, tried = start, {start: load(start)}
        while True:
            around = {bounds: load(bounds) for bounds in _moved(best)}
            tried |= around
            found = min(around, key=around.__getitem__)
            if tried[found] >= tried[best]:
                break
            best = found
    least = min(tried.values())
    return min((bounds for bounds, most in tried.items() if most <= _ALIKE * least), key=moved)


def _moved(bounds: Bounds) -> Iterator[Bounds]:
    """Yield the bounds with two cuts anywhere between their neighbours."""
    for i, j in combinations(range(1, len(bounds) - 1), 2):
        first_stop = bounds[i + 1] if i + 1 < j else bounds[j + 1] - 1
        for first in range(bounds[i - 1] + 1, first_stop):
            second_start = bounds[j - 1] if i + 1 < j else first
            for second in range(second_start + 1, bounds[j + 1]):
                yield (*bounds[:i], first, *bounds[i + 1 : j], second, *bounds[j + 1 :])
