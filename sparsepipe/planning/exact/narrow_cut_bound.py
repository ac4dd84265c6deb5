"""A lower bound of every plan's period on like devices where stages cannot be small, as what crosses cuts is too much.

A stage of m devices averages its gradients once in m minibatches. For each byte of weights that takes its devices
m × weight_rate(m) seconds of a minibatch together: for m = 1 only what the optimizer takes, and ever more, up to twice
a byte's transfer. What crosses a boundary is divided among the m devices of a side, so that below a period only wide
stages may end where much crosses. A layer is then in a stage of so many devices at least, and all devices together need

    period × devices ≥ Σ over layers of seconds + (least m × weight_rate(m) of the stages that it can be in) × weights

The least that crosses cuts is found for classes of cuts. Along a longest path v₀ → v₁ → … of the graph, the cuts of
class i have v₀ … vᵢ₋₁ before them and vᵢ … after them, and with them all that these need and all that needs those. The
least of a class is a minimum cut of what is left (Picard, "Maximal closure of a graph and applications to
combinatorial problems", 1976), with a node more for each tensor, which is sent once however many layers read it.
"""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...values.costs import Array
from ..base import Problem
from .frontier_cuts import seconds_and_weights
from .halving import largest_refused

SECONDS = 4.0  # of the processor, after which the bound that is proven by then counts
_MOST_CLASSES = 200
_TOLERANCE = 5e-4
_ENOUGH = 1 << 30  # more than all that can flow: sums of it and of what flows are below 2³¹


@dataclass(frozen=True, eq=False)
class CutClasses:
    """Classes of cuts: what is before and after all cuts of each, and the least that crosses one of them."""

    before: NDArray[np.bool_]  # [K, L]
    after: NDArray[np.bool_]  # [K, L]
    crossing: Array  # [K]: bytes
    sums: Array  # [2, L]: seconds and bytes of weights of each layer

    @classmethod
    def of(cls, problem: Problem, until: float = float("inf")) -> "CutClasses | None":
        """Find them; None if that is not done at `until` of `time.process_time()`."""
        layers = list(problem.layers)
        edges, _, before, after = classes_of_cuts(problem)
        sent = problem.crossing_bytes[layers]
        crossing = np.zeros(len(before))
        for k in range(1, len(before) - 1):
            if time.process_time() > until:
                return None
            crossing[k] = _least_crossing(edges, sent, before[k], after[k])
        return cls(before, after, crossing, seconds_and_weights(problem)[:2, layers])

    def bound(self, rates: Array, link: tuple[float, float], low: float, high: float, until: float) -> float:
        """Return a bound of the period, from `low`, which is one, to `high`.

        `rates`, [M, 2], has for 1, 2, … devices the share of its work and the seconds of a byte of weights of a stage
        on so many; `link` the latency and the seconds of a byte.
        """
        count = np.arange(1, len(rates) + 1)
        together = rates * count[:, None]
        least = np.minimum.accumulate(together[::-1])[::-1]  # of all devices of a stage, of so many or more
        within = [
            (self.after * one) @ self.before.T.astype(float) for one in self.sums
        ]  # [K, K]: in every stage from a class to one
        seconds = np.where(self.crossing > 0, link[0] + self.crossing * link[1], 0.0)

        def refused(period: float) -> bool:
            left, needed = np.ones(self.sums.shape[1], dtype=bool), 0.0
            for m, (share, rate) in zip(count.tolist(), rates, strict=True):
                fits = (seconds < m * period) & (share * within[0] + rate * within[1] < period)
                allowed = left & self._layers_within(np.flatnonzero(seconds < m * period), fits)
                needed += float(least[m - 1] @ self.sums[:, allowed].sum(axis=1))
                left &= ~allowed
                if not left.any():
                    break
            return bool(left.any()) or needed > len(rates) * period * (1 + 1e-9)

        return largest_refused(refused, low, high, tolerance=_TOLERANCE, until=until)

    def _layers_within(self, firsts: NDArray[np.intp], fits: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Layers that some stage has which begins in one of these classes and ends in one of those that `fits` [K, K].

        The last class that fits has all that those before it have.
        """
        within = np.zeros(self.sums.shape[1], dtype=bool)
        for first in firsts.tolist():
            lasts = np.flatnonzero(fits[first, first:])
            if len(lasts):
                within |= ~self.before[first] & ~self.after[first + int(lasts[-1])]
        return within


def narrow_cut_bound(
    problem: Problem, rates: Array, link: tuple[float, float], *, low: float, high: float, seconds: float = SECONDS
) -> float:
    """Return a bound of the period of all plans on like devices: at least `low`, which is one, at most `high`."""
    until = time.process_time() + seconds
    classes = CutClasses.of(problem, until)
    return classes.bound(rates, link, low, high, until) if classes else low


def classes_of_cuts(
    problem: Problem,
) -> tuple[NDArray[np.intp], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return (edges [E, 2], what each layer needs and itself [L, L], what is before and after classes of cuts [K, L]).

    All are by the places of the problem's layers. The classes are in a row: each holds what those before it hold.
    """
    layers = list(problem.layers)
    index_of = {layer: k for k, layer in enumerate(layers)}
    edges = [
        (index_of[p], k) for k, layer in enumerate(layers) for p in problem.table.graph.inputs[layer] if p in index_of
    ]
    ancestors = np.eye(len(layers), dtype=bool)
    for first, last in sorted(edges, key=lambda edge: edge[1]):
        ancestors[last] |= ancestors[first]
    path = _thinned(_longest_path(len(layers), edges))
    before, after = (np.zeros((len(path) + 1, len(layers)), dtype=bool) for _ in range(2))
    before[1:], after[:-1] = ancestors[path], ancestors[:, path].T
    return np.array(edges, dtype=np.intp).reshape(-1, 2), ancestors, before, after


def _longest_path(count: int, edges: list[tuple[int, int]]) -> list[int]:
    """The layers of a path with the most of them."""
    length, previous = [1] * count, [-1] * count
    for first, last in sorted(edges, key=lambda edge: edge[1]):
        if length[first] + 1 > length[last]:
            length[last], previous[last] = length[first] + 1, first
    path = [int(np.argmax(length))]
    while previous[path[-1]] >= 0:
        path.append(previous[path[-1]])
    return path[::-1]


def _thinned(path: list[int]) -> list[int]:
    """At most _MOST_CLASSES of them."""
    chosen = np.unique(np.linspace(0, len(path) - 1, min(len(path), _MOST_CLASSES)).astype(int))
    return [path[k] for k in chosen.tolist()]


def _least_crossing(edges: NDArray[np.intp], sent: Array, before: NDArray[np.bool_], after: NDArray[np.bool_]) -> float:
    """The fewest bytes that cross a cut which has these layers before it and those after it."""
    from scipy.sparse import coo_array  # here, as few plans ask for it
    from scipy.sparse.csgraph import maximum_flow

    count = len(sent)
    unit = max(float(sent.sum()), 1e-300) / (_ENOUGH // 2)  # rounded down, so that the answer is a bound
    source, sink = 2 * count, 2 * count + 1
    node = np.arange(2 * count)
    node[:count][before], node[:count][after] = source, sink
    senders = np.unique(edges[:, 0])
    # A layer pays for its tensor's node, from which all that read it are reached; what a layer needs comes with it.
    tails = node[np.concatenate([senders, count + edges[:, 0], edges[:, 1]])]
    heads = node[np.concatenate([count + senders, edges[:, 1], edges[:, 0]])]
    capacity = np.concatenate([np.floor(sent[senders] / unit), np.full(2 * len(edges), _ENOUGH)]).astype(np.int64)
    can_be_cut = (tails != heads) & (heads != source) & (tails != sink)
    _, numbers = np.unique(np.concatenate([[source, sink], tails[can_be_cut], heads[can_be_cut]]), return_inverse=True)
    tails, heads = np.split(numbers[2:], 2)
    size = int(numbers.max()) + 1
    graph = coo_array((capacity[can_be_cut], (tails, heads)), shape=(size, size)).tocsr()
    graph.data = np.minimum(graph.data, _ENOUGH)
    return float(maximum_flow(graph.astype(np.int32), int(numbers[0]), int(numbers[1])).flow_value) * unit
