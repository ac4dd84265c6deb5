"""A lower bound of every plan's period where cuts are too many to list: packing layers into replicated stages.

A stage of layers s on a group g of devices takes size_g(s) = Σ over its layers of rate_g × seconds + weight_rate_g ×
bytes of weights at least: its compute, its averaging and its step of the optimizer. Leave out where cuts may lie and
what crosses them: the fewest devices for a period T are then a covering of the layers by pairs (s, g), each at the cost
of the group's devices. The linear relaxation, solved by column generation (Gilmore and Gomory, "A linear programming
approach to the cutting-stock problem", 1961), needs more devices than there are where no plan reaches T. New columns
are the answers of one knapsack for each group; sizes are rounded down in it, and the relaxation's value is divided by
the worst reduced price (Farley, "A note on bounding a class of linear programming problems", 1990), so that every
answer is a bound, however early the search is stopped.
"""

import time
from dataclasses import dataclass

import numpy as np

from ...costs import Array
from ..cuts import Index
from .chain_search import Moves
from .halving import largest_refused
from .stage_cost_tables import StageModel

SECONDS = 1.0  # of the processor, after which the bound that is proven by then counts
Column = tuple[int, tuple[int, ...]]  # a group, and layers that fit on it
_TOLERANCE = 2e-4  # between periods that are reached and those that are not
_GRID = 2000  # steps of the room in a knapsack
_MOST_GROUPS = 32
_MOST_LAYERS = 400  # with more, no layer is large enough that packing them wastes time
_ROUNDS = 60


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
            best = max(best, answer.fun / worst)
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
    """Seconds of each layer on each group, [G, L]; what a stage takes beside its layers is left out."""
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
