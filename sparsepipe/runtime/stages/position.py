"""Where a process stands in a plan: one of its stages, among the stage's replicas."""

from dataclasses import dataclass, field

import torch

from ..processes.process import Process
from ..replication.alone import Alone
from ..replication.base import Replication
from ..replication.batch_norm import StatisticsGroup


@dataclass(frozen=True, eq=False)
class Position:
    """A process at one of its stages. Interleaved, a process has several."""

    process: Process
    stage: int
    replication: Replication = field(default_factory=Alone)
    # How packets to the next stage and to the one before are made smaller where nothing is asked for.
    compression: tuple[str, str] = ("none", "none")
    scenes: StatisticsGroup | None = None  # the ranks that share each scene with this one, if any do

    @property
    def rank(self) -> int:
        return self.process.rank

    @property
    def device(self) -> torch.device:
        return self.process.device
