"""A lower bound of the latency of every plan at a pace, from the sums of all cuts, whether or not one holds the other.

A cut is kept as the seconds before it on each device type and the bytes that cross it, where memory is short also as
the bytes of weights and of what is kept. Cuts with about as much work before them are taken together, with the fewest
bytes of them; a stage ends at the least of their sums and begins at the most, so that none is longer than it is. A plan
is then a walk over such cuts and the devices used, and the least latency of a walk is found as that of a plan is
(min_step_time.py):

    start ── 2 fast devices ──► cuts with 60% of the work before them ── 1 slow device ──► end

Devices of unlike types that share a stage's inputs need 1 / Σ (devices / seconds) for each, whatever their shares.
"""

from dataclasses import dataclass, replace
from math import inf, isqrt

import numpy as np
from numpy.typing import NDArray

from ...values.costs import Array
from ..base import Problem
from ..cuts import Cuts, Index, added_up
from ..device_groups import DeviceGroups
from .chain_search import Moves
from .frontier_cuts import UNITS, FrontierCuts, ListedCuts
from .memory_limits import MemoryRule
from .min_step_time import LeastSum
from .search_space import LATENCY_BUDGET, MAX_CUTS, every_move, merged
from .share_ratios import ShareRatios
from .stage_cost_tables import StageModel

_FEWEST, _MOST = 100, 1200  # kinds of cuts in a walk: with fewer it says little, with more it takes long
_AT_ONCE = 20_000  # cuts whose sums are worked out together
_ROUNDING = 1e-12  # of all work: sums are added up in different orders


def walk_latency_bound(problem: Problem, listed: ListedCuts | None, below: float, *, low: float, high: float) -> float:
    """Return a bound of the latency of all plans whose period is below a limit: from `low`, which is one, to `high`.

    `low` counts no transfer, and a plan has the latency `high` (infinity: none is known). `listed`: all cuts, if
    these were listed.
    """
    walks = Walks.of(problem) or Walks.of(merged(problem))
    most_bytes = crossing_bytes(problem, below, high - low)
    sums = walks and walks.sums(listed, most_bytes)
    if not walks or not sums:
        return low
    count = min(isqrt(LATENCY_BUDGET // len(walks.moves.source)), _MOST)
    return max(low, min(high, walks.least(sums.coarser(count, most_bytes), below)))


def crossing_bytes(problem: Problem, period: float, latency: float) -> float:
    """The most bytes that can cross a boundary which takes less than a period of both sides' ports, and of the latency.

    One of the sides has no more than half of the devices, over which its bytes are spread.
    """
    link, half = merged(problem).cluster.network, max(1, len(problem.cluster.devices) // 2)
    seconds = min(half * period, latency * (1 + 1e-9)) - link.latency
    return max(0.0, seconds) * link.bandwidth if seconds < inf else inf


@dataclass(frozen=True, eq=False)
class CutSums:
    """Cuts, some taken together: the least and the most of each sum before them, and the least that crosses them."""

    low: Array  # [Q, K]: seconds on each type; with memory also bytes of weights, and of what is kept
    high: Array
    crossing: Array  # [K]: bytes
    whole: Array  # [Q]: of all layers

    @classmethod
    def of_cuts(cls, cuts: Cuts, quantities: Array, crossing: Array) -> "CutSums":
        """Return the entries of known cuts; the first and the last are the ends of the network."""
        parts = (replace(cuts, masks=cuts.masks[k : k + _AT_ONCE]) for k in range(0, len(cuts), _AT_ONCE))
        sums = np.concatenate([part.total(quantities) for part in parts], axis=1)
        return cls(sums[:, 1:-1], sums[:, 1:-1], crossing[1:-1], sums[:, -1])

    @classmethod
    def of_frontier(cls, frontier: FrontierCuts, whole: Array) -> "CutSums":
        """Return the entries of each amount of work; `whole`, [Q], has the sums over all layers."""
        count = len(whole)
        return cls(
            frontier.sums[:count], -frontier.sums[count:], np.maximum(frontier.crossing - frontier.ties, 0.0), whole
        )

    def coarser(self, count: int, most_bytes: float) -> "CutSums":
        """About `count` of them, those with about as much work before them taken together, between both ends.

        Those that more than `most_bytes` cross are left out.
        """
        order = np.flatnonzero(self.crossing <= most_bytes)
        order = order[np.argsort(self.low[0, order], kind="stable")]
        class_of_cut = np.arange(len(order))
        if len(order) > count:
            units = np.floor(self.low[0, order] / max(self.whole[0], 1e-300) * UNITS)
            _, class_of_cut = np.unique(units, return_inverse=True)
            class_of_cut = class_of_cut * min(count, class_of_cut[-1] + 1) // (class_of_cut[-1] + 1)
        free = self.crossing[order] == 0  # the ends of the network, which are the start and the end already
        starts = np.flatnonzero(np.diff(2 * class_of_cut + free, prepend=-1))
        none, all_ = np.zeros((len(self.whole), 1)), self.whole[:, None]
        slack = _ROUNDING * all_
        low = np.minimum.reduceat(self.low[:, order], starts, axis=1) if len(order) else none[:, :0]
        high = np.maximum.reduceat(self.high[:, order], starts, axis=1) if len(order) else none[:, :0]
        crossing = np.minimum.reduceat(self.crossing[order], starts) if len(order) else none[0, :0]
        return CutSums(
            np.concatenate([none, low - slack, all_], axis=1),
            np.concatenate([none, high + slack, all_], axis=1),
            np.concatenate([[0.0], crossing, [0.0]]),
            self.whole,
        )

    @property
    def follows(self) -> NDArray[np.bool_]:
        """[K, K]: whether a stage could lead from one to the other: of no sum the other has less."""
        both = zip(self.low, self.high, strict=True)
        return np.logical_and.reduce([most[None, :] >= least[:, None] for least, most in both])


@dataclass(frozen=True, eq=False)
class _Stages:
    """Seconds of an input in a stage, on the slowest type of its group."""

    low: Array  # [T, K]
    high: Array
    present: NDArray[np.bool_]  # [G, T]: the types of each group

    def seconds(self, group: int, first: int | Index, last: int | Index) -> Array:
        return self.spans(group, first, last).max(axis=0)

    def every(self, group: int) -> Array:
        cuts = np.arange(self.low.shape[1])
        return self.seconds(group, cuts[:, None], cuts[None, :])

    def spans(self, group: int, first: int | Index, last: int | Index) -> Array:
        """On each type of a group."""
        present_rows = np.flatnonzero(self.present[group])
        spans: Array = np.maximum(self.low[present_rows][:, last] - self.high[present_rows][:, first], 0.0)
        return spans


@dataclass(frozen=True, eq=False)
class WalkModel:
    """Lower bounds on the latency and the limits of a walk's stages and boundaries."""

    works: StageModel  # its ports
    latencies: _Stages
    crossing: Array  # [links, K]

    @classmethod
    def of(cls, problem: Problem, groups: DeviceGroups, sums: CutSums) -> "WalkModel":
        """The walks of a problem's groups over these cuts."""
        types, num_groups = len(groups.types), len(groups)
        links = [*(node.link for node in groups.nodes), problem.cluster.network]
        crossing = np.stack([link.latency + sums.crossing / link.bandwidth for link in links])
        low, none = sums.low[:types], np.zeros(num_groups)
        works = StageModel(
            Cuts((), frozenset(), (0,) * len(sums.crossing), False),  # sums alone, of layers that may differ
            groups,
            low,
            groups.shares / groups.rounds[:, None],
            np.zeros(len(sums.crossing)),
            none,
            none,
            crossing,
            1 / groups.sizes,
            1 / (groups.on_node > 0).sum(axis=1),
            np.ones(types),
            np.zeros(len(sums.crossing)),
        )
        ratios = ShareRatios.of(works)
        easiest = ratios.easiest_ports() if ratios else works
        return cls(easiest, _Stages(low, sums.high[:types], groups.of_type > 0), crossing)

    def limit(self, group: int, first: int | Index, last: int | Index) -> Array:
        """Seconds between inputs, spread over the group's devices as is best."""
        counts = self.works.groups.of_type[group]
        spans, counts = self.latencies.spans(group, first, last), counts[counts > 0]
        with np.errstate(divide="ignore"):
            done: Array = sum(count / span for count, span in zip(counts, spans, strict=True))  # inputs a second
            return 1 / done

    def limits(self, group: int) -> Array:
        cuts = np.arange(self.crossing.shape[1])
        return self.limit(group, cuts[:, None], cuts[None, :])

    def first_weight(self, group: int) -> float:
        return 1.0


@dataclass(frozen=True, eq=False)
class Walks:
    """The walks of a problem by all groups of its devices."""

    problem: Problem
    groups: DeviceGroups
    moves: Moves

    @classmethod
    def of(cls, problem: Problem) -> "Walks | None":
        """Return None if even walks over few kinds of cuts take more than a second or so."""
        found = every_move(problem, LATENCY_BUDGET // _FEWEST**2)
        return cls(problem, *found) if found else None

    @property
    def quantities(self) -> Array:
        """Of each layer of the graph what is added up, [Q, L]."""
        table = self.problem.table
        each = [table.seconds[kind][:, 0] for kind in self.groups.types]
        if self.is_limited:
            each += [table.parameter_bytes, table.saved_bytes[:, 1] + table.held.coordinates[:, 1]]
        return np.stack(each)

    @property
    def is_limited(self) -> bool:
        """Return whether any device has so much memory and no more."""
        return any(device_class.type.memory_bytes < inf for device_class in self.groups.classes)

    def sums(self, listed: ListedCuts | None, most_bytes: float) -> CutSums | None:
        """Return the sums of all cuts that at most `most_bytes` cross; None if there are too many."""
        table, quantities = self.problem.table, self.quantities
        cuts = Cuts.of(table, self.problem.layers, limit=MAX_CUTS)
        if cuts.complete:
            crossing = np.minimum(*(cuts.payloads(table, between_hosts=there)[0][:, 0] for there in (False, True)))
            return CutSums.of_cuts(cuts, quantities, crossing)
        if listed and not self.is_limited:  # it has no cuts between idle layers, which take memory
            return CutSums.of_cuts(listed.cuts, quantities, listed.crossing)
        frontier = FrontierCuts.of(self.problem, most_bytes=most_bytes, sums=quantities)
        whole = quantities[:, list(self.problem.layers)].sum(axis=1)
        return CutSums.of_frontier(frontier, whole) if frontier else None

    def least(self, sums: CutSums, below: float) -> float:
        """The least latency of a walk whose stages and boundaries keep a period below a limit; infinity without one.

        `sums` begin and end with the ends of the network (`CutSums.coarser`).
        """
        model = WalkModel.of(self.problem, self.groups, sums)
        memory = self._memory(sums) if self.is_limited else None
        found = LeastSum(model, self.moves, sums.follows, memory).below(below)
        return found[1] if found else inf

    def _memory(self, sums: CutSums) -> MemoryRule:
        """Return the least memory of a stage: its weights once and its layers' outputs, without its input."""
        limits = np.array([device_class.type.memory_bytes for device_class in self.groups.classes])
        limit = np.where(self.groups.counts > 0, limits, inf).min(axis=1)[self.moves.group]
        (weights, kept), (more, much) = sums.low[-2:], sums.high[-2:]
        none = np.zeros(len(self.moves.source))
        stages = added_up(kept, weights)
        received = weights - more + kept - much
        return MemoryRule(none, none + 1, none, limit, weights, received, np.zeros_like(weights), stages)
