"""Moves of a search on nodes of which several are identical: which one a group sits on is identified up to swapping
like nodes.

A state is what later stages use of each node. States that differ only in which of several like nodes is which lead to
the same plans, so that one of them stands for all: its nodes are sorted by what is used of them. Four nodes of 2, 1 and
1 devices have 20,736 states and 8,503,056 moves, of which 1,365 and 395,009 are left. A move's group is identified by
the places of the nodes in the state before it, and once more by those in the state after it, if it receives from the
next group (`Swaps`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, product
from math import comb, prod

import numpy as np

from ...values.cluster import Cluster, Link, Node
from ...values.costs import Array, averaging_line
from ..base import Problem
from ..cuts import Cuts, Index
from ..device_groups import MAX_SHARE, DeviceClass, DeviceGroups, device_classes
from .chain_search import Moves, Swaps
from .stage_cost_tables import StageModel, default_model


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


MOST_CELLS = 1_000_000  # groups × cuts
_MOST_GROUPS = 10_000  # all of them; else those of several types up to some size are
_MOST_LISTED = 2_000
ON_A_NODE, SPREAD = 0, 1  # placements


# Devices of all nodes by their types alone, for bounds if there are too many nodes and types to try each place
@dataclass(frozen=True, slots=True)
class Fluid:
    """Groups of several types and `least` devices or more, up to some number, that are not listed one by one.

    Such a group cannot do more than the sum of its devices, whatever the shares, and spends at least this much besides.
    """

    least: int
    weight_rate: float  # seconds of a byte of weights, for averaging
    fixed: float  # seconds


@dataclass(frozen=True, eq=False)
class JoinedNodes:
    """The cost model of groups by type; each row of `counts` has the devices of each of the model's types."""

    model: StageModel
    counts: Index  # [G, T]
    available: Index  # [T]
    fluids: tuple[Fluid, ...]  # none where every group is listed

    @classmethod
    def of(cls, problem: Problem, cuts: Cuts, *, most_groups: int = _MOST_GROUPS) -> "JoinedNodes":
        """Join the nodes of a problem, for a chain of cuts."""
        nodes, network = problem.cluster.nodes, problem.cluster.network
        kinds = tuple(device.type for device in problem.cluster.devices)
        joined = Cluster((Node("all", kinds, best_link(problem.cluster)),), network)
        pseudo = replace(problem, cluster=joined, easier=len(nodes) > 1)
        classes = device_classes(joined)
        names = [device_class.type.name for device_class in classes]
        sizes = [[sum(kind.name == name for kind in node.device_types) for name in names] for node in nodes]
        available = np.array(sizes).sum(axis=0)
        counts, listed = _counts(available, min(most_groups, MOST_CELLS // len(cuts)))
        fitting = np.logical_or.reduce(
            [(counts <= size_counts).all(axis=1) for size_counts in np.unique(sizes, axis=0)]
        )
        spreading = (counts.sum(axis=1) > 1) & (len(nodes) > 1)
        every = np.concatenate([counts[fitting], counts[spreading]])
        placement = np.repeat([ON_A_NODE, SPREAD], [fitting.sum(), spreading.sum()])
        groups = replace(DeviceGroups.of(pseudo, classes, every), placement=placement)
        spread = _Spread(problem.cluster, max(map(sum, sizes)), problem.num_microbatches if problem.synchronous else 0)
        model = spread.model(default_model(pseudo, cuts, groups), groups)
        return cls(model, every, available, spread.fluids(listed, int(available.sum())))


@dataclass(frozen=True, slots=True)
class _Spread:
    """Lower bounds for groups that span several nodes of a cluster."""

    cluster: Cluster
    largest: int  # devices of a node
    minibatches: int  # of an update; 0: a round of the replicas

    def model(self, model: StageModel, groups: DeviceGroups) -> StageModel:
        """The model of groups on one node, where those that are spread average over the network, and send by it."""
        spread = groups.placement == SPREAD
        sizes, of_size = np.unique(groups.sizes, return_inverse=True)
        least = np.array([self.averaging(int(size)) for size in sizes])[of_size.ravel()].T
        on_a_node = groups.averaging(self.cluster.network)
        each = self.minibatches or groups.rounds
        more = [np.where(spread, a - b, 0.0) / each for a, b in zip(least, on_a_node, strict=True)]
        port = np.where(spread, np.maximum(groups.device_port, 1 / len(self.cluster.nodes)), 1.0)
        weight_rates, fixed = model.weight_rates + more[0], model.fixed + more[1]
        return replace(model, weight_rates=weight_rates, fixed=fixed, network_port=port)

    def averaging(self, size: int) -> tuple[float, float]:
        """`costs.averaging_line` of so many devices on several nodes, each the least of all ways to spread them."""
        network, inside = self.cluster.network, best_link(self.cluster)
        hosts = np.arange(2, max(min(len(self.cluster.nodes), size), 2) + 1)
        most = -(-size // hosts)
        hosts, most = (k[(most <= self.largest) | (hosts == hosts[-1])] for k in (hosts, most))
        outside = (1 / network.bandwidth, network.latency)
        each, once = averaging_line(most, hosts, (1 / inside.bandwidth, inside.latency), outside)
        return float(each.min()), float(once.min())

    def fluids(self, listed: int, whole: int) -> tuple[Fluid, ...]:
        """Sizes from `listed` on, each range up to twice as large as it begins.

        They average once in as many minibatches as each device has `MAX_SHARE` of, at best.
        """
        fluid_groups, least, inside = list[Fluid](), listed + 1, best_link(self.cluster)
        while least <= whole:
            sizes = range(least, min(2 * least - 1, whole) + 1)
            ways = [(self.averaging(size), size) for size in sizes if len(self.cluster.nodes) > 1]
            for size in sizes:
                if size <= self.largest:
                    each, once = averaging_line(size, 1, (1 / inside.bandwidth, inside.latency), (0.0, 0.0))
                    ways.append(((float(each), float(once)), size))
            rates = [(each / size / MAX_SHARE, once / size / MAX_SHARE) for (each, once), size in ways]
            fluid_groups.append(Fluid(least, min(each for each, _ in rates), min(once for _, once in rates)))
            least = sizes[-1] + 1
        return tuple(fluid_groups)


def best_link(cluster: Cluster) -> Link:
    """The least latency and the highest bandwidth of all links that join two devices."""
    links = [cluster.network, *(node.link for node in cluster.nodes if len(node.device_types) > 1)]
    return Link(max(link.bandwidth for link in links), min(link.latency for link in links))


def _counts(available: Index, most: int) -> tuple[Index, int]:
    """(groups, the size up to which every one of several types is among them: all devices where all are)."""
    if prod(int(count) + 1 for count in available) <= most:
        every = np.array(list(product(*(range(count + 1) for count in available))))
        return every[every.sum(axis=1) > 0], int(available.sum())
    alone = [
        np.eye(len(available), dtype=np.intp)[kind] * n
        for kind, class_count in enumerate(available)
        for n in range(1, class_count + 1)
    ]
    size, mixed = 1, np.zeros((0, len(available)), dtype=np.intp)
    while True:
        larger = _of_size(available, size + 1)
        if len(alone) + len(mixed) + len(larger) > min(most, _MOST_LISTED) or size == available.sum():
            return np.concatenate([np.array(alone), mixed]), size
        size, mixed = size + 1, np.concatenate([mixed, larger])


def _of_size(available: Index, size: int) -> Index:
    """Groups of so many devices of several types."""
    rows = np.zeros((1, 0), dtype=np.intp)
    for kind, class_count in enumerate(available.tolist()):
        last = kind == len(available) - 1
        left = size - rows.sum(axis=1)
        rows = np.array(
            [
                (*row, n)
                for row, room in zip(rows.tolist(), left.tolist(), strict=True)
                for n in (range(room, room + 1) if last else range(min(class_count, room) + 1))
                if n <= class_count
            ],
            dtype=np.intp,
        ).reshape(-1, kind + 1)
    return rows[(rows > 0).sum(axis=1) > 1]
