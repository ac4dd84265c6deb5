"""What the parts of a worker share: a value handed to them, so that none of them needs to know the worker."""

from dataclasses import dataclass

from ...values.plan import Plan
from ..processes.process import Process
from ..reporting.memory import PeakMemory
from ..reporting.recorder import Recorder
from ..workloads.base import Workload
from .packet_exchange import PacketExchange
from .straggler import Straggler


@dataclass(frozen=True, eq=False)
class WorkerContext:
    """One rank's view of a run: its plan, what it trains on, and what carries, records and times its work."""

    plan: Plan
    process: Process
    workload: Workload
    exchange: PacketExchange
    recorder: Recorder
    memory: PeakMemory
    timeout: float  # seconds, the longest wait for another rank
    straggler: Straggler | None = None  # what makes this rank slow, where it is asked to be

    @property
    def rank(self) -> int:
        return self.process.rank

    @property
    def writes_metrics(self) -> bool:
        """Return whether this rank writes the run's metrics: the first of the last stage, which knows the losses."""
        return self.rank == self.plan.stages[-1].ranks[0]

    @property
    def leaves_out(self) -> bool:
        """Return whether the plan leaves out ranks of the job: see left_out.py."""
        return len(self.plan.ranks) < self.process.world_size

    @property
    def is_left_out(self) -> bool:
        """Return whether this rank is one of them."""
        return self.rank not in self.plan.ranks
