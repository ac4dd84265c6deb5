"""What the batch norms of a stage's replicas exchange within a forward or a backward."""

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..processes.process import Process


@dataclass
class StatisticsGroup:
    """The replicas of a stage whose batch norms share statistics: the member of networks.batch_norm.Group for training.

    It counts the seconds that they wait for each other, which belong to no layer.
    """

    group: Any
    process: Process
    on_device: bool = False  # NCCL: queued on the GPU, where NCCL's own watch keeps the deadline
    _waited: float = 0.0

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

    def _finish(self, work: Any) -> None:
        if self.on_device:
            work.wait()
            return
        start, heartbeats = time.monotonic(), self.process.heartbeats
        if heartbeats is None:
            self.process.finish(work, what="batch norm")
        else:
            before = heartbeats.of(self.process.rank)
            self.process.finish(work, what=f"batch norm in the {before.kind} of minibatch {before.minibatch}")
            heartbeats.tell(before.kind, before.minibatch, before.peer)
        self._waited += time.monotonic() - start
