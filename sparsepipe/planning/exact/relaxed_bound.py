"""The best bound of the period that is known if not all plans can be searched.

All plans must do the whole work (`work_bound`). On identical devices, sums of all cuts prove more
(narrow_cut_bound.py). They are listed; if they are too many, frontiers compute them (frontier_cuts.py). If frontiers
are too many, the widths that stages need to send what crosses cuts prove a bound (narrow_cut_bound.py). On other
devices and several nodes, all cuts are taken for a chain (`row_bound`). If steps flush or there are too many moves,
walks over the sums are searched with the existing groups (walk_bound.py).
"""

import time
from collections import Counter
from math import inf

import numpy as np

from ...values.costs import Array
from ..base import Problem
from .frontier_cuts import FrontierCuts, ListedCuts, layer_seconds, seconds_and_weights
from .halving import largest_refused
from .like_node_search import row_bound
from .like_nodes import JoinedNodes
from .narrow_cut_bound import CutProfile, narrow_cut_bound
from .placed_stages import Placements
from .priced_stages import PricedStages, ever_dearer, too_dear
from .search_space import Space, merged
from .walk_bound import walk_bound

CLOSE = 0.002  # a gap that is not worth a second
# Of the period: if sums that are taken together are further apart, they prove little. Like devices have few sums.
_SPREAD, _SPREAD_ALIKE = 0.002, 0.01


def is_close(low: float, period: float) -> bool:
    """Return whether the gap is not worth a second."""
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


def relaxed_bound(
    problem: Problem,
    space: Space,
    listed: ListedCuts | None,
    frontier: FrontierCuts | None = None,
    *,
    low: float,
    period: float,
) -> float:
    """Return a bound by the default cost model of all plans of a problem: at least `low`, which is one.

    A plan with `period` was found. `space` is of the problem, or of an easier one, on one node (`merged`). `listed`
    has all cuts of the problem, or `frontier` the sums of those that a plan below a period could have.
    """
    if is_close(low, period):
        return low
    profile, known = CutProfile.of(listed) if listed else frontier and CutProfile.of_frontier(frontier), low
    if profile and several(problem):
        of_row = row_bound(problem, profile.by_work() if listed else profile, low=low, high=period)
        low = walk_bound(problem, profile, low=low, high=period) if of_row is None else of_row
    if low == known and _is_simple(problem, space):
        link = merged(problem).cluster.network
        free = problem.synchronous  # their boundaries are part of a step's length
        rates = [_least(space, count) for count in range(1, int(space.moves.used[-1]) + 1)]
        sending = (0.0, 0.0) if free else (link.latency, 1 / link.bandwidth)
        if profile:
            low = profile.bound(rates, sending, low, period)
        if not profile and not free and not is_close(low, period):
            low = narrow_cut_bound(problem, np.array(rates), sending, low=low, high=period)
    if profile and not is_close(low, period) and problem.synchronous and not several(problem):
        low = walk_bound(problem, profile, low=low, high=period)
    return low


def _is_simple(problem: Problem, space: Space) -> bool:
    """Return whether devices are identical and on one node, or on a space's."""
    return len(space.model.groups.types) == len(space.model.groups.nodes) == 1


def several(problem: Problem) -> bool:
    """Return whether devices are of several types or on several nodes."""
    return len(problem.cluster.nodes) > 1 or len({kind.name for kind in problem.cluster.device_types}) > 1


def frontier_with_sums(problem: Problem, space: Space, period: float) -> FrontierCuts | None:
    """The sums of all cuts that a plan below a period could have; None if they are too many."""
    half = int(space.moves.used[-1]) // 2  # one side of a boundary has no more devices, which its bytes are spread over
    most_bytes = inf if problem.synchronous else half * period * merged(problem).cluster.network.bandwidth
    sums = seconds_and_weights(problem)
    most_spread = (_SPREAD if several(problem) else _SPREAD_ALIKE) * period  # other bounds prove less of like devices
    return FrontierCuts.of(problem, most_bytes=most_bytes, sums=sums, most_spread=most_spread)


def _least(space: Space, count: int) -> tuple[float, float]:
    """(share of its work, seconds of a byte of weights) of a stage on so many devices, at least."""
    groups = np.flatnonzero(space.model.groups.sizes == count)
    return float(space.model.rates[groups, 0].min()), float(space.model.weight_rates[groups].min())


TOLERANCE = 0.001
LAGRANGIAN_SECONDS = 5.0  # of the processor, after which the bound that is proven by then counts
PLACED_SECONDS = 2.0  # the same, by the nodes


def lagrangian_bound(joined: JoinedNodes, *, low: float, high: float, seconds: float = LAGRANGIAN_SECONDS) -> float:
    """Return a bound of the period of all plans: at least `low`, which is one, at most `high`."""
    until = time.process_time() + seconds
    while high - low > TOLERANCE * high and time.process_time() < until:
        period = (low + high) / 2
        *_, dearest = PricedStages(joined, period).ever_dearer()
        if too_dear(dearest):
            low = period
        else:
            high = period
    return low


def placed_bound(placed: Placements, *, low: float, high: float, seconds: float = PLACED_SECONDS) -> float:
    """Return a bound of the period of all plans on several nodes: at least `low`, which is one, at most `high`."""
    until, prices = time.process_time() + seconds, list[Array]()

    def refused(period: float) -> bool:
        cheapest = placed.stages(period).cheapest
        *_, dearest = ever_dearer(cheapest, placed.available, prices[-1] if prices else None)
        prices.append(dearest.prices)  # of one period they are good ones of the next
        return too_dear(dearest)

    return largest_refused(refused, low, high, tolerance=TOLERANCE, until=until)
