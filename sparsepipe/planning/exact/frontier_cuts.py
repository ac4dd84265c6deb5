"""The cheapest cut for each amount of work before it, of a graph that has too many cuts to list.

Layers are decided one after the other, in a topological order with narrow frontiers: before the cut or after it.
All that later layers must know of a decision is kept for the layers at the frontier, those with a consumer that is not
decided yet: whether such a layer is after the cut, before it, or before it and paid for since a consumer is after it.
Of all decisions that leave the same frontier and come to the same work, those that the fewest bytes cross are kept:

    relu ─ conv ─┐            decided: relu, conv; open: conv       least[(before,)]      = {work of both: 0}
    relu ─ conv ─ add                                               least[(after,)]       = {0: 0, relu's: relu's bytes}

A cell of NASNet has more than a million cuts, and its frontiers some hundred states. Work is counted in units of an
equal part of all work, rounded so that what lies before any layer of the order is right to half a unit. For a bound the
least and the most that the cuts taken together come to, in seconds of a type or bytes, are kept next to it (`sums`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...values.costs import Array
from ..base import Problem
from ..cuts import Cuts, Index, cheapest_by_work, down_sets, least_payload_order

UNITS = 4000  # of all work
MOST_STATES = 4096  # of one frontier
_MANY = 256  # states, of which it is asked how far their sums are spread
_AFTER, _BEFORE, _PAID = 0, 1, 2
_WIDEST = 500  # layers at a frontier, beyond which frontiers are not told apart
_DIGITS = 20  # of base 3, in one number beside that of a state: below 2⁶³
_TIES = 1e-3  # of the smallest tensor: among equals the cut nearest to the order's own, so that cuts hold one another


@dataclass(frozen=True, eq=False)
class _Step:
    """One layer to decide, by places in the frontier before it; the layer itself comes last."""

    inputs: tuple[int, ...]
    paying: tuple[tuple[int, float], ...]  # those of its inputs with bytes, and how many
    kept: tuple[int, ...]  # places of the frontier after it
    units: int
    adds: Array  # [1 or 1 + 2Q]: to each entry, where it is before the cut


@dataclass(frozen=True, eq=False)
class _States:
    """The states of a frontier, and for each an entry for each amount of work, all entries in one table.

    An entry has the least of all cuts: bytes that cross; with Q `sums` also each of these, and the negative of each.
    """

    values: NDArray[np.uint8]  # [N, F]: of the layers at the frontier
    first: Index  # [N]: units of the first entry
    start: Index  # [N + 1]: where the entries begin
    entries: Array  # [entries, 1 or 1 + 2Q]

    def spread(self, num_sums: int) -> float:
        """Between the least and the most of the first sum of cuts that are taken together, in half of the states."""
        reached = np.isfinite(self.entries[:, 0])
        apart = np.where(reached, -self.entries[:, 1 + num_sums] - self.entries[:, 1], 0.0)
        starts = self.start[:-1]
        return float(np.median(np.add.reduceat(apart, starts) / np.add.reduceat(reached.astype(float), starts)))


@dataclass(frozen=True, eq=False)
class _Origin:
    """Origin of the entries of all states: for each way the previous state, and whether the layer is before the cut."""

    first: Index  # as those of `_States`
    start: Index
    way: NDArray[np.uint16]  # [entries]: among those of the state
    ways: Index  # [N]: the first of each state's
    source: Index  # [ways]
    before: NDArray[np.bool_]  # [ways]


@dataclass(frozen=True, eq=False)
class FrontierCuts:
    """The least bytes that cross any cut of each amount of work, and how to find such a cut."""

    layers: tuple[int, ...]
    inputs: frozenset[int]
    work: Index  # [K]: units
    crossing: Array  # [K]: bytes, with what settles ties: `ties` at most
    ties: float
    sums: Array  # [2Q, K] or [0, K]: of each quantity the least before any such cut; then negatives of the most
    _steps: list[_Step]
    _rows: list[int]  # of `layers`, the one of each step
    _origins: list[_Origin]

    @classmethod
    def of(
        cls,
        problem: Problem,
        *,
        units: int = UNITS,
        most_bytes: float = float("inf"),
        sums: Array | None = None,
        most_spread: float = float("inf"),
    ) -> "FrontierCuts | None":
        """Work them out; None if a frontier has more than MOST_STATES states.

        Cuts that more than `most_bytes` cross are left out. `sums`, of the graph's layers, [Q, L]: what to add up for a
        bound; None if sums of the first of them, before cuts that are taken together, are usually more than
        `most_spread` apart.
        """
        orders = least_payload_order(problem.table, problem.layers), tuple(problem.layers)
        order = min(orders, key=lambda layers: _num_states(problem, layers))
        unit = max(float(layer_seconds(problem, order).sum()), 1e-300) / units
        sent = problem.crossing_bytes
        adds = _ties(sent, len(order))
        ties = float(adds.sum())
        most_bytes += ties
        if sums is not None:
            own = sums[:, list(order)]
            adds = np.concatenate([adds, own, -own])
        steps = _steps(problem, order, unit, adds)
        states = _States(np.zeros((1, 0), np.uint8), np.array([0]), np.array([0, 1]), np.zeros((1, len(adds))))
        origins = []
        for step in steps:
            states, origin = _decided(states, step, most_bytes)
            if len(states.first) > MOST_STATES:
                return None
            if sums is not None and len(states.first) > _MANY and states.spread(len(sums)) > most_spread:
                return None
            origins.append(origin)
        rows = states.entries.T
        allowed_rows = np.flatnonzero(np.isfinite(rows[0]) & (rows[0] <= most_bytes))
        index_of = {layer: k for k, layer in enumerate(problem.layers)}
        inputs = problem.table.graph.input_layers
        return cls(
            tuple(problem.layers),
            inputs,
            allowed_rows + int(states.first[0]),
            rows[0, allowed_rows],
            ties,
            rows[1:, allowed_rows],
            steps,
            [index_of[layer] for layer in order],
            origins,
        )

    def cheapest(self, count: int, others: Iterable[int], around: Iterable[float] = (), reach: float = 0.0) -> Cuts:
        """About `count` cuts: of those with about as much work before them the one that the least crosses.

        `around`: shares of all work; every cut is taken that is within `reach` of one of them. `others` are masks that
        come with them.
        """
        share = self.work / max(int(self.work[-1]), 1)
        chosen = set(cheapest_by_work(share, self.crossing, count).tolist())
        for place in around:
            chosen.update(np.flatnonzero(np.abs(share - place) <= reach).tolist())
        whole = (1 << len(self.layers)) - 1
        return Cuts.chosen(self.layers, self.inputs, {0, whole, *self.masks(sorted(chosen)), *others})

    def masks(self, which: Sequence[int]) -> list[int]:
        """The layers before each of some cuts as bits."""
        units = self.work[list(which)]
        states, members = np.zeros(len(units), dtype=np.intp), np.zeros((len(units), len(self.layers)), dtype=bool)
        for step, row, origin in zip(reversed(self._steps), reversed(self._rows), reversed(self._origins), strict=True):
            ways = origin.ways[states] + origin.way[origin.start[states] + units - origin.first[states]]
            members[:, row] = before = origin.before[ways]
            states, units = origin.source[ways], units - step.units * before
        return [int.from_bytes(row.tobytes(), "little") for row in np.packbits(members, axis=1, bitorder="little")]


def seconds_and_weights(problem: Problem) -> Array:
    """Of each layer its seconds on the first device type, bytes of weights, and seconds on other types, [Q, L].

    `row_of_type` says where a type's seconds are.
    """
    first, *others = [layer_seconds(problem, range(len(problem.graph.layers)), kind) for kind in row_of_type(problem)]
    return np.stack([first, problem.table.parameter_bytes, *others])


def row_of_type(problem: Problem) -> dict[str, int]:
    """The row of each type's seconds in `seconds_and_weights`, by name: 0, 2, 3 and so on."""
    names = dict.fromkeys(kind.name for kind in problem.cluster.device_types)
    return {name: k + (k > 0) for k, name in enumerate(names)}


def layer_seconds(problem: Problem, layers: Sequence[int], kind: str = "") -> Array:
    """Of each of these layers, forward and backward, on a device type: the first unless named."""
    table, kind = problem.table, kind or problem.cluster.device_types[0].name
    seconds: Array = table.seconds[kind][:, 0] + (table.forward[kind][:, 0] if problem.recompute else 0.0)
    return seconds[list(layers)]


def _num_states(problem: Problem, order: Sequence[int]) -> float:
    """States of all frontiers along an order, about: each layer there is before the cut or after it."""
    index_of = {layer: k for k, layer in enumerate(order)}
    widths = np.zeros(len(order) + 1)
    for layer, k in index_of.items():
        widths[k] += 1
        widths[max((index_of[consumer] for consumer in problem.table.graph.consumers[layer]), default=k)] -= 1
    return float((2.0 ** np.minimum(np.cumsum(widths), _WIDEST)).sum())


def _steps(problem: Problem, order: Sequence[int], unit: float, adds: Array) -> list[_Step]:
    """The layers as steps, with the frontier before each."""
    graph, inside = problem.table.graph, set(order)
    sent, seconds = problem.crossing_bytes, layer_seconds(problem, order)
    units = np.diff(np.round(np.concatenate([[0.0], np.cumsum(seconds)]) / unit).astype(int)).tolist()
    undecided = {layer: len(graph.consumers[layer]) for layer in order}
    frontier: list[int] = []
    steps = []
    for k, layer in enumerate(order):
        needs = [frontier.index(p) for p in graph.inputs[layer] if p in inside]
        for place in needs:
            undecided[frontier[place]] -= 1
        paying = tuple((index, float(sent[frontier[index]])) for index in needs if sent[frontier[index]])
        grown = [*frontier, layer]
        staying = tuple(place for place, layer_of_place in enumerate(grown) if undecided[layer_of_place])
        steps.append(_Step(tuple(needs), paying, staying, units[k], adds[:, k]))
        frontier = [grown[place] for place in staying]
    return steps


def _ties(sent: Array, count: int) -> Array:
    """Bytes, too few to matter, that favour the layers that come first, [1, L]."""
    smallest = float(sent[sent > 0].min(initial=np.inf))
    each = _TIES * (smallest if np.isfinite(smallest) else 1.0) / (count * count)
    return np.linspace(0.0, each * (count - 1), count)[None, :]


def _decided(states: _States, step: _Step, most_bytes: float) -> tuple[_States, _Origin]:
    """The states after a layer is decided either way, and where they come from."""
    paid = np.zeros(len(states.first))
    for column, sent in step.paying:
        paid += np.where(states.values[:, column] == _BEFORE, sent, 0.0)
    least = np.minimum.reduceat(states.entries[:, 0], states.start[:-1])
    before = np.flatnonzero((states.values[:, list(step.inputs)] != _AFTER).all(axis=1))
    after = np.flatnonzero((paid == 0) | (least + paid <= most_bytes))
    source = np.concatenate([before, after])
    values = np.append(states.values[source], np.full((len(source), 1), _BEFORE, dtype=np.uint8), axis=1)
    values[len(before) :, -1] = _AFTER
    for column, _ in step.paying:
        payers = values[len(before) :, column]
        payers[payers == _BEFORE] = _PAID
    taken = np.arange(len(source)) < len(before)
    values, target = _distinct(values[:, list(step.kept)])
    order = np.lexsort((~taken, source, target))
    source, taken, target = source[order], taken[order], target[order]
    ways, first = np.searchsorted(target, np.arange(len(values))), states.first[source] + step.units * taken
    sizes = np.diff(states.start)[source]
    firsts = np.minimum.reduceat(first, ways)
    start = np.concatenate([[0], np.cumsum(np.maximum.reduceat(first + sizes, ways) - firsts)])
    best, way = np.full((int(start[-1]), states.entries.shape[1]), np.inf), np.zeros(int(start[-1]), dtype=np.uint16)
    turn, shift = np.arange(len(source)) - ways[target], start[target] + first - firsts[target]
    adds = taken[:, None] * step.adds
    adds[:, 0] += np.where(taken, 0.0, paid[source])
    row = np.dtype((np.void, best.itemsize * best.shape[1]))  # copied in one piece
    for k in range(int(turn.max()) + 1):
        rows = np.flatnonzero(turn == k)
        size = sizes[rows]
        entry = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
        grown = states.entries.take(entry + np.repeat(states.start[source[rows]], size), axis=0)
        grown += np.repeat(adds[rows], size, axis=0)
        entry += np.repeat(shift[rows], size)
        if k:
            known = best.take(entry, axis=0)
            way[entry[grown[:, 0] < known[:, 0]]] = k
            np.minimum(grown, known, out=grown)
        best.view(row)[entry] = grown.view(row)
    return _States(values, firsts, start, best), _Origin(firsts, start, way, ways, source, taken)


def _distinct(values: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], Index]:
    """The rows that differ, and which of them each row is."""
    key = np.zeros(len(values), dtype=np.int64)
    for column in range(0, values.shape[1], _DIGITS):
        digits = values[:, column : column + _DIGITS].astype(np.int64)
        key = np.unique(key, return_inverse=True)[1].ravel() * 3**_DIGITS + digits @ 3 ** np.arange(digits.shape[1])
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return values[first], which.ravel()


MOST_CUTS = 300_000


# All cuts of a graph that has too many to search: listed once with what is before each and what crosses it
@dataclass(frozen=True, eq=False)
class ListedCuts:
    """Every down-set, small ones first."""

    cuts: Cuts
    sums: Array  # [Q, S]: before each, of `seconds_and_weights`
    crossing: Array  # [S]: bytes of features that cross it; coordinates are left out

    @classmethod
    def of(cls, problem: Problem) -> "ListedCuts | None":
        """List them; None if there are more than MOST_CUTS."""
        table, layers = problem.table, problem.layers
        index_of = {layer: k for k, layer in enumerate(layers)}
        joined = _joined(problem)
        at = {layer: k for k, own in enumerate(joined) for layer in own}
        needs = [
            sum({1 << at[p] for layer in own for p in table.graph.inputs[layer] if at.get(p, k) != k})
            for k, own in enumerate(joined)
        ]
        few = down_sets(needs, MOST_CUTS)
        if few is None:
            return None
        masks = _spread_listed(few, [sum(1 << index_of[layer] for layer in own) for own in joined])
        width = (len(layers) + 7) // 8
        raw = np.frombuffer(b"".join(mask.to_bytes(width, "little") for mask in masks), dtype=np.uint8)
        before = np.unpackbits(raw.reshape(len(masks), width).T.copy(), axis=0, bitorder="little").astype(bool)
        quantities = seconds_and_weights(problem)
        sums, crossing = np.zeros((len(quantities), len(masks))), np.zeros(len(masks))
        sent = problem.crossing_bytes
        for layer, k in index_of.items():
            for total, each in zip(sums, quantities[:, layer], strict=True):
                np.add(total, each, out=total, where=before[k])
            consumers = [index_of[c] for c in table.graph.consumers[layer]]
            if consumers and sent[layer]:
                used = before[consumers[0]].copy()
                for consumer in consumers[1:]:
                    used &= before[consumer]
                np.add(crossing, sent[layer], out=crossing, where=before[k] & ~used)
        cuts = Cuts(tuple(layers), table.graph.input_layers, tuple(masks), True)
        return cls(cuts, sums, crossing)

    @property
    def work(self) -> Array:
        """Seconds of the layers before each on the first device type, forward and backward, [S]."""
        return self.sums[0]

    @property
    def weights(self) -> Array:
        """Bytes of weights before each, [S]."""
        return self.sums[1]

    def cheapest(self, count: int, *others: Iterable[int]) -> Cuts:
        """About `count` cuts: of those with about as much work before them the one that the least crosses.

        `others` are masks that come with them.
        """
        chosen = cheapest_by_work(self.work, self.crossing, count)
        masks = {self.cuts.masks[k] for k in chosen}.union({0, self.cuts.masks[-1]}, *others)
        return Cuts.chosen(self.cuts.layers, self.cuts.inputs, masks)


def _joined(problem: Problem) -> list[list[int]]:
    """The layers; those without work and weights that touch a single other one are joined to it, in topological order.

    Apart they would cost what crosses between them, and gain nothing.
    """
    table, layers = problem.table, problem.layers
    work = np.sum([seconds[:, 0] for seconds in table.seconds.values()], axis=0) + table.parameter_bytes
    beside: dict[int, set[int]] = {layer: set() for layer in range(len(table.graph.layers))}
    for a, b in table.graph.edges:
        beside[a].add(b)
        beside[b].add(a)
    home = {layer: layer for layer in layers}
    todo = [layer for layer in layers if not work[layer]]
    while todo:
        layer = todo.pop()
        if layer not in beside or len(beside[layer]) != 1 or work[layer]:
            continue
        (other,) = beside[layer]
        if other in home:
            home[layer] = other
            beside[other].discard(layer)
            del beside[layer]
            todo.append(other)
    groups: dict[int, list[int]] = {}
    for layer in layers:
        root = layer
        while home[root] != root:
            root = home[root]
        groups.setdefault(root, []).append(layer)
    return [sorted(groups[root]) for root in sorted(groups)]


def _spread_listed(masks: list[int], parts: list[int]) -> list[int]:
    """Masks over layers, of masks over groups of them; `parts` are the masks of the groups."""
    if all(part == 1 << k for k, part in enumerate(parts)):
        return masks
    spread_by_mask = {0: 0}
    for mask in masks[1:]:  # each has a smaller one before it, with one group less
        top = mask.bit_length() - 1
        rest = mask & ~(1 << top)
        if rest not in spread_by_mask:
            spread_by_mask[rest] = sum(part for k, part in enumerate(parts) if rest >> k & 1)
        spread_by_mask[mask] = spread_by_mask[rest] | parts[top]
    return [spread_by_mask[mask] for mask in masks]
