"""Simulate the order in which DeepSpeed's pipeline engine sends and receives.

Its ranks obey lists of instructions in which communication has its places. A stage's forward and backward alternate;
before a backward it receives the gradient, and only then sends what its last forward made:

    stage 0   F0 send  F1      receive B0 (send F1) …
    stage 1       receive F0 B0 send       receive F1 …

So where the last stage is the slowest, it waits in every round for its gradient to arrive, and for the activation that
leaves afterwards. Source: TrainSchedule of deepspeed.runtime.pipe.schedule. Sends run beside computation, as NCCL's
proxy threads do them.
"""

from collections.abc import Mapping

import numpy as np

from ..cluster import Cluster
from ..formats.sailor import MeasuredPlan, SizedLink
from ..schedule import compile
from ..simulator import BACKWARD, FORWARD, RankState, Simulation, Transfers


class DeepSpeedSimulation(Simulation):
    """A simulation in which an activation leaves when the gradient before it is there, over links that know sizes."""

    def __init__(self, measured: MeasuredPlan) -> None:
        plan = measured.plan
        sizes = [float(measured.samples)] * plan.num_microbatches
        super().__init__(compile(plan, len(sizes)), measured.profile, measured.cluster, sizes)
        transfers = SizedTransfers(measured.cluster, measured.links)
        transfers.bytes = self.transfers.bytes
        self.transfers = transfers
        self.averaging = [averaging_seconds(measured, s) for s in range(len(plan.stages))]
        self.held: dict[int, tuple[int, int, int]] = {}  # rank → the result of a forward that waits

    def send(self, rank: RankState, operation: int, stage: int, minibatch: int, now: float) -> None:
        """Send a result on at once, but a forward's only with the backward that comes next.

        While the pipeline fills, the step after a forward has no backward: that of as many microbatches ago as stages
        follow.
        """
        own = self.plan.stages[stage]
        ago = (len(self.plan.stages) - 1 - stage) * len(own.ranks)
        if operation == FORWARD and rank.todo[rank.place] == (BACKWARD, stage, minibatch - ago):
            self.held[rank.rank] = (operation, stage, minibatch)
        else:
            super().send(rank, operation, stage, minibatch, now)

    def start(self, rank: RankState, free: float) -> None:
        """Start the next action; what was held leaves as it begins."""
        super().start(rank, free)
        if rank.free is None and rank.rank in self.held:
            begin = self.rows[-1][2]  # of the span that has just been added
            super().send(rank, *self.held.pop(rank.rank), begin)


class SizedTransfers(Transfers):
    """Transfers over links between types of device, which take the time that a message of their size does."""

    def __init__(self, cluster: Cluster, links: Mapping[tuple[str, str], SizedLink]) -> None:
        super().__init__(cluster)
        self.links = links

    def seconds(self, rank: int, peer: int, num_bytes: np.ndarray) -> list[float]:
        """Seconds of each minibatch."""
        devices = self.cluster.devices
        link = self.links[devices[rank].type.name, devices[peer].type.name]
        of_size = {size: link.transfer_time(size) for size in set(num_bytes.tolist())}
        return [of_size[size] for size in num_bytes.tolist()]


def averaging_seconds(measured: MeasuredPlan, stage: int) -> float:
    """Seconds of a ring all-reduce of a stage's gradients: 2(m−1) messages of 1/m of them, at its slowest link.

    All GPUs of a replica send beside each other over their node's network.
    """
    ranks = measured.plan.stages[stage].ranks
    index = measured.profile.graph.index
    layers = measured.profile.graph.layers
    num_bytes = sum(layers[index[id]].parameter_bytes for id in measured.plan.stages[stage].layers)
    return ring_seconds(measured, ranks, num_bytes)


def ring_seconds(measured: MeasuredPlan, ranks: tuple[int, ...], num_bytes: float) -> float:
    """Seconds of a ring all-reduce among ranks."""
    count = len(ranks)
    if count == 1:
        return 0.0
    kinds = [measured.cluster.devices[rank].type.name for rank in ranks]
    pairs = set(zip(kinds, kinds[1:] + kinds[:1], strict=True))
    return 2 * (count - 1) * max(measured.links[pair].transfer_time(num_bytes / count) for pair in pairs)
