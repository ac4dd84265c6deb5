"""Moves of a search on nodes of which several are identical: which one a group sits on is identified up to swapping
like nodes.

A state is what later stages use of each node. States that differ only in which of several like nodes is which lead to
the same plans, so that one of them stands for all: its nodes are sorted by what is used of them. Four nodes of 2, 1 and
1 devices have 20,736 states and 8,503,056 moves, of which 1,365 and 395,009 are left. A move's group is identified by
the places of the nodes in the state before it, and once more by those in the state after it, if it receives from the
next group (`Swaps`).
"""

from collections.abc import Sequence
from itertools import combinations_with_replacement
from math import comb, prod

import numpy as np

from ...values.costs import Array
from ..cuts import Index
from ..device_groups import DeviceClass
from .chain_search import Moves, Swaps


def like_nodes(classes: Sequence[DeviceClass]) -> list[list[list[int]]]:
    """The nodes, those that are identical together: the classes of each node, in the same order for like nodes."""
    of_node: dict[str, list[int]] = {}
    for k, device_class in enumerate(classes):
        of_node.setdefault(device_class.node.name, []).append(k)
    alike: dict[object, list[list[int]]] = {}
    for node_counts in of_node.values():
        node_counts.sort(key=lambda k: classes[k].type.name)
        key = (classes[node_counts[0]].node.link, *((classes[k].type, len(classes[k].ranks)) for k in node_counts))
        alike.setdefault(key, []).append(node_counts)
    return list(alike.values())


def num_moves(classes: Sequence[DeviceClass]) -> int:
    """Return the number of remaining moves."""
    product = 1
    for nodes in like_nodes(classes):
        each = prod((len(classes[k].ranks) + 1) * (len(classes[k].ranks) + 2) // 2 for k in nodes[0])
        product *= comb(each + len(nodes) - 1, len(nodes))
    return product


def symmetric_moves(classes: Sequence[DeviceClass], prices: Array) -> tuple[Index, Moves]:
    """Every way to use the devices, one for all that differ by like nodes: (group counts [G, classes], moves)."""
    sizes = [len(device_class.ranks) for device_class in classes]
    radix = np.cumprod([1, *(n + 1 for n in sizes[:-1])])
    parts = [_of_alike(nodes, sizes) for nodes in like_nodes(classes)]
    before, after, order = parts[0]
    for other in parts[1:]:  # every move of the ones with every move of the others
        rows, others = (k.ravel() for k in np.indices((len(before), len(other[0]))))
        before, after = before[rows] + other[0][others], after[rows] + other[1][others]
        order = np.where(other[2][others] == np.arange(len(sizes)), order[rows], other[2][others])
    adds = after - before
    moved = adds.any(axis=1)
    before, after, order, adds = before[moved], after[moved], order[moved], adds[moved]
    target = np.take_along_axis(after, order, axis=1)
    states = np.unique(np.concatenate([before @ radix, target @ radix]))
    counts = states[:, None] // radix % (np.array(sizes) + 1)
    used = counts.sum(axis=1)
    by_use = np.argsort(used, kind="stable")
    states, counts, used = states[by_use], counts[by_use], used[by_use]
    index_table = np.zeros(radix[-1] * (sizes[-1] + 1), dtype=np.intp)
    index_table[states] = np.arange(len(states))
    left = _sorted(np.array(sizes) - counts, like_nodes(classes))
    every = np.arange(1, len(index_table))
    groups: Index = every[:, None] // radix % (np.array(sizes) + 1)
    moves = Moves(
        used,
        index_table[before @ radix],
        adds @ radix - 1,
        index_table[target @ radix],
        left @ prices,
        index_table[left @ radix],
        swaps=Swaps(np.take_along_axis(adds, order, axis=1) @ radix - 1, order, radix, np.array(sizes)),
    )
    return groups, moves


def _of_alike(nodes: Sequence[Sequence[int]], sizes: Sequence[int]) -> tuple[Index, Index, Index]:
    """(what is used of each class before and after each move, the class that takes each one's place), of like nodes."""
    node_sizes = [sizes[k] + 1 for k in nodes[0]]
    states = np.stack(np.unravel_index(np.arange(prod(node_sizes)), node_sizes), axis=1)
    first, second = np.nonzero((states[:, None, :] <= states[None, :, :]).all(axis=2))  # sorted by the one before
    chosen = np.array(list(combinations_with_replacement(range(len(first)), len(nodes))), dtype=np.intp)
    into = np.argsort(second[chosen], axis=1, kind="stable")
    before, after = (np.zeros((len(chosen), len(sizes)), dtype=np.intp) for _ in range(2))
    order = np.tile(np.arange(len(sizes)), (len(chosen), 1))
    classes = np.array(nodes)
    for k, node in enumerate(nodes):
        before[:, node] = states[first[chosen[:, k]]]
        after[:, node] = states[second[chosen[:, k]]]
        order[:, node] = classes[into[:, k]]
    return before, after, order


def _sorted(counts: Index, alike: Sequence[Sequence[Sequence[int]]]) -> Index:
    """The same states with like nodes in the order in which moves have them."""
    sorted_counts = counts.copy()
    for nodes in alike:
        node_columns = np.stack([counts[:, node] for node in nodes], axis=1)  # [states, nodes, classes]
        key = np.zeros(node_columns.shape[:2], dtype=np.intp)
        for column in range(node_columns.shape[2]):
            key = key * (int(node_columns.max(initial=0)) + 1) + node_columns[:, :, column]
        rows = np.take_along_axis(node_columns, np.argsort(key, axis=1, kind="stable")[:, :, None], axis=1)
        for k, node in enumerate(nodes):
            sorted_counts[:, node] = rows[:, k]
    return sorted_counts
