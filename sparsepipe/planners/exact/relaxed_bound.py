"""The best bound of the period that is known where not all plans can be looked at.

All plans must do the whole work (`work_bound`). On like devices more is proven by the sums of all cuts
(cut_profile_bound.py), which are listed or, where they are too many, worked out by frontiers (frontier_cuts.py), by
packing layers into stages (packing_bound.py) where that leaves a gap, and, where even frontiers are too many, by how
wide stages must be to send what crosses cuts (narrow_cut_bound.py); on unlike ones, on several nodes and of steps that
flush by walks over the same sums with the groups that there are (walk_bound.py).
"""

from collections import Counter
from math import inf

import numpy as np

from ..base import Problem
from .cut_profile_bound import CutProfile
from .frontier_cuts import FrontierCuts, layer_seconds, seconds_and_weights
from .listed_cuts import ListedCuts
from .narrow_cut_bound import narrow_cut_bound
from .packing_bound import packing_bound
from .search_space import Space, merged
from .walk_bound import walk_bound

CLOSE = 0.002  # a gap that is not worth a second
_SPREAD = 0.002  # of the period: where sums that are taken together are further apart, they bound next to nothing


def is_close(low: float, period: float) -> bool:
    """Whether the gap is not worth a second."""
    return period - low <= CLOSE * period


def work_bound(problem: Problem) -> float:
    """Return the period in which all devices do the whole work if each layer is divided among them at will.

    At any prices of a second on each type, all devices cost at least what the work does where each layer costs the
    least. Here at the prices that prove the most: the dual of sharing out the layers, a linear program.
    """
    counts = Counter(device.type.name for device in problem.cluster.devices)
    seconds = np.stack([layer_seconds(problem, problem.layers, name) for name in counts])  # [T, L]
    available = np.array([*counts.values()], dtype=float)
    if len(counts) == 1:
        return float(seconds.sum() / available[0])
    from scipy.optimize import linprog  # here, as few plans ask for it
    from scipy.sparse import csr_array

    kinds, layers = seconds.shape
    row, kind, layer = np.arange(kinds * layers), *np.indices(seconds.shape).reshape(2, -1)
    scale = max(float(seconds.max()), 1e-300)
    entries = np.concatenate([-seconds.ravel() / scale, np.ones(len(row))])
    places = np.concatenate([row, row]), np.concatenate([kind, kinds + layer])
    answer = linprog(  # prices of a second on each type, then of each layer
        np.concatenate([np.zeros(kinds), -np.ones(layers)]),
        A_ub=csr_array((entries, places), shape=(len(row), kinds + layers)),
        b_ub=np.zeros(len(row)),
        A_eq=csr_array(np.concatenate([available, np.zeros(layers)])[None]),
        b_eq=[1.0],
        method="highs",
    )
    prices = np.maximum(answer.x[:kinds], 0.0) if answer.status == 0 else 1 / available
    return float((prices[:, None] * seconds).min(axis=0).sum() / (prices @ available))


def relaxed_bound(problem: Problem, space: Space, listed: ListedCuts | None, *, low: float, period: float) -> float:
    """Return a bound by the default cost model of all plans of a problem: at least `low`, which is one.

    A plan with `period` was found. `space` is of the problem, or of an easier one, on one node (`merged`); `listed`
    has all cuts of the problem.
    """
    if is_close(low, period):
        return low
    profile, known = _profile(problem, space, listed, period), low
    if profile and several(problem):
        low = walk_bound(problem, profile, low=low, high=period)
    if low == known and _is_simple(problem, space):
        model, moves = space.model, space.moves
        link = merged(problem).cluster.network
        free = problem.synchronous  # their boundaries are part of a step's length
        rates = [_least(space, count) for count in range(1, int(moves.used[-1]) + 1)]
        sending = (0.0, 0.0) if free else (link.latency, 1 / link.bandwidth)
        if profile:
            low = profile.bound(rates, sending, low, period)
        low = low if is_close(low, period) else packing_bound(model, moves, low=low, high=period)
        if not profile and not free and not is_close(low, period):
            low = narrow_cut_bound(problem, np.array(rates), sending, low=low, high=period)
    if profile and not is_close(low, period) and problem.synchronous and not several(problem):
        low = walk_bound(problem, profile, low=low, high=period)
    return low


def _is_simple(problem: Problem, space: Space) -> bool:
    """Whether devices are alike and on one node, or on a space's."""
    return len(space.model.groups.types) == len(space.model.groups.nodes) == 1


def several(problem: Problem) -> bool:
    """Whether devices are of several types or on several nodes."""
    return len(problem.cluster.nodes) > 1 or len({kind.name for kind in problem.cluster.device_types}) > 1


def _profile(problem: Problem, space: Space, listed: ListedCuts | None, period: float) -> CutProfile | None:
    """The sums of all cuts that a plan below a period could have; None where all are searched, or sums are too many."""
    if listed:
        return CutProfile.of(listed)
    if space.model.cuts.complete:
        return None
    half = int(space.moves.used[-1]) // 2  # one side of a boundary has no more devices, which its bytes are spread over
    most_bytes = inf if problem.synchronous else half * period * merged(problem).cluster.network.bandwidth
    sums = seconds_and_weights(problem)
    frontier = FrontierCuts.of(problem, most_bytes=most_bytes, sums=sums, most_spread=_SPREAD * period)
    return CutProfile.of_frontier(frontier) if frontier else None


def _least(space: Space, count: int) -> tuple[float, float]:
    """(share of its work, seconds of a byte of weights) of a stage on so many devices, at least."""
    groups = np.flatnonzero(space.model.groups.sizes == count)
    return float(space.model.rates[groups, 0].min()), float(space.model.weight_rates[groups].min())
