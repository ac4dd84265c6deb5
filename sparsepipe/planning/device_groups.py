"""Device groups: the sets of devices that could replicate one stage, as arrays that a search can use.

Devices of one type on one node are interchangeable and form a class: a group is a count for each class. The shares of
unlike replicas are the small integers closest in proportion to the speeds of their types over the whole network.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import gcd, lcm

import numpy as np

from ..values.cluster import Cluster, DeviceType, Link, Node
from ..values.costs import Array, averaging_line
from .base import Problem
from .cuts import Index

MAX_SHARE = 4
COMES, GOES = 1, 2  # what a stage receives from the one before, and sends to the one after, crosses the network


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """Devices that are interchangeable."""

    node: Node
    type: DeviceType
    ranks: tuple[int, ...]


def device_classes(cluster: Cluster) -> tuple[DeviceClass, ...]:
    """The classes of a cluster, in order of their first rank."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for device in cluster.devices:
        ranks.setdefault((device.node.name, device.type.name), []).append(device.rank)
    return tuple(
        DeviceClass(
            cluster.devices[ranks_of_class[0]].node, cluster.devices[ranks_of_class[0]].type, tuple(ranks_of_class)
        )
        for ranks_of_class in ranks.values()
    )


@dataclass(frozen=True, eq=False)
class DeviceGroups:
    """Candidate device groups, one row each: group g has `counts[g, c]` devices of class c.

    A replica of type t in it has the share `shares[g, t]`.
    """

    classes: tuple[DeviceClass, ...]
    types: tuple[str, ...]
    counts: Index  # [G, classes]
    shares: Index  # [G, types]; 0 where the group has none of the type
    placement: Index  # [G]: the node all its devices sit on, or the number of nodes where they spread
    num_by_server: int = 0  # the last groups of `with_servers`: whole nodes, each with the same share
    ends: Index | None = None  # [G], of `with_ends`: COMES + GOES; None where it does not matter

    @classmethod
    def of(
        cls, problem: Problem, classes: Sequence[DeviceClass], counts: Index, *, even: bool = False
    ) -> "DeviceGroups":
        """Groups of the given counts; `even`: equal shares whatever the speeds."""
        types = tuple(dict.fromkeys(c.type.name for c in classes))
        of_type = np.zeros((len(counts), len(types)), dtype=np.intp)
        for column, device_class in enumerate(classes):
            of_type[:, types.index(device_class.type.name)] += counts[:, column]
        totals = np.array([problem.total_seconds(name) for name in types])
        shares = (of_type > 0).astype(np.intp) if even else shares_by_speed(of_type, totals)
        nodes = list(dict.fromkeys(c.node.name for c in classes))
        on_node = np.zeros((len(counts), len(nodes)), dtype=np.intp)
        for column, device_class in enumerate(classes):
            on_node[:, nodes.index(device_class.node.name)] += counts[:, column]
        placement = np.where((on_node > 0).sum(axis=1) == 1, on_node.argmax(axis=1), len(nodes))
        return cls(tuple(classes), types, counts, shares, placement)

    def __len__(self) -> int:
        return len(self.counts)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        return tuple({c.node.name: c.node for c in self.classes}.values())

    @cached_property
    def sizes(self) -> Index:
        return self.counts.sum(axis=1)

    def with_servers(self) -> tuple["DeviceGroups", Index]:
        """Add groups of two or more whole nodes that share evenly by node, not by device.

        Returns the longer table, and for each added group the index of the group of the same devices in this one.
        """
        whole = np.stack([[len(c.ranks) * (c.node.name == node.name) for c in self.classes] for node in self.nodes])
        chosen = [pick for pick in product((0, 1), repeat=len(self.nodes)) if sum(pick) > 1]
        row_of = {tuple(row): k for k, row in enumerate(self.counts.tolist())}
        like = np.array([row_of[tuple((np.array(pick) @ whole).tolist())] for pick in chosen], dtype=np.intp)
        every = np.concatenate([np.arange(len(self)), like])
        more = replace(self, counts=self.counts[every], shares=self.shares[every], placement=self.placement[every])
        return replace(more, num_by_server=len(like)), like

    def with_ends(self) -> tuple["DeviceGroups", Index]:
        """Tell each group by whether the stages before and after it are on other nodes.

        Returns the longer table, and for each added group the index of the group of the same devices in this one. If
        no node has two devices, what is sent always crosses the network, and none is added.
        """
        count = len(self)
        if all(len(node.device_types) == 1 for node in self.nodes):
            return replace(self, ends=np.full(count, COMES + GOES)), np.zeros(0, dtype=np.intp)
        every = np.tile(np.arange(count), COMES + GOES + 1)
        more = replace(self, counts=self.counts[every], shares=self.shares[every], placement=self.placement[every])
        return replace(more, ends=np.repeat(np.arange(COMES + GOES + 1), count)), every[count:]

    def in_this_order(self) -> "DeviceGroups":
        """Tell each group's ends where they are a pipeline's stages, one after the other."""
        apart = (self.placement[1:] != self.placement[:-1]) | (self.placement[1:] == len(self.nodes))
        ends = COMES * np.concatenate([[False], apart]) + GOES * np.concatenate([apart, [False]])
        return replace(self, ends=ends)

    def with_shares(self) -> tuple["DeviceGroups", Index]:
        """Add each group of mixed types once more for every other ratio of shares up to `MAX_SHARE`.

        Returns the longer table, and for each added group the index of the group of the same devices in this one.
        """
        like, added = [], []
        for group, group_shares in enumerate(self.shares.tolist()):
            kinds = [kind for kind, share in enumerate(group_shares) if share]
            for options in product(range(1, MAX_SHARE + 1), repeat=len(kinds)):
                other = [0] * len(group_shares)
                for kind, share in zip(kinds, options, strict=True):
                    other[kind] = share
                if gcd(*options) == 1 and other != group_shares:
                    like.append(group)
                    added.append(other)
        every = np.concatenate([np.arange(len(self)), np.array(like, dtype=np.intp)])
        shares = np.concatenate([self.shares, np.array(added, dtype=np.intp).reshape(-1, len(self.types))])
        ends = None if self.ends is None else self.ends[every]
        more = replace(self, counts=self.counts[every], shares=shares, placement=self.placement[every], ends=ends)
        return more, every[len(self) :]

    @cached_property
    def on_node(self) -> Index:
        """Devices of each group on each node, [G, nodes]."""
        return np.stack(
            [self.counts[:, [c.node.name == node.name for c in self.classes]].sum(axis=1) for node in self.nodes],
            axis=1,
        )

    @cached_property
    def of_type(self) -> Index:
        """Devices of each group of each type, [G, types]."""
        kinds = np.array([self.types.index(c.type.name) for c in self.classes])
        return np.stack([self.counts[:, kinds == k].sum(axis=1) for k in range(len(self.types))], axis=1)

    @cached_property
    def class_shares(self) -> Index:
        """Share of one replica of each class, [G, classes]; 0 if the group has none."""
        column = [self.types.index(c.type.name) for c in self.classes]
        shares = self.shares[:, column] * (self.counts > 0)
        node = [self.nodes.index(c.node) for c in self.classes]
        for group in range(len(self) - self.num_by_server, len(self)):
            sizes = self.on_node[group]
            shares[group] = (lcm(*sizes[sizes > 0].tolist()) // np.maximum(sizes, 1))[node] * (self.counts[group] > 0)
        return shares

    @cached_property
    def rounds(self) -> Index:
        """Minibatches after which every replica has had its share."""
        return (self.counts * self.class_shares).sum(axis=1)

    @cached_property
    def device_port(self) -> Array:
        """Share of all minibatches that the busiest device carries."""
        return self.class_shares.max(axis=1) / self.rounds

    @cached_property
    def network_port(self) -> Array:
        """Share of all minibatches that the busiest node carries."""
        load = self.counts * self.class_shares
        on_node = [load[:, [c.node.name == node.name for c in self.classes]].sum(axis=1) for node in self.nodes]
        return np.max(on_node, axis=0) / self.rounds

    @cached_property
    def inside_link(self) -> tuple[Array, Array]:
        """(seconds per byte, latency) of the slowest link within nodes that have several of a group's devices, [G]."""
        per_byte, latency = np.zeros(len(self)), np.zeros(len(self))
        for node, devices in zip(self.nodes, self.on_node.T, strict=True):
            per_byte = np.where(devices > 1, np.maximum(per_byte, 1 / node.link.bandwidth), per_byte)
            latency = np.where(devices > 1, np.maximum(latency, node.link.latency), latency)
        return per_byte, latency

    def averaging(self, network: Link) -> tuple[Array, Array]:
        """(seconds for each byte of weights, seconds besides) of averaging over each group, as costs.averaging_time."""
        most, hosts = self.on_node.max(axis=1), (self.on_node > 0).sum(axis=1)
        return averaging_line(most, hosts, self.inside_link, (1 / network.bandwidth, network.latency))

    def ring_seconds(self, network: Link) -> Array:
        """Seconds per byte of the slowest link that a ring over each group uses, [G]."""
        per_byte, _ = self.inside_link
        return np.where(self.placement == len(self.nodes), np.maximum(per_byte, 1 / network.bandwidth), per_byte)

    def ranks(self, group: int, taken: set[int]) -> tuple[list[int], list[int]]:
        """Concrete ranks that are not `taken`, and their shares."""
        chosen = []
        for column, device_class in enumerate(self.classes):
            free = [rank for rank in device_class.ranks if rank not in taken]
            share = int(self.class_shares[group, column])
            chosen += [(rank, share) for rank in free[: self.counts[group, column]]]
        chosen.sort()
        return [rank for rank, _ in chosen], [share for _, share in chosen]


def shares_by_speed(of_type: Index, totals: Array) -> Index:
    """Integer shares up to `MAX_SHARE` that let a mixed stage keep the best pace; the shortest round among equals."""
    shares = np.zeros_like(of_type)
    present = of_type > 0
    for mix in np.unique(present, axis=0):
        rows = (present == mix).all(axis=1)
        kinds = np.flatnonzero(mix)
        options = np.array(list(product(range(1, MAX_SHARE + 1), repeat=len(kinds))))
        options = options[np.argsort(options.sum(axis=1), kind="stable")]
        pace = (options * totals[kinds]).max(axis=1)[None, :] / (of_type[rows][:, kinds] @ options.T)
        best = (pace <= pace.min(axis=1, keepdims=True) * (1 + 1e-12)).argmax(axis=1)
        shares[np.ix_(rows, kinds)] = options[best]
    return shares
