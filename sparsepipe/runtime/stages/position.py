"""Where a process stands in a plan: one of its stages, and what it shares with the stage's other replicas."""

from dataclasses import dataclass

import torch

from ..processes.process import Process
from ..replication.batch_norm import Replicas
from ..replication.replica_group import ReplicaGroup


@dataclass(frozen=True, eq=False)
class Position:
    """A process at one of its stages. Interleaved, a process has several."""

    process: Process
    stage: int
    replicas: ReplicaGroup | None = None  # None: it has the stage alone
    statistics: Replicas | None = None  # where batch norms share theirs
    # How packets to the next stage and to the one before are made smaller where nothing is asked for.
    compression: tuple[str, str] = ("none", "none")

    @property
    def rank(self) -> int:
        return self.process.rank

    @property
    def device(self) -> torch.device:
        return self.process.device
