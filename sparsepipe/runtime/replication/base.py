"""What keeps the weights of a stage's replicas consistent: what they average, when, and with whom."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ...networks.batch_norm import Group
from ..processes.process import Process
from .over_hosts import SumOverHosts


class Replication(Protocol):
    """One replica of a stage, among the others.

    A round is the minibatches of one update (`Program.members`), shared out to the replicas. All replicas come to
    `mean` once a round, with the same weights before it and the same mean after it. Whatever waits for other replicas
    raises DeadlinePassed or PeerLost.
    """

    @property
    def num_replicas(self) -> int: ...

    @property
    def overlaps(self) -> bool:
        """Return whether gradients set out while the last backward of a round continues, within `overlap`."""
        ...

    def overlap(
        self, weights: Sequence[Tensor], gathered: Sequence[Tensor | None] | None
    ) -> AbstractContextManager[None]:
        """Let gradients set out as autograd finds them: to be entered around this replica's last backward of a round.

        `weights` are the leaves that the backward meets, `gathered` the sums of their gradients over the replica's
        earlier minibatches of the round, if there were any. Only where it `overlaps`; `complete` follows.
        """
        ...

    def complete(self, gradients: Sequence[Tensor | None]) -> None:
        """Let those gradients of that backward set out which have not yet: `gradients` has an entry for each weight."""
        ...

    def mean(
        self,
        weights: Sequence[Tensor],
        gathered: Callable[[], list[Tensor | None]],
        num_minibatches: int,
        *,
        what: str,
    ) -> list[Tensor | None]:
        """Return the mean gradient of each weight over a round of `num_minibatches`: each minibatch weighs the same.

        None for a weight that the loss of no minibatch of the round reaches, on no replica. If some reach it, the
        others count as zeros. `gathered` gives the sums over this replica's minibatches; it is not asked if they have
        set out. `what` is named if it waits too long.
        """
        ...

    def average_buffers(self, buffers: Sequence[Tensor], share: float) -> None:
        """Make floating-point buffers, in place, their mean over the replicas, weighted by shares that sum to 1."""
        ...

    def broadcast(self, values: Tensor, source: int, *, what: str) -> None:
        """Make `values`, in place, those of the replica on rank `source`. All replicas come here."""
        ...

    @property
    def statistics(self) -> Group | None:
        """With whom batch norms share the statistics of a minibatch; None: with no one."""
        ...

    def take_waited(self) -> float:
        """Return the seconds that batch norms waited for other replicas since the last call."""
        ...


@dataclass(frozen=True, eq=False)
class ReplicaGroup:
    """The ranks that hold a stage, more than one, of which this process is one."""

    process: Process
    group: Any  # torch.distributed's
    over_hosts: SumOverHosts | None = None  # where several of the ranks share a host, and not all do

    def sum(self, values: Tensor, *, what: str) -> Tensor:
        """Return the sum of `values` over the replicas, in place. Raises DeadlinePassed or PeerLost."""
        self.finish(self.start_sum(values), what=what)
        return values

    def broadcast(self, values: Tensor, source: int, *, what: str) -> None:
        """Make `values`, in place, those of the replica on rank `source`. Raises DeadlinePassed or PeerLost."""
        self.finish(dist.broadcast(values, source, group=self.group, async_op=True), what=what)

    def start_sum(self, values: Tensor) -> Any:
        """Begin to sum `values` over the replicas, in place; `finish` waits for it."""
        if self.over_hosts:
            return self.over_hosts.start(values)
        return dist.all_reduce(values, group=self.group, async_op=True)

    def finish(self, work: Any, *, what: str) -> None:
        """Wait for a sum that was begun. Raises DeadlinePassed or PeerLost."""
        self.process.finish(work, what=what)

    @property
    def groups(self) -> list[Any]:
        """The process groups that it uses."""
        return [self.group, *(self.over_hosts.groups if self.over_hosts else [])]


@dataclass
class StatisticsGroup:
    """The ranks of a stage that share statistics, or scenes: networks.batch_norm.Group, engines.native.SceneGroup.

    It counts the seconds that they wait for each other, which belong to no layer, and the bytes of halos.
    """

    group: Any
    process: Process
    on_device: bool = False  # NCCL: queued on the GPU, where NCCL's own watch keeps the deadline
    sent_bytes: int = 0  # to the other parts of scenes
    _waited: float = 0.0

    @property
    def part(self) -> int:
        return dist.get_rank(self.group)

    @property
    def num_parts(self) -> int:
        return dist.get_world_size(self.group)

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Send `sent[p]` rows to part p; return the rows received, by part. Raises DeadlinePassed or PeerLost."""
        found = rows.new_empty(sum(received), *rows.shape[1:])
        self.sent_bytes += rows[0].nbytes * (sum(sent) - sent[self.part]) if len(rows) else 0
        self._finish(
            dist.all_to_all_single(
                found, rows.contiguous(), list(received), list(sent), group=self.group, async_op=True
            ),
            what="the other parts of a scene",
        )
        return found

    def take_sent(self) -> int:
        """Return the bytes sent to the other parts of scenes since the last call."""
        sent, self.sent_bytes = self.sent_bytes, 0
        return sent

    def take_waited(self) -> float:
        """Return the seconds waited for other replicas since the last call: none on a GPU, where no one waits here."""
        waited, self._waited = self._waited, 0.0
        return waited

    def gather(self, own: Tensor) -> list[Tensor]:
        """Return `own` of every replica, in rank order. Raises DeadlinePassed or PeerLost."""
        found = [torch.empty_like(own) for _ in range(dist.get_world_size(self.group))]
        self._finish(dist.all_gather(found, own, group=self.group, async_op=True))
        return found

    def sum(self, own: Tensor) -> None:
        """Make `own` the sum over the replicas. Raises DeadlinePassed or PeerLost."""
        self._finish(dist.all_reduce(own, group=self.group, async_op=True))

    def _finish(self, work: Any, *, what: str = "batch norm") -> None:
        if self.on_device:
            work.wait()
            return
        start, heartbeats = time.monotonic(), self.process.heartbeats
        if heartbeats is None:
            self.process.finish(work, what=what)
        else:
            before = heartbeats.of(self.process.rank)
            self.process.finish(work, what=f"{what} in the {before.kind} of minibatch {before.minibatch}")
            heartbeats.tell(before.kind, before.minibatch, before.peer)
        self._waited += time.monotonic() - start


class Alone:
    """The member of `Replication` for a stage without replicas."""

    num_replicas = 1
    overlaps = False
    statistics = None

    def overlap(
        self, weights: Sequence[Tensor], gathered: Sequence[Tensor | None] | None
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def complete(self, gradients: Sequence[Tensor | None]) -> None:
        """Nothing sets out."""

    def mean(
        self,
        weights: Sequence[Tensor],
        gathered: Callable[[], list[Tensor | None]],
        num_minibatches: int,
        *,
        what: str,
    ) -> list[Tensor | None]:
        gradients = gathered()
        if num_minibatches > 1 and (there := [gradient for gradient in gradients if gradient is not None]):
            torch._foreach_div_(there, num_minibatches)
        return gradients

    def average_buffers(self, buffers: Sequence[Tensor], share: float) -> None:
        """They are as they should be."""

    def broadcast(self, values: Tensor, source: int, *, what: str) -> None:
        """They are its own."""

    def take_waited(self) -> float:
        return 0.0
