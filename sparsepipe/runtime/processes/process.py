"""A process of a running job: its rank, its device, and what all ranks do together. It lives as long as the job.

Its position in a plan is another thing (worker/connections.py): that may change while the job continues.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..failures import wait_for
from ..wire.encryption import Encryption
from .signs_of_life import Heartbeats


@dataclass(frozen=True)
class Process:
    """A rank of a running job. `store` and `heartbeats` are None if it is the only one."""

    rank: int
    world_size: int
    device: torch.device
    timeout: float  # seconds: the longest wait for another rank
    heartbeats: Heartbeats | None = None
    store: dist.Store | None = None  # what ranks tell each other before they are connected
    address: str = "127.0.0.1"  # where other ranks reach this host
    backend: str = "gloo"  # what carries tensors between ranks, in torch.distributed's words
    hosts: tuple[tuple[int, ...], ...] = ()  # the ranks of each host, where there are several
    record: str = ""  # what the run's folder is called, where it is on another host
    encryption: Encryption | None = None  # of what ranks send to each other

    @property
    def ranks_here(self) -> tuple[int, ...]:
        """The ranks of this host."""
        return next((ranks for ranks in self.hosts if self.rank in ranks), tuple(range(self.world_size)))

    @property
    def leads_host(self) -> bool:
        """Return whether this rank does what one rank of each host does: the first of its host."""
        return self.rank == 0 or any(ranks[0] == self.rank for ranks in self.hosts)

    def sum(self, values: Tensor, *, what: str) -> Tensor:
        """Return the sum of `values` over all ranks, in place. Every rank must come here within the deadline."""
        if self.world_size > 1:
            self.finish(dist.all_reduce(values, async_op=True), what=what)
        return values

    def barrier(self, what: str) -> None:
        """Wait until every rank has come here."""
        self.sum(torch.zeros(1), what=what)

    def finish(self, work: Any, *, what: str) -> None:
        """Wait for something that several ranks do together and that was begun. Raises DeadlinePassed or PeerLost."""
        if self.heartbeats:
            self.heartbeats.tell("meet")
        message = f"{what} of rank {self.rank} waited {self.timeout:g} s for the other ranks"
        wait_for(work, time.monotonic() + self.timeout, message, peer=-1)
