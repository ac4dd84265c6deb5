"""The cheapest cut for each amount of work before it, of a graph that has too many cuts to list.

Layers are decided one after the other, in a topological order that keeps few bytes alive: before the cut or after it.
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
from ..cuts import Cuts, Index, cheapest_by_work, least_payload_order

UNITS = 4000  # of all work
MOST_STATES = 4096  # of one frontier
_MANY = 256  # states, of which it is asked how far their sums are spread
_AFTER, _BEFORE, _PAID = 0, 1, 2
_TIES = 1e-3  # of the smallest tensor: among equals the cut nearest to the order's own, so that cuts hold one another

State = tuple[int, ...]  # of the layers at the frontier
Least = tuple[int, Array]  # the work of the first entry, in units, and for it and those after it rows of which each
# is the least of all cuts: bytes that cross; with Q `sums` also each of these, and the negative of each,
# [1 or 1 + 2Q, entries]


@dataclass(frozen=True, eq=False)
class _Step:
    """One layer to decide, by places in the frontier before it; the layer itself comes last."""

    inputs: tuple[int, ...]
    paying: tuple[tuple[int, float], ...]  # those of its inputs with bytes, and how many
    kept: tuple[int, ...]  # places of the frontier after it
    units: int
    adds: Array  # [1 or 1 + 2Q, 1]: to the rows, where it is before the cut


@dataclass(frozen=True, eq=False)
class _Origin:
    """Origin of a state's entries: for each way the previous state, and whether the layer is before the cut."""

    first: int  # units of the first entry
    way: NDArray[np.uint16] | None  # of each entry; None: there is one way only
    ways: list[tuple[State, bool]]


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
    _bits: list[int]  # the mask of each step's layer
    _origins: list[dict[State, _Origin]]

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
        order = least_payload_order(problem.table, problem.layers)
        unit = max(float(layer_seconds(problem, order).sum()), 1e-300) / units
        sent = problem.crossing_bytes
        adds = _ties(sent, len(order))
        ties = float(adds.sum())
        most_bytes += ties
        if sums is not None:
            own = sums[:, list(order)]
            adds = np.concatenate([adds, own, -own])
        steps = _steps(problem, order, unit, adds)
        states: dict[State, Least] = {(): (0, np.zeros((len(adds), 1)))}
        origins = []
        for step in steps:
            states, origin = _decided(states, step, most_bytes)
            if len(states) > MOST_STATES:
                return None
            if sums is not None and len(states) > _MANY and _spread(states, len(sums)) > most_spread:
                return None
            origins.append(origin)
        first, rows = states[()]
        allowed_rows = np.flatnonzero(np.isfinite(rows[0]) & (rows[0] <= most_bytes))
        index_of = {layer: k for k, layer in enumerate(problem.layers)}
        bits = [1 << index_of[layer] for layer in order]
        inputs = problem.table.graph.input_layers
        return cls(
            tuple(problem.layers),
            inputs,
            allowed_rows + first,
            rows[0, allowed_rows],
            ties,
            rows[1:, allowed_rows],
            steps,
            bits,
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
        masks = {self.mask(k) for k in chosen}.union({0, whole}, others)
        return Cuts.chosen(self.layers, self.inputs, masks)

    def mask(self, which: int) -> int:
        """The layers before a cut as bits."""
        state, units, mask = State(), int(self.work[which]), 0
        for step, bit, origins in zip(
            reversed(self._steps), reversed(self._bits), reversed(self._origins), strict=True
        ):
            origin = origins[state]
            way = 0 if origin.way is None else int(origin.way[units - origin.first])
            state, before = origin.ways[way]
            if before:
                mask |= bit
                units -= step.units
        return mask


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


def _spread(states: dict[State, Least], num_sums: int) -> float:
    """Between the least and the most of the first sum of cuts that are taken together, in half of the states."""
    reached = [rows[:, np.isfinite(rows[0])] for _, rows in states.values()]
    return float(np.median([np.mean(-rows[1 + num_sums] - rows[1]) for rows in reached]))


def layer_seconds(problem: Problem, layers: Sequence[int], kind: str = "") -> Array:
    """Of each of these layers, forward and backward, on a device type: the first unless named."""
    table, kind = problem.table, kind or problem.cluster.device_types[0].name
    seconds: Array = table.seconds[kind][:, 0] + (table.forward[kind][:, 0] if problem.recompute else 0.0)
    return seconds[list(layers)]


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
        paying = tuple((place, float(sent[frontier[place]])) for place in needs)
        grown = [*frontier, layer]
        staying = tuple(place for place, layer_of_place in enumerate(grown) if undecided[layer_of_place])
        steps.append(_Step(tuple(needs), paying, staying, units[k], adds[:, k, None]))
        frontier = [grown[place] for place in staying]
    return steps


def _ties(sent: Array, count: int) -> Array:
    """Bytes, too few to matter, that favour the layers that come first, [1, L]."""
    smallest = float(sent[sent > 0].min(initial=np.inf))
    each = _TIES * (smallest if np.isfinite(smallest) else 1.0) / (count * count)
    return np.linspace(0.0, each * (count - 1), count)[None, :]


def _decided(
    states: dict[State, Least], step: _Step, most_bytes: float
) -> tuple[dict[State, Least], dict[State, _Origin]]:
    """The states after a layer is decided either way, and where they come from."""
    ways: dict[State, list[tuple[int, Array, State, bool]]] = {}
    for state, (first, rows) in states.items():
        if all(state[place] for place in step.inputs):
            grown = (*state, _BEFORE)
            key = tuple([grown[place] for place in step.kept])
            ways.setdefault(key, []).append((first + step.units, rows + step.adds, state, True))
        after, paid = [*state, _AFTER], 0.0
        for place, sent in step.paying:
            if state[place] == _BEFORE:
                after[place] = _PAID
                paid += sent
        sending = rows
        if paid:
            sending = rows.copy()
            sending[0] += paid
        if not paid or sending[0].min() <= most_bytes:
            key = tuple([after[place] for place in step.kept])
            ways.setdefault(key, []).append((first, sending, state, False))
    new_states, origins = {}, {}
    for key, way in ways.items():
        new_states[key], origins[key] = _least(way)
    return new_states, origins


def _least(ways: list[tuple[int, Array, State, bool]]) -> tuple[Least, _Origin]:
    """The least of several ways to a state, entry by entry."""
    before = [(state, taken) for _, _, state, taken in ways]
    if len(ways) == 1:
        first, rows, _, _ = ways[0]
        return (first, rows), _Origin(first, None, before)
    first = min(start for start, *_ in ways)
    size = max(start + rows.shape[1] for start, rows, *_ in ways) - first
    best, way = np.full((len(ways[0][1]), size), np.inf), np.zeros(size, dtype=np.uint16)
    for k, (start, rows, _, _) in enumerate(ways):
        here = slice(start - first, start - first + rows.shape[1])
        np.copyto(way[here], k, where=rows[0] < best[0, here])
        np.minimum(best[:, here], rows, out=best[:, here])
    return (first, best), _Origin(first, way, before)
