"""What the ranks of a stage exchange within a forward or a backward: statistics of batch norms, halos of scenes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..processes.process import Process


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
