"""The best bound of the period that is known where not all plans can be looked at.

All plans must do the whole work; on like devices more is proven by the list of all cuts (cut_profile_bound.py) and by
packing layers into stages (packing_bound.py), the latter where cuts cannot be listed or leave a gap.
"""

import numpy as np

from ..base import Problem
from .cut_profile_bound import CutProfile
from .listed_cuts import ListedCuts
from .packing_bound import packing_bound
from .search_space import Space, merged

CLOSE = 0.002  # a gap that is not worth a second


def is_close(low: float, period: float) -> bool:
    """Whether the gap is not worth a second."""
    return period - low <= CLOSE * period


def relaxed_bound(problem: Problem, space: Space, listed: ListedCuts | None, *, low: float, period: float) -> float:
    """Return a bound by the default cost model of all plans of a problem: at least `low`, which is one.

    A plan with `period` was found. `space` is of the problem, or of an easier one, on one node (`merged`); `listed`
    has all cuts of the problem.
    """
    model, moves = space.model, space.moves
    if is_close(low, period) or len(model.groups.types) > 1 or len(model.groups.nodes) > 1:
        return low
    if listed:
        link = merged(problem).cluster.network
        free = problem.synchronous  # their boundaries are part of a step's length
        rates = [_least(space, count) for count in range(1, int(moves.used[-1]) + 1)]
        sending = (0.0, 0.0) if free else (link.latency, 1 / link.bandwidth)
        low = CutProfile.of(listed).bound(rates, sending, low, period)
    return low if is_close(low, period) else packing_bound(model, moves, low=low, high=period)


def _least(space: Space, count: int) -> tuple[float, float]:
    """(share of its work, seconds of a byte of weights) of a stage on so many devices, at least."""
    groups = np.flatnonzero(space.model.groups.sizes == count)
    return float(space.model.rates[groups, 0].min()), float(space.model.weight_rates[groups].min())
