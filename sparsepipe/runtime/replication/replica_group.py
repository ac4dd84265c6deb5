"""The process group of one stage's replicas: sums over them."""

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ..processes.process import Process
from .over_hosts import SumOverHosts


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
