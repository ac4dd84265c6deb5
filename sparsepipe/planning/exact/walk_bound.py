"""A lower bound of every plan's period on any nodes, where cuts are too many to search: only their sums are kept.

As in narrow_cut_bound.py a plan is a walk over cuts that are identified by the work and the bytes of weights before
them and by what crosses them; here devices may sit on several nodes and be of several types. A stage of a group takes
at least

    rate × (work + ratio × weights) + fixed

of what lies between its cuts, in seconds of the one of its types that takes longest over the whole network. A state is
what earlier stages use of the devices; of each, and of each such measure and kind of receiver that may come next, the
most that is done is kept that an allowed cut has before it.

Of a schedule that flushes the walk bounds the longest wait, max (W − L) in estimate.py: a step takes as long as one
minibatch takes to go through all layers, besides.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from ...values.costs import Array
from ..base import Problem
from ..cuts import Cuts, Index
from ..device_groups import DeviceGroups, device_classes
from .chain_search import Limit, Moves, all_moves
from .frontier_cuts import layer_seconds, row_of_type
from .halving import largest_refused
from .like_nodes import JoinedNodes, num_moves, symmetric_moves
from .narrow_cut_bound import CutProfile
from .stage_cost_tables import StageModel, default_model

SECONDS = 4.0  # of the processor, after which the bound that is proven by then counts
_TOLERANCE = 5e-4
_COARSE, _FINE = (1000, 20), (4000, 50)  # amounts of work and of weights that are told apart
_MOST_RATIOS = 24  # more are rounded down to some of them, which allows more
_FEWEST_RATIOS = 8  # of each type
_MOST_PORTS = 40  # the same of ports' shares
_MOST_GROUPS = 50_000
_MOST_MOVES = 400_000
_NONE = 1e-12  # of a rate: such a stage is no limit
_ROUNDING = 1e-9  # of all work


@dataclass(frozen=True, eq=False)
class Walks:
    """Walks over the cuts of a profile, by groups and moves of a cluster."""

    model: StageModel  # of the groups; its ports are those at the start, the cuts of a profile, and the end
    moves: Moves  # at the speeds of devices, in work of the first type: what those not used yet can do
    rate: Array  # [G]
    row: Index  # [G]: of the sums, which type's seconds are a group's work
    ratio: Array  # [G]
    low: Array  # [Q, K]: before each of these, at least, as `seconds_and_weights`
    high: Array  # at most

    @classmethod
    def of(cls, problem: Problem, model: StageModel, moves: Moves, profile: CutProfile) -> "Walks":
        """`model` is of the problem's groups, whatever its cuts; `profile` of all cuts that a plan may have."""
        groups, minibatches = model.groups, problem.num_microbatches
        row_of = row_of_type(problem)
        rows = np.array([row_of[name] for name in groups.types])
        whole = np.maximum(profile.whole[rows], _NONE)
        if problem.synchronous:  # replicas of which each has one minibatch of a step wait for nothing
            moves = replace(moves, spare=np.full(len(moves.used), inf))
            turns = np.ceil(minibatches * groups.shares / groups.rounds[:, None])
            turns = np.where(groups.shares > 0, turns, np.inf).min(axis=1) - 1
            rates = turns[:, None] * (groups.shares > 0)
        else:
            rates = model.rates
        slowest = (rates * whole).argmax(axis=1)
        row, rate = rows[slowest], rates[np.arange(len(groups)), slowest]
        each = minibatches if problem.synchronous else 1
        sent = minibatches - 1 if problem.synchronous else 1
        ends = np.stack([np.zeros(len(profile.whole)), profile.whole], axis=1)
        low, high = (
            np.concatenate([ends[:, :1], profile_bound.T, ends[:, 1:]], axis=1)
            for profile_bound in (profile.low, profile.high)
        )
        crossing = np.concatenate([[0.0], profile.crossing, [0.0]])
        links = [*(node.link for node in groups.nodes), problem.cluster.network]
        model = replace(
            model,
            fixed=model.fixed * each,
            ports=np.stack([sent * (link.latency + crossing / link.bandwidth) for link in links]),
            device_port=_some(model.device_port, _MOST_PORTS),
            network_port=_some(model.network_port, _MOST_PORTS),
        )
        ratio = np.where(rate > _NONE, model.weight_rates * each / np.maximum(rate, _NONE), 0.0)
        for row_value in np.unique(row):
            ratio[row == row_value] = _some(ratio[row == row_value], max(_MOST_RATIOS // len(rows), _FEWEST_RATIOS))
        return cls(model, moves, np.maximum(rate, _NONE), row, ratio, low, high)

    @classmethod
    def over_all(cls, problem: Problem, profile: CutProfile) -> "Walks | None":
        """By all ways to use the devices: on their nodes, else by their types alone; None if these are too many."""
        classes, ends = device_classes(problem.cluster), Cuts.along(problem.table, problem.layers)
        ends = Cuts.chosen(ends.layers, ends.inputs, (0, ends.masks[-1]))
        if (
            prod(len(device_class.ranks) + 1 for device_class in classes) <= _MOST_GROUPS
            and num_moves(classes) <= _MOST_MOVES
        ):
            counts, moves = symmetric_moves(
                classes, _speeds(problem, [device_class.type.name for device_class in classes])
            )
            return cls.of(
                problem, default_model(problem, ends, DeviceGroups.of(problem, classes, counts)), moves, profile
            )
        joined = JoinedNodes.of(problem, ends)
        if joined.fluids or prod(int(n + 1) * int(n + 2) // 2 for n in joined.available) > _MOST_MOVES:
            return None
        counts, moves = all_moves(joined.available.tolist(), _speeds(problem, joined.model.groups.types))
        row_of = {tuple(row): k for k, row in enumerate(counts.tolist())}
        parts = [np.flatnonzero(moves.group == row_of[tuple(row)]) for row in joined.counts.tolist()]
        group = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        moves = replace(moves.only(np.concatenate(parts)), group=group, whole=None)
        return cls.of(problem, joined.model, moves, profile)

    def bound(self, low: float, high: float, until: float = inf) -> float:
        """Return the largest limit from `low` on, which is one already, to `high` that no walk stays below.

        `until`: when of `time.process_time()` the one that is proven by then counts.
        """
        return largest_refused(lambda one: not self.exist(one), low, high, tolerance=_TOLERANCE, until=until)

    @cached_property
    def measures(self) -> tuple[Array, Index]:
        """(the rows and ratios that there are, [M, 2], the measure of each group)."""
        distinct, which = np.unique(np.stack([self.row, self.ratio], axis=1), axis=0, return_inverse=True)
        return distinct, which.ravel()

    @cached_property
    def sums(self) -> tuple[Array, NDArray[np.float32], Index]:
        """Work + ratio × weights at each cut: (at least, at most, the cuts sorted by the least), [M, K] each."""
        rows, ratios = self.measures[0][:, 0].astype(int), self.measures[0][:, 1:]
        low, high = (sum_bound[rows] + ratios * sum_bound[1] for sum_bound in (self.low, self.high))
        return low, np.nextafter(high.astype(np.float32), np.float32(np.inf)), np.argsort(low, axis=1, kind="stable")

    @property
    def _all_work(self) -> float:
        return float(self.low[0, -1]) * (1 - _ROUNDING)

    def _done(self, by: Index, reach: Array) -> Array:
        """The most work before any cut that ends before a sum by a measure, [N]; below 0 if there is none."""
        best_sums, (low, _, order) = np.full(len(by), -np.inf), self.sums
        for group_value in np.unique(by):
            rows, own_rows = np.flatnonzero(by == group_value), order[group_value]
            last_reached = np.searchsorted(low[group_value, own_rows], reach[rows], side="left") - 1
            most = np.maximum.accumulate(self.high[0, own_rows])
            best_sums[rows] = np.where(last_reached >= 0, most[np.maximum(last_reached, 0)], -np.inf)
        return best_sums

    def exist(self, seconds: float) -> bool:
        """Return whether stages and boundaries that each take less than `seconds` lead from the start to the end."""
        moves, measure, step = self.moves, self.measures[1], _Step(self, seconds)
        room, whole = (seconds - self.model.fixed) / self.rate, self.sums[0][:, -1][measure]
        most = np.full((len(moves.used), len(step.parts)), -np.inf)
        most[0] = 0.0
        for level in moves.levels:
            group = moves.group[level]
            reach = np.where(room[group] > 0, most[moves.source[level], step.part[group]] + room[group], -np.inf)
            alive = np.flatnonzero(reach > 0)
            if (reach[alive] > whole[group[alive]]).any():
                return True
            left = seconds * moves.spare[moves.target[level[alive]]]
            alive = alive[self._done(measure[group[alive]], reach[alive]) + left >= self._all_work]
            if len(alive):
                reached = step.following(step.part[moves.receiver[level[alive]]], reach[alive])
                target = moves.target[level[alive]]
                starts = np.flatnonzero(np.diff(target, prepend=-1))
                best = np.maximum.reduceat(reached, starts, axis=0)
                most[target[starts]] = np.maximum(most[target[starts]], best)
        return False


class _Step:
    """From a stage to the next below a limit. Groups of one measure and one kind, sending and receiving, are a part."""

    def __init__(self, walks: Walks, seconds: float) -> None:
        self._walks, limit = walks, Limit(walks.model, seconds)
        kind, _ = limit.kinds
        sets, number = limit.sets
        first: dict[bytes, int] = {}  # nodes that are alike have the same sets
        same = np.array([first.setdefault(row.tobytes(), k) for k, row in enumerate(sets)])
        self._sets, self._number = sets, same[number]
        self.parts, part = np.unique(np.stack([walks.measures[1], kind], axis=1), axis=0, return_inverse=True)
        self.part: Index = part.ravel()  # of each group
        self._known: dict[tuple[int, int], tuple[Array, NDArray[np.float32]]] = {}

    def following(self, sender: Index, reach: Array) -> Array:
        """Of stages on these parts that end before a sum, the most that is done before any next part, [N, parts]."""
        best_values = np.full((len(sender), len(self.parts)), -np.inf)
        for sender_value in np.unique(sender):
            rows = np.flatnonzero(sender == sender_value)
            by, own_kind = self.parts[sender_value]
            allowed = self._number[own_kind][self.parts[:, 1]]
            for which in np.unique(allowed):
                ends, most = self._table(int(by), int(which))
                last_reached = np.searchsorted(ends, reach[rows], side="left") - 1
                others, able = np.flatnonzero(allowed == which), np.flatnonzero(last_reached >= 0)
                best_values[np.ix_(rows[able], others)] = most[np.ix_(self.parts[others, 0], last_reached[able])].T
        return best_values

    def _table(self, by: int, which: int) -> tuple[Array, NDArray[np.float32]]:
        """(sums by a measure of the cuts in a set, in order; of those up to each the most by every measure)."""
        if (by, which) not in self._known:
            low, high, order = self._walks.sums
            chosen = order[by][self._sets[which][order[by]]]
            self._known[by, which] = low[by, chosen], np.maximum.accumulate(high[:, chosen], axis=1)
        return self._known[by, which]


def walk_bound(problem: Problem, profile: CutProfile, *, low: float, high: float) -> float:
    """Return a bound of the period of all plans: at least `low`, which is one, at most `high`."""
    count, once = (problem.num_microbatches, _once_through(problem)) if problem.synchronous else (1, 0.0)
    if problem.rules.one_minibatch_at_a_time or high * count <= once:
        return low
    longest, start = max(low * count - once, 0.0), time.process_time()
    for bins, share in ((_COARSE, 0.3), (_FINE, 1.0)):  # few cuts are soon asked, and where to ask many is known then
        walks = Walks.over_all(problem, profile.coarser(*bins))
        if walks is None:
            return low
        longest = walks.bound(longest, high * count - once, start + share * SECONDS)
    return max(low, (once + longest) / count)


def _once_through(problem: Problem) -> float:
    """Seconds of one minibatch in all layers, at least."""
    kinds = [kind.name for kind in problem.cluster.device_types]
    return float(np.min([layer_seconds(problem, problem.layers, kind) for kind in kinds], axis=0).sum())


def _speeds(problem: Problem, types: Sequence[str]) -> Array:
    """Seconds of the first type's work that a device of each type does in a second, at most."""
    speeds: Array = 1 / np.maximum(_least_ratio(problem, tuple(types)), _NONE)
    return speeds


def _least_ratio(problem: Problem, types: tuple[str, ...]) -> Array:
    """Of each type the seconds of a layer, as a share of those of the cluster's first type, at least."""
    first = layer_seconds(problem, problem.layers)
    works = first > 0
    if not works.any():
        return np.zeros(len(types))
    type_seconds = [layer_seconds(problem, problem.layers, kind) for kind in types]
    return np.array([float((seconds[works] / first[works]).min()) for seconds in type_seconds])


def _some(values: Array, most: int) -> Array:
    """Values of which there are no more than so many, each rounded down to the next that is kept."""
    chosen_values = np.unique(values)
    if len(chosen_values) > most:
        chosen_values = chosen_values[np.unique(np.linspace(0, len(chosen_values) - 1, most).astype(int))]
    rounded: Array = chosen_values[np.searchsorted(chosen_values, values, side="right") - 1]
    return rounded
