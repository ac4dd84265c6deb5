"""The best bound of the period that is known where not all plans can be looked at.

All plans must do the whole work (`work_bound`). On like devices more is proven by the sums of all cuts
(cut_profile_bound.py), which are listed or, if they are too many, worked out by frontiers (frontier_cuts.py), by
packing layers into stages where that leaves a gap, and, where even frontiers are too many, by how
wide stages must be to send what crosses cuts (narrow_cut_bound.py); on unlike ones, on several nodes and of steps that
flush by walks over the same sums with the groups that there are (walk_bound.py).

A lower bound of every plan's period where cuts are too many to list: packing layers into replicated stages.

A stage of layers s on a group g of devices takes size_g(s) = Σ over its layers of rate_g × seconds + weight_rate_g ×
bytes of weights at least: its compute, its averaging and its step of the optimizer. Leave out where cuts may lie and
what crosses them: the fewest devices for a period T are then a covering of the layers by pairs (s, g), each at the cost
of the group's devices. The linear relaxation, solved by column generation (Gilmore and Gomory, "A linear programming
approach to the cutting-stock problem", 1961), needs more devices than there are if no plan reaches T. New columns
are the answers of one knapsack for each group; sizes are rounded down in it, and the relaxation's value is divided by
the worst reduced price (Farley, "A note on bounding a class of linear programming problems", 1990), so that every
answer is a bound, however early the search is stopped.
"""

import time
from collections import Counter
from dataclasses import dataclass
from math import inf

import numpy as np

from ...values.costs import Array
from ..base import Problem
from ..cuts import Index
from .chain_search import Moves
from .cut_profile_bound import CutProfile
from .frontier_cuts import FrontierCuts, layer_seconds, seconds_and_weights
from .halving import largest_refused
from .like_node_search import row_bound
from .listed_cuts import ListedCuts
from .narrow_cut_bound import narrow_cut_bound
from .search_space import Space, merged
from .stage_cost_tables import StageModel
from .walk_bound import walk_bound

SECONDS = 1.0  # of the processor, after which the bound that is proven by then counts
Column = tuple[int, tuple[int, ...]]  # a group, and layers that fit on it
_TOLERANCE = 2e-4  # between periods that are reached and those that are not
_GRID = 2000  # steps of the room in a knapsack
_MOST_GROUPS = 32
_MOST_LAYERS = 400  # with more, no layer is large enough that packing them wastes time
_ROUNDS = 60

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


@dataclass(frozen=True, eq=False)
class _Packing:
    """The layers' sizes on each group that could be a stage's, and what of the devices each group takes."""

    sizes: Array  # [G, L]: seconds of a layer on a group
    counts: Array  # [G]: devices
    num_devices: int

    def fewest_devices(self, period: float, columns: list[Column], until: float) -> float:
        """A bound of the devices that this period needs; `columns`, (group, layers) that fit, grows by those found."""
        from scipy.optimize import linprog  # here, as few plans ask for it

        num_layers, best = self.sizes.shape[1], 0.0
        for _ in range(_ROUNDS):
            cover = np.zeros((num_layers, len(columns)))
            for k, (_, layers) in enumerate(columns):
                cover[list(layers), k] = 1
            price = np.array([self.counts[group] for group, _ in columns])
            answer = linprog(price, A_ub=-cover, b_ub=-np.ones(num_layers), method="highs")
            if answer.status != 0:
                return best
            prices, worst, added = -answer.ineqlin.marginals, 1.0, False
            for group, count in enumerate(self.counts):
                value, chosen = _knapsack(prices, self.sizes[group], period)
                worst = max(worst, value / count)
                if value > count * (1 + 1e-6):
                    columns.append((group, tuple(chosen)))
                    added = True
            best = max(best, float(answer.fun / worst))
            if best > self.num_devices or answer.fun <= self.num_devices or not added or time.process_time() > until:
                return best
        return best

    def period(self, low: float, high: float, seconds: float) -> float:
        """The largest period from `low` on, a bound already, to `high` that is proven to need more devices."""
        until = time.process_time() + seconds

        def refused(period: float) -> bool:
            fits = self.sizes <= period
            if not fits.any(axis=0).all():
                return True
            columns: list[Column] = [(int(group), (int(layer),)) for group, layer in np.argwhere(fits)]
            return self.fewest_devices(period, columns, until) > self.num_devices + 1e-7

        return largest_refused(refused, low, high, tolerance=_TOLERANCE, until=until)


def packing_bound(model: StageModel, moves: Moves, *, low: float, high: float, seconds: float = SECONDS) -> float:
    """Return a bound of the period of all plans on like devices: at least `low`, which is one, at most `high`.

    `low` itself where devices are unlike, or there is too much to pack.
    """
    sizes, counts = _sizes(model), model.groups.sizes
    whole = int(moves.used[-1])
    useful = sizes.max(axis=0) > 0
    if len(model.groups.types) > 1 or useful.sum() > _MOST_LAYERS or high <= low:
        return low
    rows = _cheapest(sizes[:, useful], counts)
    if len(rows) > _MOST_GROUPS:
        return low
    packing = _Packing(sizes[np.ix_(rows, np.flatnonzero(useful))], counts[rows].astype(float), whole)
    return packing.period(low, high, seconds)


def _sizes(model: StageModel) -> Array:
    """Seconds of each layer on each group, [G, L]; what a stage takes in addition to its layers is left out."""
    order = model.cuts.in_order if not model.cuts.is_chain else np.arange(len(model.cuts))
    times, weights = np.diff(model.times[0, order]), np.diff(model.weights[order])
    sizes: Array = model.rates[:, :1] * times + model.weight_rates[:, None] * weights
    return np.maximum(sizes, 0.0)


def _cheapest(sizes: Array, counts: Index) -> Index:
    """Of the groups of as many devices, those on which no layer takes longer than on another of them."""
    rows = []
    for count in np.unique(counts):
        same = np.flatnonzero(counts == count)
        least = sizes[same].min(axis=0)
        exact = [k for k in same.tolist() if (sizes[k] <= least * (1 + 1e-12)).all()]
        rows += exact[:1] or same.tolist()
    return np.array(rows, dtype=np.intp)


def _knapsack(values: Array, sizes: Array, room: float) -> tuple[float, list[int]]:
    """The most value whose sizes, rounded down to a grid, fit into `room`: (value, what is chosen)."""
    places = np.floor(sizes / room * _GRID).astype(int)
    chosen = np.flatnonzero((values > 1e-12) & (places <= _GRID)).tolist()
    best, taken = np.zeros(_GRID + 1), np.zeros((len(chosen), _GRID + 1), dtype=bool)
    for row, item in enumerate(chosen):
        place = places[item]
        if not place:
            best += values[item]
            taken[row] = True
            continue
        more = best[:-place] + values[item]
        taken[row, place:] = more > best[place:]
        np.maximum(best[place:], more, out=best[place:])
    left, picked = _GRID, []
    for row in reversed(range(len(chosen))):
        if taken[row, left]:
            picked.append(chosen[row])
            left -= places[chosen[row]]
    return float(best[_GRID]), picked
