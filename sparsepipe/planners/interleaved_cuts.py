"""Cuts for interleaved stages: a device's load is the sum of its stages, so more cuts balance devices better."""

from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np

from ..costs import Array
from .cuts import Index

Bounds = tuple[int, ...]  # 0, where each stage but the first begins, the number of layers
_FEW = 50_000  # cuts of which all are tried
_ALIKE = 1.005  # most loaded devices that count as equally loaded


def lap_bounds(
    start: Bounds, seconds: Sequence[Sequence[float]], size: int, *, crossing: Sequence[float], kept: Sequence[float]
) -> Bounds:
    """Cut where the most loaded device has least to do; among cuts that are alike, where fewest bytes move.

    `seconds[k]` are those of every layer on the device of stage k, which is that of stage k + `size` too. Bytes move
    across cuts, `crossing` at each place, and in the update of every stage but the last: `kept` of each layer, whose
    older versions stay. All cuts are tried where there are few; else those of `start` are moved, two at a time, until
    no pair helps.
    """
    before = [np.concatenate([[0.0], np.cumsum(row)]) for row in seconds]
    crosses, weights = np.asarray(crossing), np.concatenate([[0.0], np.cumsum(kept)])

    def loads(bounds: Index) -> Array:
        """Seconds of the most loaded device, for each row of bounds."""
        stages = [row[b] - row[a] for row, a, b in zip(before, bounds.T, bounds.T[1:], strict=False)]
        return np.max([sum(stages[k::size]) for k in range(size)], axis=0)

    num_layers, num_cuts = start[-1], len(seconds) - 1
    if comb(num_layers - 1, num_cuts) <= _FEW:
        every = combinations(range(1, num_layers), num_cuts)
        tried = np.array([(0, *cuts, num_layers) for cuts in every], dtype=np.intp)
        most = loads(tried)
    else:
        tried = np.array([start], dtype=np.intp)
        most = loads(tried)
        best, least = tried[0], most[0]
        while True:
            around = _moved(best)
            found = loads(around)
            tried, most = np.concatenate([tried, around]), np.concatenate([most, found])
            if found.min() >= least:
                break
            best, least = around[found.argmin()], found.min()
    alike = tried[most <= _ALIKE * most.min()]
    moved = sum(crosses[alike[:, 1:-1]].T) + weights[alike[:, -2]]
    return tuple(alike[moved.argmin()].tolist())


def _moved(bounds: Index) -> Index:
    """The bounds with two cuts anywhere between their neighbours, a row each."""
    found = []
    for i, j in combinations(range(1, len(bounds) - 1), 2):
        neighbours = i + 1 == j
        first = np.arange(bounds[i - 1] + 1, bounds[j + 1 if neighbours else i + 1])
        second = np.arange(bounds[i - 1 if neighbours else j - 1] + 1, bounds[j + 1])
        rows, columns = np.nonzero(first[:, None] < second)
        moved = np.repeat(bounds[None], len(rows), axis=0)
        moved[:, i], moved[:, j] = first[rows], second[columns]
        found.append(moved)
    return np.concatenate(found)
