"""Replicas that sum their gradients with one another: the same weights on all of them after every update."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .base import ReplicaGroup, StatisticsGroup

_BUCKET_BYTES = 2**22  # of gradients that are summed over the replicas at once


class AllReduce:
    """The member of `Replication` that torch.nn.parallel.DistributedDataParallel is: gradients in buckets, summed by an
    all-reduce each, which begins while the backward continues.
    """

    overlaps = True

    def __init__(self, replicas: ReplicaGroup, *, num_replicas: int, statistics: StatisticsGroup | None = None) -> None:
        """`statistics`: the same ranks, for batch norms that share theirs within a pass."""
        self.num_replicas, self.statistics = num_replicas, statistics
        self._replicas = replicas
        self._averaging: Averaging | None = None  # of the round whose last backward is done or goes on

    @contextmanager
    def overlap(self, weights: Sequence[Tensor], gathered: Sequence[Tensor | None] | None) -> Iterator[None]:
        self._averaging = Averaging(weights, gathered, self._replicas)
        with self._averaging.watching():
            yield

    def complete(self, gradients: Sequence[Tensor | None]) -> None:
        assert self._averaging is not None
        self._averaging.complete(gradients)

    def mean(
        self,
        weights: Sequence[Tensor],
        gathered: Callable[[], list[Tensor | None]],
        num_minibatches: int,
        *,
        what: str,
    ) -> list[Tensor | None]:
        averaging, self._averaging = self._averaging, None
        if averaging is None:
            averaging = Averaging(weights, None, self._replicas)
            averaging.complete(gathered())
        means = averaging.mean(num_minibatches, what=what)
        if not means:  # a stage without weights: its update is one of all replicas like any other
            self._replicas.sum(torch.zeros(1), what=what)
        return means

    @torch.no_grad()
    def average_buffers(self, buffers: Sequence[Tensor], share: float) -> None:
        buffers = [buffer for buffer in buffers if buffer.is_floating_point()]
        if not buffers:
            return
        flat = torch.cat([buffer.reshape(-1) for buffer in buffers]).mul_(share)
        self._replicas.sum(flat, what="averaging of batch-norm statistics")
        for buffer, part in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
            buffer.copy_(part.view(buffer.shape))

    def broadcast(self, values: Tensor, source: int, *, what: str) -> None:
        self._replicas.broadcast(values, source, what=what)

    def take_waited(self) -> float:
        return self.statistics.take_waited() if self.statistics else 0.0


class Averaging:
    """The gradients of one round on their way: summed over the stage's replicas bucket by bucket, from the last layer's
    to the first's, as they come out of the round's last backward.

    A replica that has no gradient of a weight brings zeros. A bucket ends with a number for each of its weights, 1 on
    replicas that have a gradient: if none has, the mean is None, as no step is to be made of zeros. The mean is the sum
    by the round's number of minibatches, so that each weighs the same, whatever the shares.
    """

    def __init__(
        self, weights: Sequence[Tensor], before: Sequence[Tensor | None] | None, replicas: ReplicaGroup
    ) -> None:
        """`before`: the sum over the round's earlier minibatches, if there were any."""
        self._weights, self._before, self._replicas = list(weights), before, replicas
        self._buckets = _buckets(self._weights)
        self._bucket_of = {place: k for k, places in enumerate(self._buckets) for place in places}
        self._missing = [len(places) for places in self._buckets]
        self._found: dict[int, Tensor | None] = {}
        self._under_way: list[tuple[Tensor, Any]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take each weight's gradient as soon as autograd has it."""
        hooks = [
            weight.register_hook(lambda gradient, place=place: self._take(place, gradient))
            for place, weight in enumerate(self._weights)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def complete(self, gradients: Sequence[Tensor | None]) -> None:
        """Take those that did not come by themselves."""
        for place, gradient in enumerate(gradients):
            if place not in self._found:
                self._take(place, gradient)

    def mean(self, count: int, *, what: str) -> list[Tensor | None]:
        """Wait for the sums; return the means over a round of `count` minibatches. Raises DeadlinePassed, PeerLost."""
        means: list[Tensor | None] = [None] * len(self._weights)
        for places, (flat, work) in zip(self._buckets, self._under_way, strict=True):
            self._replicas.finish(work, what=what)
            reached = flat[-len(places) :].tolist()
            if count > 1:
                flat.div_(count)
            parts = flat.split([*(self._weights[place].numel() for place in places), len(places)])
            for place, part, has_gradient in zip(places, parts, reached, strict=False):
                means[place] = part.view(self._weights[place].shape) if has_gradient else None
        return means

    def _take(self, place: int, gradient: Tensor | None) -> None:
        before = None if self._before is None else self._before[place]
        if gradient is None or before is None:
            gradient = before if gradient is None else gradient
        else:
            gradient = before + gradient
        self._found[place] = gradient
        self._missing[self._bucket_of[place]] -= 1
        while len(self._under_way) < len(self._buckets) and not self._missing[len(self._under_way)]:
            flat = self._flat(self._buckets[len(self._under_way)])  # every replica sums the buckets in this order
            self._under_way.append((flat, self._replicas.start_sum(flat)))

    def _flat(self, places: Sequence[int]) -> Tensor:
        found = [self._found[place] for place in places]
        parts = [
            torch.zeros_like(self._weights[place]) if own is None else own
            for place, own in zip(places, found, strict=True)
        ]
        reached = torch.tensor([float(own is not None) for own in found], dtype=parts[0].dtype, device=parts[0].device)
        return torch.cat([*(part.reshape(-1) for part in parts), reached])


def _buckets(weights: Sequence[Tensor]) -> list[list[int]]:
    """Share the weights' places out to buckets of one data type each, from the last to the first."""
    buckets: list[list[int]] = []
    room = 0
    for place in reversed(range(len(weights))):
        weight = weights[place]
        if room < weight.nbytes or weights[buckets[-1][-1]].dtype != weight.dtype:
            buckets.append([])
            room = _BUCKET_BYTES
        buckets[-1].append(place)
        room -= weight.nbytes
    return buckets
