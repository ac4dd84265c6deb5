"""Find a plan whose stages and boundaries all take less than a given time, or prove that none exists: on a chain.

Stages are placed from the end of the pipeline. A state is what the later stages use of each device class and the cut
where they begin; a move puts one more group in front. What a boundary costs depends on both its groups, so a state is
reached for a *kind* of sender: where it sits, and how much of the traffic its busiest port carries. At a given limit
most port shares allow the same cuts, so there are few kinds.

For each kind only the cut nearest the start of the network is kept: from there every stage that fits from a later cut
fits too, and is shorter. One case escapes it, a group that only adapts between two port shares; so it can be asked for
a relaxed answer, which allows the next sender any cut that its own ports allow, and then "none" is proof.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...values.costs import Array
from ..cuts import Index
from ..device_groups import COMES, GOES
from .stage_cost_tables import StageModel

Path = list[tuple[int, int, int]]  # stages in pipeline order: (group, first cut, last cut)


@dataclass(frozen=True, eq=False)
class Moves:
    """The moves of the search as arrays: from the devices used so far, by one more group, to the devices used then."""

    used: Index  # [U]: number of devices used; growing
    source: Index
    group: Index
    target: Index
    spare: Array  # [U]: sum of prices of the devices not used yet
    rest: Index  # [U]: the multiset of the devices not used yet
    whole: "Moves | None" = None  # where some were left out: all of them
    swaps: "Swaps | None" = None  # where one state stands for all that differ by like nodes
    counts_stages: bool = False  # whether a state also says how many stages it has

    @property
    def receiver(self) -> Index:
        """The group of each move as the states after it tell it."""
        return self.group if self.swaps is None else self.swaps.receiver

    def groups(self, path: Sequence[int]) -> list[int]:
        """The groups of moves, in pipeline order, each identified by the nodes themselves."""
        if self.swaps is None:
            return list(self.group[list(path)].tolist())
        return self.swaps.groups(self.group, path)

    def only(self, chosen: Index) -> "Moves":
        """These moves alone."""
        whole = self.whole or self
        swaps = self.swaps and self.swaps.only(chosen)
        source, group, target = self.source[chosen], self.group[chosen], self.target[chosen]
        return replace(self, source=source, group=group, target=target, whole=whole, swaps=swaps)

    def at_most(self, stages: int) -> "Moves":
        """These moves in paths of at most so many stages: each state once for every number of stages behind it."""
        states, every = stages + 1, np.arange(len(self.source))
        repeated = self.only(np.tile(every, stages))
        behind = np.repeat(np.arange(stages), len(every))
        return replace(
            repeated,
            used=np.repeat(self.used, states),
            source=repeated.source * states + behind,
            target=repeated.target * states + behind + 1,
            spare=np.repeat(self.spare, states),
            rest=np.repeat(self.rest * states + stages, states),
            whole=None,
            counts_stages=True,
        )

    def doubled(self, like: Index, num_groups: int) -> "Moves":
        """The moves of the groups `like` once more, by groups `num_groups`, `num_groups` + 1 and so on."""
        extra = [np.flatnonzero(self.group == group) for group in like]
        every = np.concatenate([np.arange(len(self.source)), *extra])
        more = self.only(every)
        group = np.concatenate(
            [self.group, *(np.full(len(extra_share), num_groups + k) for k, extra_share in enumerate(extra))]
        )
        return replace(more, group=group, whole=None)

    def of_source(self, state: int) -> Index:
        """The moves from one state."""
        return self._by_source[0][self._by_source[1][state] : self._by_source[1][state + 1]]

    @cached_property
    def _by_source(self) -> tuple[Index, Index]:
        order = np.argsort(self.source, kind="stable")
        return order, np.searchsorted(self.source[order], np.arange(len(self.used) + 1))

    @cached_property
    def levels(self) -> list[Index]:
        """Moves by the number of devices used before them, each sorted by target."""
        order = np.lexsort((self.target, self.used[self.source]))
        return np.split(order, np.flatnonzero(np.diff(self.used[self.source[order]])) + 1) if len(order) else []


@dataclass(frozen=True, eq=False)
class Swaps:
    """Node numbering in the states after moves, if identical nodes were swapped (like_nodes.py)."""

    receiver: Index  # [moves]: the group, as the state after the move tells it
    order: Index  # [moves, classes]: the class of the state before that is in the place of each class after it
    radix: Index  # [classes]: of group g the number is counts @ radix − 1
    sizes: Index  # [classes]: devices

    def only(self, chosen: Index) -> "Swaps":
        """Of these moves alone."""
        return replace(self, receiver=self.receiver[chosen], order=self.order[chosen])

    def groups(self, group: Index, path: Sequence[int]) -> list[int]:
        """The groups of moves in pipeline order, which is the last move first, by the classes themselves."""
        group_indices, real = list[int](), np.arange(len(self.radix))
        for move in reversed(path):
            counts = (group[move] + 1) // self.radix % (self.sizes + 1)
            group_indices.append(int(counts @ self.radix[real]) - 1)
            real = real[self.order[move]]
        return group_indices[::-1]


def all_moves(counts: Sequence[int], prices: Array) -> tuple[Index, Moves]:
    """Every way to use devices of classes of these sizes: (group counts [G, classes], moves)."""
    grids = np.meshgrid(*(np.arange(n + 1) for n in counts), indexing="ij")
    vectors = np.stack([grid.ravel() for grid in grids], axis=1)
    vectors = vectors[np.argsort(vectors.sum(axis=1), kind="stable")]
    radix = np.cumprod([1, *(n + 1 for n in counts[:-1])])
    move_of_vector = np.empty(len(vectors), dtype=np.intp)
    move_of_vector[vectors @ radix] = np.arange(len(vectors))
    sources, groups = np.nonzero((vectors[:, None, :] + vectors[None, 1:, :] <= np.array(counts)).all(axis=2))
    targets = move_of_vector[(vectors[sources] + vectors[1 + groups]) @ radix]
    used = vectors.sum(axis=1)
    left = np.array(counts) - vectors
    return vectors[1:], Moves(used, sources, groups, targets, left @ prices, move_of_vector[left @ radix])


def slice_moves(order: Sequence[int], prices: Array, step: int = 1) -> tuple[Index, Moves]:
    """Moves whose groups are consecutive devices of one order (classes, the end of the pipeline first): few moves.

    Groups begin after multiples of `step` devices.
    """
    n, classes = len(order), len(prices)
    ends = np.unique([*range(0, n, step), n])
    onehot = np.zeros((n + 1, classes), dtype=np.intp)
    onehot[np.arange(1, n + 1), list(order)] = 1
    prefix = onehot.cumsum(axis=0)[ends]
    source, target = np.triu_indices(len(ends), 1)
    rows, group = np.unique(prefix[target] - prefix[source], axis=0, return_inverse=True)
    return rows, Moves(ends, source, group.ravel(), target, (prefix[-1] - prefix) @ prices, -(-(n - ends) // step))


@dataclass(frozen=True, eq=False)
class Limit:
    """A model at one limit: which cuts each kind of sender may share with each group."""

    model: StageModel
    seconds: float

    @cached_property
    def _allowed(self) -> tuple[list[NDArray[np.bool_]], Index, Index]:
        """(distinct sets of allowed cuts of each link, set of each group on its node's link, set on the network).

        Sets of one link are nested: a set's number grows with what it allows.
        """
        ports, placement = self.model.ports, self.model.groups.placement
        network = len(ports) - 1
        inside = np.zeros(len(placement), dtype=np.intp)
        outside = np.zeros(len(placement), dtype=np.intp)
        tables = []
        for link in range(len(ports)):
            values, which = self.model.shares[link == network]
            allowed = ports[link][None, :] * values[:, None] < self.seconds
            counts, row_of_sum = np.unique(allowed.sum(axis=1), return_inverse=True)
            table = np.zeros((len(counts), allowed.shape[1]), dtype=bool)
            table[row_of_sum] = allowed
            table[:, 0] = table[:, -1] = True  # the ends of the network are no boundaries
            tables.append(table)
            if link == network:
                outside[:] = row_of_sum[which]
            else:
                here = placement == link
                inside[here] = row_of_sum[which][here]
        return tables, inside, outside

    @cached_property
    def kinds(self) -> tuple[Index, Index]:
        """(kind of each group as a sender [G], one row (placement, inside set, outside set, ends) a kind)."""
        _, inside, outside = self._allowed
        groups = self.model.groups
        ends = np.full(len(groups), COMES + GOES) if groups.ends is None else groups.ends
        columns = groups.placement, inside, outside, ends
        sizes = [int(column.max()) + 1 for column in columns]
        keys, kind = np.unique(np.ravel_multi_index(columns, sizes), return_inverse=True)
        return kind, np.stack(np.unravel_index(keys, sizes), axis=1)

    @cached_property
    def sets(self) -> tuple[NDArray[np.bool_], Index]:
        """(sets of allowed cuts [Z, S], number of the set of (kind of sender, kind of receiver) [K, K])."""
        tables, _, _ = self._allowed
        first = np.cumsum([0, *(len(table) for table in tables)])
        _, rows = self.kinds
        network = len(tables) - 1
        number = np.empty((len(rows), len(rows)), dtype=np.intp)
        has_ends = self.model.groups.ends is not None
        for a, (place_a, inside_a, outside_a, ends_a) in enumerate(rows):
            for b, (place_b, inside_b, outside_b, ends_b) in enumerate(rows):
                same_node = place_a == place_b != network
                number[a, b] = (
                    first[place_a] + min(inside_a, inside_b) if same_node else first[-2] + min(outside_a, outside_b)
                )
                if has_ends and not (bool(ends_a & GOES) == bool(ends_b & COMES) == (not same_node)):
                    number[a, b] = first[-1]  # one of them is told for other neighbours
        none = np.zeros((1, self.model.size), dtype=bool)
        none[:, [0, -1]] = True
        return np.concatenate([*tables, none] if has_ends else tables), number

    @cached_property
    def alone(self) -> Index:
        """Number of the set that the ports of a sender alone allow, towards each kind of receiver, [K, K]."""
        tables, _, _ = self._allowed
        first = np.cumsum([0, *(len(table) for table in tables)])
        _, rows = self.kinds
        network = len(tables) - 1
        same_node = (rows[:, None, 0] == rows[None, :, 0]) & (rows[:, None, 0] != network)
        return np.where(same_node, first[rows[:, None, 0]] + rows[:, None, 1], first[-2] + rows[:, None, 2])


def along_chain(model: StageModel, moves: Moves, seconds: float, *, relaxed: bool = False) -> Path | bool | None:
    """Search cuts that form a chain, without memory limits. A path, or None; with `relaxed` True, or None as proof."""
    limit = Limit(model, seconds)
    best, done = _nearest_cuts(limit, moves, relaxed=relaxed)
    if done is None or relaxed:
        return done is not None or None
    return _walk_chain(limit, moves, best, done)


def _nearest_cuts(limit: Limit, moves: Moves, *, relaxed: bool, stop: bool = True) -> tuple[Index, int | None]:
    """(for each state and kind of sender cut × moves + move, [U, K]; a move that reaches the start, None without one).

    The cut is the nearest to the start, the move the one that reached it; a cut past the end stands for none.
    """
    model, seconds = limit.model, limit.seconds
    kind, rows = limit.kinds
    sets, number = limit.sets
    end, num_moves = model.size - 1, len(moves.source)
    following = _next_allowed(sets)
    best = np.full((len(moves.used), len(rows)), (end + 1) * num_moves, dtype=np.int64)
    best[0] = end * num_moves
    done = None
    for same_size in moves.levels:
        source, group = moves.source[same_size], moves.group[same_size]
        last = best[source, kind[group]] // max(num_moves, 1)
        alive = np.flatnonzero(last <= end)
        alive = alive[model.work[last[alive]] < seconds * moves.spare[source[alive]]]
        level, group, last = same_size[alive], group[alive], last[alive]
        receiver = kind[moves.receiver[level]]
        if not len(level):
            continue
        first = _reach(model, group, last, seconds)
        moved = first < last
        finished = moved & (first == 0)
        if finished.any():
            done = int(level[finished.argmax()])
            if stop:
                return best, done
        target = moves.target[level]
        starts = np.flatnonzero(np.diff(target, prepend=-1))
        cut = following[number[:, receiver], first]  # [kinds of the next sender, moves]
        cut = np.where(moved & (cut < last), cut, end + 1)
        if relaxed:
            cut = np.minimum(cut, following[limit.alone[:, receiver], last])
        key = np.where(cut <= end, cut * num_moves + level, (end + 1) * num_moves)
        reached = np.minimum.reduceat(key, starts, axis=1).T
        best[target[starts]] = np.minimum(best[target[starts]], reached)
    return best, done


def useful_moves(model: StageModel, moves: Moves, seconds: float) -> Moves:
    """Leave out the moves that are on no path below the limit.

    What the later stages and this group cover at best, and what the devices left could cover from the start of the
    network at best, both without a look at boundaries, must meet.
    """
    if not len(moves.source):
        return moves
    end, every = model.size - 1, moves.whole or moves
    free = replace(model, ports=np.zeros_like(model.ports))
    from_end, _ = _nearest_cuts(Limit(free, seconds), moves, relaxed=False, stop=False)
    from_start, _ = _nearest_cuts(Limit(free.reversed(), seconds), every, relaxed=False, stop=False)
    nearest = from_end.min(axis=1) // len(moves.source)
    covered = np.maximum(end - from_start.min(axis=1) // len(every.source), 0)
    # What fewer devices reach, more do too: some may stay unused, or only serve where the others could have gone on.
    np.minimum.at(nearest, every.target, nearest[every.source])
    np.maximum.at(covered, every.target, covered[every.source])
    last = np.minimum(nearest[moves.source], end)
    first = _reach(model, moves.group, last, seconds)
    return moves.only(np.flatnonzero(first <= covered[moves.rest[moves.target]]))


def _next_allowed(sets: NDArray[np.bool_]) -> Index:
    """For each set and cut, the nearest allowed cut at or after it, [Z, S]."""
    places = np.where(sets, np.arange(sets.shape[1]), sets.shape[1])
    return np.minimum.accumulate(places[:, ::-1], axis=1)[:, ::-1]


def _reach(model: StageModel, group: Index, last: Index, seconds: float) -> Index:
    """The smallest cut from which each group computes the layers up to `last` in time; `last` if there is none."""
    low, high = np.zeros_like(last), last.copy()
    begin_times, begin_weights = model.begins or (model.times, model.weights)
    rates = [column.take(group) for column in model.rates.T]
    ends = [times.take(last) for times in model.times]
    weight_rates, weights_end, fixed = model.weight_rates.take(group), model.weights.take(last), model.fixed.take(group)
    for _ in range(model.size.bit_length()):
        middle = (low + high) >> 1
        slowest = rates[0] * (ends[0] - begin_times[0].take(middle))
        for rate, end, times in zip(rates[1:], ends[1:], begin_times[1:], strict=True):
            np.maximum(slowest, rate * (end - times.take(middle)), out=slowest)
        fits = slowest + weight_rates * (weights_end - begin_weights.take(middle)) + fixed < seconds
        high = np.where(fits, middle, high)
        low = np.where(fits, low, np.minimum(middle + 1, high))
    return high


def _walk_chain(limit: Limit, moves: Moves, best: Index, move: int) -> Path:
    """The stages behind the move that reached the start of the network, in pipeline order."""
    kind, _ = limit.kinds
    chosen, cuts = list[int](), [0]
    while True:
        last, before = divmod(int(best[moves.source[move], kind[moves.group[move]]]), len(moves.source))
        chosen.append(move)
        cuts.append(last)
        if last == len(limit.model.cuts) - 1:
            return list(zip(moves.groups(chosen), cuts, cuts[1:], strict=False))
        move = before


def last_true(fits: Callable[[Index, Index, Index], NDArray[np.bool_]], low: Index, high: Index) -> Index:
    """For each row and column, the last place in low … high where `fits(row, column, place)`; `low` where nowhere.

    `fits` holds up to some place and not after it. What is settled is not asked again.
    """
    shape = low.shape
    answer, top = low.ravel().copy(), high.ravel()
    todo = np.flatnonzero(answer < top)
    top = top[todo]
    while len(todo):
        middle = (answer[todo] + top + 1) >> 1
        row, column = np.divmod(todo, shape[1])
        fit = fits(row, column, middle)
        answer[todo[fit]] = middle[fit]
        top = np.where(fit, top, middle - 1)
        unsettled = answer[todo] < top
        todo, top = todo[unsettled], top[unsettled]
    return answer.reshape(shape)
