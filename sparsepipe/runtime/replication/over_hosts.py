"""Sums over replicas of which several share a host: within each host first, then over the network, and back.

    host a   r0  r1  r4          host b   r2  r3
              └───┼───┘                    └──┤         r0 + r1 + r4, r2 + r3       within each host
                  a ──────── network ──────── b         (r0 + r1 + r4) + (r2 + r3)  between the first ranks of hosts
              ┌───┼───┐                    ┌──┤
             r0  r1  r4                   r2  r3        what the first rank of a host has, the others get

So the gradients cross the network once a host, and not once a replica. Values are added in the order of the ranks of a
host, then in that of the hosts' first ranks: the bits of a sum are those of this order, whoever is slow.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..in_order import Begun, InOrder


def replicas_by_host(ranks: Iterable[int], hosts: Iterable[Sequence[int]]) -> list[list[int]]:
    """Return a stage's ranks on each host that has any, hosts in the order of their first; none where none is shared.

    A stage whose replicas are all on one host, or each on a host of its own, has nothing to sum by host.
    """
    found = sorted(sorted(set(ranks) & set(own)) for own in hosts)
    found = [own for own in found if own]
    return found if len(found) > 1 and max(map(len, found)) > 1 else []


@dataclass(frozen=True, eq=False)
class SumOverHosts:
    """One replica's part in such sums, which a thread of its own works through in the order in which they begin.

    `within`: the group of its host's replicas, None if it is the only one there; `between`: that of the hosts' first
    ranks, None on the other ranks; `first`: the first rank of its host.
    """

    within: Any
    between: Any
    first: int
    _thread: InOrder = field(default_factory=partial(InOrder, "sums over hosts"))

    @property
    def groups(self) -> list[Any]:
        """The process groups that it uses."""
        return [group for group in (self.within, self.between) if group is not None]

    def start(self, values: Tensor) -> Begun:
        """Begin to sum `values` [n] over the replicas, in place."""
        return self._thread.begin(partial(self._sum, values))

    def close(self) -> None:
        """End the thread, once it has done what has begun."""
        self._thread.close()

    def _sum(self, values: Tensor) -> None:
        flat = values.cpu()  # itself, unless it is on a GPU: over hosts gloo carries it
        if self.within is not None:
            sum_in_order(flat, self.within)
        if self.between is not None:
            sum_in_order(flat, self.between)
        if self.within is not None:
            dist.broadcast(flat, self.first, group=self.within)
        if flat is not values:
            values.copy_(flat)


def sum_in_order(values: Tensor, group: Any) -> None:
    """Make `values` [n], on a CPU, their sum over a group, each element added up in the order of the group's ranks.

    Each rank sums a segment, of which it gets the others', and gives it to all: as many bytes as a ring all-reduce
    sends, whose order is another one in each segment.
    """
    count = dist.get_world_size(group)
    size = -(-len(values) // count)
    padded = values.new_zeros(count * size)
    padded[: len(values)] = values
    received = torch.empty_like(padded)
    dist.all_to_all_single(received, padded, group=group)
    first, *others = received.view(count, size)
    for other in others:
        first += other
    dist.all_gather(list(padded.view(count, size)), first, group=group)
    values.copy_(padded[: len(values)])
