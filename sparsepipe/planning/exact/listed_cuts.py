"""All cuts of a graph that has too many to search: listed once with what is before each and what crosses it.

The best of them become the cuts of a search: of all with about as much work before them, the one that the fewest bytes
cross. How far that can be from the best plan, cut_profile_bound.py proves from the same list.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ...values.costs import Array
from ..base import Problem
from ..cuts import Cuts, cheapest_by_work, down_sets
from .frontier_cuts import seconds_and_weights

MOST_CUTS = 300_000


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
        masks = _spread(few, [sum(1 << index_of[layer] for layer in own) for own in joined])
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


def _spread(masks: list[int], parts: list[int]) -> list[int]:
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
