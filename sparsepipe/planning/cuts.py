"""Where a network can be cut: each cut is the set of layers before it, closed under inputs (a down-set).

A plan's stages are the differences of a growing sequence of cuts, from the empty one to the whole network. A cut is a
bit mask over the layers. A chain has one cut after each layer; a graph with branches has more, and where they are too
many, the cuts along one topological order stand for them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..util.derived import remembered
from ..values.costs import Array, LayerTable
from ..values.graph import LayerGraph

Index = NDArray[np.intp]
# `LayerTable.stage_bytes` of the stages from some cuts to others: kept, most at work, least of it.
StageBytes = Callable[[int | Index, int | Index], tuple[Array, Array, Array]]
_PAIRS = 2**14  # stages that are looked at together


@dataclass(frozen=True, eq=False)
class Cuts:
    """Cuts, every subset before its supersets: the first is empty, the last is the whole network."""

    layers: tuple[int, ...]  # that stages hold, in topological order
    inputs: frozenset[int]  # layers that stand for loading the data: before every cut
    masks: tuple[int, ...]  # bit k of a mask: the k-th of `layers`
    complete: bool  # whether these are all the down-sets there are

    @classmethod
    def of(cls, table: LayerTable, layers: Sequence[int], *, limit: int) -> "Cuts":
        """All down-sets if there are at most `limit`, else those along the given order."""
        graph, own_layers = table.graph, tuple(layers)
        cuts = remembered(graph.kept, "all cuts", (own_layers, limit), lambda: cls._all(graph, own_layers, limit))
        return cls.along(table, layers) if cuts is None else cuts

    @classmethod
    def _all(cls, graph: LayerGraph, layers: Sequence[int], limit: int) -> "Cuts | None":
        index_of = {layer: k for k, layer in enumerate(layers)}
        needs = [sum(1 << index_of[p] for p in graph.inputs[layer] if p in index_of) for layer in layers]
        masks = down_sets(needs, limit)
        return None if masks is None else cls(tuple(layers), graph.input_layers, tuple(masks), True)

    @classmethod
    def along(cls, table: LayerTable, order: Sequence[int]) -> "Cuts":
        """The cuts between neighbours of one topological order."""
        layers = tuple(sorted(order))
        index_of = {layer: k for k, layer in enumerate(layers)}
        masks = [0]
        for layer in order:
            masks.append(masks[-1] | 1 << index_of[layer])
        return cls(layers, table.graph.input_layers, tuple(masks), False)._known(table.graph)

    @classmethod
    def chosen(cls, layers: tuple[int, ...], inputs: frozenset[int], masks: Iterable[int]) -> "Cuts":
        """Some of all cuts, in order."""
        return cls(layers, inputs, tuple(sorted(set(masks), key=lambda mask: (mask.bit_count(), mask))), False)

    def _known(self, graph: LayerGraph) -> "Cuts":
        """The same cuts as they were made for this graph before, with what was worked out of them meanwhile."""
        return remembered(graph.kept, "cuts", (self.layers, self.masks, self.complete), lambda: self)

    def thinned(self, table: LayerTable, count: int) -> "Cuts":
        """About `count` of a chain's cuts, spread over the network's time; of neighbours, the one that moves least."""
        seconds = self.total(next(iter(table.seconds.values()))[:, 0])
        chosen = cheapest_by_work(seconds, self.payloads(table)[0][:, 0], count)
        kept_cuts = sorted({0, len(self) - 1, *chosen.tolist()})
        return replace(self, masks=tuple(self.masks[k] for k in kept_cuts), complete=False)._known(table.graph)

    def __len__(self) -> int:
        return len(self.masks)

    @cached_property
    def _bytes(self) -> NDArray[np.uint8]:
        """The masks as bytes, [S, layers / 8]."""
        width = (len(self.layers) + 7) // 8
        raw = np.frombuffer(b"".join(mask.to_bytes(width, "little") for mask in self.masks), dtype=np.uint8)
        return raw.reshape(len(self.masks), width)

    @cached_property
    def members(self) -> Array:
        """1 where a layer lies before a cut, [S, L]."""
        bits = np.unpackbits(self._bytes, axis=1, bitorder="little")
        return bits[:, : len(self.layers)].astype(float)

    def total(self, of_layers: Array) -> Array:
        """Sum over the layers before each cut of a quantity of all layers: [..., all layers] → [..., S]."""
        chain_columns = of_layers[..., list(self.layers)]
        if self._chain_order:  # sums in the layers' own order: what a reader adds up by hand
            return np.concatenate(
                [np.zeros((*chain_columns.shape[:-1], 1)), np.cumsum(chain_columns[..., self._chain_order], axis=-1)],
                axis=-1,
            )
        return chain_columns @ self.members.T

    @cached_property
    def _chain_order(self) -> list[int]:
        """The layers one by one, where each cut holds one more than the one before it; else empty."""
        added = [b & ~a for a, b in zip(self.masks, self.masks[1:], strict=False)]
        single = len(added) == len(self.layers) and all(mask.bit_count() == 1 for mask in added)
        return [mask.bit_length() - 1 for mask in added] if single else []

    @cached_property
    def is_chain(self) -> bool:
        """Return whether each cut holds all of the one before it."""
        return all(a & ~b == 0 for a, b in zip(self.masks, self.masks[1:], strict=False))

    def before(self, cut: int) -> set[int]:
        """The layers before a cut, those that load the data among them."""
        return {layer for k, layer in enumerate(self.layers) if self.masks[cut] >> k & 1} | self.inputs

    def between(self, first: int, last: int) -> list[int]:
        """The layers of a stage from one cut to another."""
        mask = self.masks[last] & ~self.masks[first]
        return [layer for k, layer in enumerate(self.layers) if mask >> k & 1]

    def stage_bytes(self, table: LayerTable) -> "StageBytes":
        """Bytes of a minibatch in the stages between these cuts: `LayerTable.stage_bytes`, for many at once."""
        if not table.tells_temporaries:
            saved = self.total(table.saved_bytes[:, 1] + table.held.coordinates[:, 1])
            return added_up(saved, self.total(table.parameter_bytes))
        before, count = self.members.T.astype(bool), len(self)
        known, values = np.empty(0, dtype=np.intp), np.empty((3, 0))  # stages met so far, in order, and their bytes

        def between(first: int | Index, last: int | Index) -> tuple[Array, Array, Array]:
            nonlocal known, values
            pairs = np.asarray(first) * count + last
            places = np.searchsorted(known, pairs)
            absent = np.append(known, -1)[places] != pairs
            if absent.any():
                new = np.unique(pairs[absent])
                parts = [values]
                for some in np.array_split(new, len(new) // _PAIRS + 1):
                    a, b = np.divmod(some, count)
                    parts.append(np.stack(table.stage_bytes(self.layers, [layer[b] & ~layer[a] for layer in before])))
                met = np.concatenate([known, new])
                order = np.argsort(met, kind="stable")
                known, values = met[order], np.concatenate(parts, axis=1)[:, order]
                places = np.searchsorted(known, pairs)
            saved_bytes, working, least = values[:, places]
            return saved_bytes, working, least

        return between

    def payloads(self, table: LayerTable, *, between_hosts: bool = False, held: bool = False) -> tuple[Array, Array]:
        """Bytes that cross each cut forwards and backwards, each [S, V]: `LayerTable.payload` for all cuts at once.

        They are kept for the table that was asked for last.
        """
        way = between_hosts, held
        for last, known, layer_payloads in self._payloads:
            if last is table and known == way:
                return layer_payloads
        alive, owners = self._crossing(table)
        bytes_of = table.crossing(between_hosts=between_hosts, held=held)
        coordinates = owners @ np.concatenate([bytes_of.coordinates, table.input_coordinates[None]])
        layer_payloads = alive @ bytes_of.outputs + coordinates, alive @ bytes_of.gradients
        self._payloads[:] = [
            (table, way, layer_payloads),
            *(payload for payload in self._payloads if payload[0] is table),
        ]
        return layer_payloads

    @cached_property
    def _payloads(self) -> list[tuple[LayerTable, tuple[bool, bool], tuple[Array, Array]]]:
        return []

    def _crossing(self, table: LayerTable) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return the layers whose outputs [S, layers] and coordinates [S, layers + 1: the input's] cross each cut.

        They are those of the graph, whatever its tensors' sizes: found once.
        """
        graph, key = table.graph, table.coordinate_owner
        for last, crossing in self._crossings:
            if last == key:
                return crossing
        index_of = {layer: k for k, layer in enumerate(self.layers)}
        bits = np.unpackbits(self._bytes, axis=1, bitorder="little")[:, : len(self.layers)].astype(bool)
        before = np.concatenate([bits.T, np.ones((1, len(self)), dtype=bool)])  # the last row: what loads the data
        row = [index_of.get(layer, len(self.layers)) for layer in range(len(graph.layers))]
        alive = np.zeros((len(graph.layers), len(self)), dtype=bool)
        owners = np.zeros((len(graph.layers) + 1, len(self)), dtype=bool)  # the last row: the network's input
        for layer, consumers in enumerate(graph.consumers):
            if consumers:
                used = np.logical_and.reduce([before[row[consumer]] for consumer in consumers])
                alive[layer] = before[row[layer]] & ~used
                owners[key[layer]] |= alive[layer]
        self._crossings[:] = [(key, (alive.T.copy(), owners.T.copy()))]
        return self._crossings[0][1]

    @cached_property
    def _crossings(self) -> list[tuple[tuple[int, ...], tuple[NDArray[np.bool_], NDArray[np.bool_]]]]:
        return []

    def after(self, cut: int) -> Index:
        """The cuts that hold all of this one and more."""
        if self.is_chain:
            return np.arange(cut + 1, len(self))
        holds = ~(self._bytes[cut] & ~self._bytes).any(axis=1)
        holds[cut] = False
        return np.flatnonzero(holds)

    @cached_property
    def in_order(self) -> Index:
        """The cuts between neighbours in the layers' own order."""
        cut_of = {mask: cut for cut, mask in enumerate(self.masks)}
        return np.array([cut_of[(1 << k) - 1] for k in range(len(self.layers) + 1)])

    @cached_property
    def follows(self) -> NDArray[np.bool_]:
        """[S, S]: whether cut b holds all of cut a and more."""
        if self.is_chain:
            return np.tri(len(self), k=-1, dtype=bool).T
        strict: NDArray[np.bool_] = self.members @ (1 - self.members).T == 0
        np.fill_diagonal(strict, False)
        return strict

    @cached_property
    def chains(self) -> list[Index]:
        """The cuts as few growing sequences: along each, what holds for a cut holds for those before it."""
        if self.is_chain:
            return [np.arange(len(self))]
        return [np.array(chain) for chain in min(_cover(self.masks, min), _cover(self.masks, max), key=len)]

    @cached_property
    def first_after(self) -> list[Index]:
        """For each chain, the place of the first strict superset of each cut, [S]; its length if there is none."""
        if self.is_chain:
            return [np.arange(1, len(self) + 1)]
        chains = [chain.tolist() for chain in self.chains]
        return [self._first_in(chain, chains) for chain in chains]

    def _first_in(self, chain: list[int], chains: list[list[int]]) -> Index:
        """`first_after` in one chain: larger cuts of a chain have later supersets, so places only move on."""
        masks, first = self.masks, np.empty(len(self), dtype=np.intp)
        for other in chains:
            start = 0
            for cut in other:
                mask = masks[cut]
                while start < len(chain) and (mask & ~masks[chain[start]] or masks[chain[start]] == mask):
                    start += 1
                first[cut] = start
        return first


def added_up(saved: Array, weights: Array) -> StageBytes:
    """Return what says the bytes of stages by sums over the layers before each cut: all is there at once."""

    def between(first: int | Index, last: int | Index) -> tuple[Array, Array, Array]:
        saved_bytes = saved[last] - saved[first]
        working = saved_bytes + weights[last] - weights[first]
        return saved_bytes, working, working

    return between


def cheapest_by_work(work: Array, crossing: Array, count: int) -> Index:
    """Return about `count` of the cuts: of those with about as much `work` before them the one that the least crosses.

    The last cut has all work before it.
    """
    part = np.minimum((work / max(work[-1], 1e-300) * count).astype(np.intp), count - 1)
    order = np.lexsort((crossing, part))
    return order[np.flatnonzero(np.diff(part[order], prepend=-1))]


def least_payload_order(table: LayerTable, layers: Sequence[int]) -> tuple[int, ...]:
    """A topological order that greedily keeps few bytes alive, and stays on a branch among equals."""
    sizes, of_layers = table.output_bytes[:, 0], tuple(layers)
    key = (of_layers, sizes.tobytes())
    return remembered(
        table.graph.kept, "order", key, lambda: _least_payload_order(table.graph, sizes.tolist(), of_layers)
    )


def _least_payload_order(graph: LayerGraph, size: Sequence[float], layers: Sequence[int]) -> tuple[int, ...]:
    remaining_layers = set(layers)
    waiting = {k: sum(p in remaining_layers for p in graph.inputs[k]) for k in layers}
    unused = {k: len(graph.consumers[k]) for k in layers}  # consumers that have not run yet
    index_of: dict[int, int] = {}

    def growth(k: int) -> tuple[float, int]:
        inputs = [p for p in graph.inputs[k] if p in remaining_layers]
        freed = sum(size[p] for p in inputs if unused[p] == 1)
        return (size[k] if graph.consumers[k] else 0.0) - freed, -max((index_of[p] for p in inputs), default=-1)

    ready = [k for k in layers if not waiting[k]]
    while ready:
        chosen = min(ready, key=growth)
        ready.remove(chosen)
        index_of[chosen] = len(index_of)
        for p in remaining_layers.intersection(graph.inputs[chosen]):
            unused[p] -= 1
        for c in graph.consumers[chosen]:
            waiting[c] -= 1
            if not waiting[c]:
                ready.append(c)
    return tuple(index_of)


def _cover(masks: Sequence[int], choose: Callable[..., list[int]]) -> list[list[int]]:
    """Sequences of growing masks that hold each place once; `choose` says by its last place which one grows."""
    chains: list[list[int]] = []
    for chain_index, mask in enumerate(masks):
        fitting = [chain for chain in chains if masks[chain[-1]] & ~mask == 0]
        if fitting:
            choose(fitting, key=lambda chain: chain[-1]).append(chain_index)
        else:
            chains.append([chain_index])
    return chains


def down_sets(needs: Sequence[int], limit: int) -> list[int] | None:
    """All down-sets, small ones first; None if there are more than `limit`. `needs[k]`: mask of layer k's inputs."""
    consumers: list[list[int]] = [[] for _ in needs]
    for k, need in enumerate(needs):
        for p in range(k):
            if need >> p & 1:
                consumers[p].append(k)
    level = {0: tuple(k for k, need in enumerate(needs) if not need)}  # down-set → layers that may be next
    masks_found = [0]
    while level:
        following: dict[int, tuple[int, ...]] = {}
        for mask, ready in level.items():
            for k in ready:
                grown = mask | 1 << k
                if grown not in following:
                    new = (c for c in consumers[k] if needs[c] & ~grown == 0)
                    following[grown] = (*(r for r in ready if r != k), *new)
        masks_found += sorted(following)
        if len(masks_found) > limit:
            return None
        level = following
    return masks_found
