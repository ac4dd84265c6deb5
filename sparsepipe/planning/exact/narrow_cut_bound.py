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
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...values.costs import Array
from ..base import Problem
from .frontier_cuts import FrontierCuts, ListedCuts, seconds_and_weights
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


_WORK_BINS, _WEIGHT_BINS = 20_000, 100  # of all work and weights
_CROSSING_BINS = 0.01  # as a share of what crosses
_OTHER_BINS = 4  # of work, for what other types take more or less


# A lower bound of every plan's period where cuts can be listed, but not searched: only their sums are kept
@dataclass(frozen=True, eq=False)
class CutProfile:
    """Of each kind of cut the least and the most work and bytes of weights before it, and the least that crosses it."""

    low: Array  # [K, Q]: seconds of work, bytes of weights, seconds on other types, as `seconds_and_weights`
    high: Array
    crossing: Array  # [K]: bytes
    whole: Array  # [Q]

    @classmethod
    def of(cls, listed: ListedCuts) -> "CutProfile":
        """Take identical cuts together."""
        sums = listed.sums.T
        return cls(sums, sums, listed.crossing, sums[-1]).coarser(_WORK_BINS, _WEIGHT_BINS)

    def coarser(self, work_bins: int, weight_bins: int) -> "CutProfile":
        """Distinguish at most so many amounts of work and of weights: identical cuts are taken together."""
        whole, crossing = self.whole, self.crossing
        work = np.floor(self.low[:, 0] / max(whole[0], 1e-300) * work_bins)
        weight = np.floor(self.low[:, 1] / max(whole[1], 1e-300) * weight_bins)
        sent = np.floor(np.log1p(crossing) / np.log1p(_CROSSING_BINS))
        kind = (work * (weight_bins + 1) + weight) * (sent.max(initial=0.0) + 1) + sent
        for other in range(2, len(whole)):  # on other types the same work may be less than on average, or more
            share = self.low[:, other] / max(whole[other], 1e-300) - self.low[:, 0] / max(whole[0], 1e-300)
            _, kind = np.unique(kind, return_inverse=True)
            bin_of_share = np.floor(share * work_bins / _OTHER_BINS)
            kind = kind * (np.ptp(bin_of_share) + 1) + bin_of_share - bin_of_share.min()
        return self._together(kind)

    def by_work(self) -> "CutProfile":
        """Take all cuts of an amount of work together, in order; they are those of `of`."""
        return self._together(np.floor(self.low[:, 0] / max(self.whole[0], 1e-300) * _WORK_BINS))

    def _together(self, kind: Array) -> "CutProfile":
        """Take the cuts of each kind together, in the order of the kinds."""
        _, which = np.unique(kind, return_inverse=True)
        count, sums = int(which.max()) + 1, len(self.whole)
        low, high = np.full((count, sums), np.inf), np.zeros((count, sums))
        least = np.full(count, np.inf)
        np.minimum.at(low, which, self.low)
        np.maximum.at(high, which, self.high)
        np.minimum.at(least, which, self.crossing)
        return CutProfile(low, high, least, self.whole)

    @classmethod
    def of_frontier(cls, frontier: FrontierCuts) -> "CutProfile":
        """Return the entries of each amount of work; `frontier` has sums, and contains all cuts of relevant plans."""
        count = len(frontier.sums) // 2
        low, high = frontier.sums[:count].T, -frontier.sums[count:].T
        return cls(low, high, np.maximum(frontier.crossing - frontier.ties, 0.0), high[-1])

    def bound(self, rates: Iterable[tuple[float, float]], link: tuple[float, float], low: float, high: float) -> float:
        """Return a bound of the period, from `low`, which is one, to `high`.

        `rates` has for 1, 2, … devices the share of its work and the seconds of a byte of weights of a stage on so
        many; `link` the latency and the seconds of a byte.
        """
        walks, until = _Walks(self, np.array([*rates]), link), time.process_time() + SECONDS
        return largest_refused(lambda one: not walks.exist(one), low, high, tolerance=_TOLERANCE, until=until)


class _Walks:
    """The sums of a profile on each number of devices, sorted once."""

    def __init__(self, cuts: CutProfile, rates: Array, link: tuple[float, float]) -> None:
        self.begin = cuts.high[:, :2] @ rates.T  # [K, m]: the most that has been done before a stage that begins here
        self.end = cuts.low[:, :2] @ rates.T  # the least that must be done to end here
        self.order = np.argsort(self.end, axis=0, kind="stable")
        self.seconds = link[0] + cuts.crossing * link[1]
        self.all = cuts.whole[:2] @ rates.T
        self.num_devices = len(rates)

    def exist(self, period: float) -> bool:
        """Return whether stages and boundaries that each take less than `period` lead from the start to the end."""
        most = np.full((self.num_devices + 1, self.num_devices), -np.inf)
        most[0] = 0.0
        tables = self._tables(period)
        for used in range(self.num_devices):
            for m in range(self.num_devices - used):  # a stage of m + 1 devices
                reach = most[used, m] + period
                if reach == -np.inf:
                    continue
                if self.all[m] < reach:
                    return True
                ends, follow = tables[m]
                last_end = int(np.searchsorted(ends, reach, side="left")) - 1
                if last_end >= 0:
                    np.maximum(most[used + m + 1], follow[:, last_end], out=most[used + m + 1])
        return False

    def _tables(self, period: float) -> list[tuple[Array, Array]]:
        """For each m: the sums at which its stages end, in order; and of all up to each, the most for the next."""
        count = self.num_devices
        parts: NDArray[np.intp] = np.floor(self.seconds / period).astype(np.intp) + 1  # devices a side needs, at least
        tables = []
        for m in range(count):
            order = self.order[:, m]
            order = order[parts[order] <= m + 1]
            follow = np.where(parts[order] <= np.arange(1, count + 1)[:, None], self.begin[order].T, -np.inf)
            tables.append((self.end[order, m], np.maximum.accumulate(follow, axis=1)))
        return tables
