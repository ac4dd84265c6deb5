"""Predict a measured plan's step and its peak of memory, from what was profiled; nothing is fitted to a plan.

Simulate the order in which DeepSpeed's pipeline engine sends and receives.

Its ranks obey lists of instructions in which communication has its places. A stage's forward and backward alternate;
before a backward it receives the gradient, and only then sends what its last forward made:

    stage 0   F0 send  F1      receive B0 (send F1) …
    stage 1       receive F0 B0 send       receive F1 …

So where the last stage is the slowest, it waits in every round for its gradient to arrive, and for the activation that
leaves afterwards. Source: TrainSchedule of deepspeed.runtime.pipe.schedule. Sends run alongside computation, as NCCL's
proxy threads do them. The GPUs of a replica each receive a part of a tensor, and gather the whole over their node's
links before they work on it (PartitionedTensor).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...records.formats.sailor import MeasuredPlan, SizedLink, gpu_of, profiled_bytes
from ...values.cluster import Cluster
from ...values.schedule import compile
from ..simulator.simulation import BACKWARD, FORWARD, Passes, RankState, Simulation, Transfers, collector_paused

# Numbers that DeepSpeed and Adam keep for each weight: the weight and DeepSpeed's copy of it, its gradient and the
# buffer that gradients are sent from, and Adam's two.
WEIGHT_COPIES = 6
# What driver, NCCL and fused kernels hold of a GPU's memory beside torch's: as Sailor's planner allows for, with tensor
# parallelism and without, and as its simulator does for the nodes of GH200.
CONTEXT_BYTES = 3.0e9
CONTEXT_BYTES_ALONE = 2.0e9
CONTEXT_BYTES_OF = {"GH-96": 4.76e9 + 0.3e9}


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds per step, and peak bytes of the GPU with the largest memory use."""

    seconds: float
    peak_bytes: float

    def errors(self, measured: MeasuredPlan) -> tuple[float, float]:
        """Return the relative errors of time and memory; above 0: the prediction is too high."""
        return self.seconds / measured.seconds - 1, self.peak_bytes / measured.peak_bytes - 1


def predict(measured: MeasuredPlan) -> Prediction:
    """Predict the step time and peak memory of a plan measured by Sailor.

    One step is simulated in the order in which DeepSpeed sends and receives.

    Args:
        measured: Measured plan, as returned by `SailorFiles.plans`.

    Returns:
        Time of a step in seconds, and peak memory of the worst GPU in bytes.

    Example:
        >>> from sparsepipe.records.formats.sailor import MeasuredPlan, SizedLink
        >>> kind = "A100-40 x1"  # one GPU for each replica of a stage
        >>> costs = {kind: profile.costs["cpu"]}
        >>> stages = [sp.Stage(stage.layers, stage.ranks, device_types=(kind,)) for stage in plan.stages]
        >>> step = sp.Plan(tuple(stages), schedule="1f1b-flush", num_microbatches=4)
        >>> gpus, links = sp.Cluster.uniform(2, device_type=kind), {(kind, kind): SizedLink((1.0,))}  # 1 GB/s
        >>> known = sp.Profile(profile.graph, costs)
        >>> given = MeasuredPlan("a", "net", step, known, gpus, 1, 1.0, 4e9, links, {}, {kind: (1e6,) * 4})
        >>> sp.planning.measured_plans.predict(given).seconds > 0
        True

    See also:
        guides/import_from_other_systems
    """
    with collector_paused():
        end = max(row[3] for row in DeepSpeedSimulation(measured).run())
    return Prediction(end, peak_bytes(measured))


def peak_bytes(measured: MeasuredPlan) -> float:
    """Bytes of the fullest GPU: weights and all that is kept for each, microbatches in flight, what libraries hold."""
    plan, index = measured.plan, measured.profile.graph.index
    program = compile(plan, plan.num_microbatches)
    bytes_by_stage = []
    for s, stage in enumerate(plan.stages):
        before = index[stage.layers[0]] - 1
        for rank, kind in zip(stage.ranks, stage.device_types, strict=True):
            weights, held_bytes = measured.held(s, kind)
            incoming = measured.profile.cost(before, kind, measured.samples).output_bytes if s else 0.0
            in_flight = program.in_flight(s, rank)
            bytes_by_stage.append(WEIGHT_COPIES * weights + in_flight * (held_bytes + incoming) + context_bytes(kind))
    return max(bytes_by_stage)


def context_bytes(kind: str) -> float:
    """Return what a GPU of this type of device holds beside torch's memory."""
    usual = CONTEXT_BYTES_ALONE if kind.endswith(" x1") else CONTEXT_BYTES
    return CONTEXT_BYTES_OF.get(gpu_of(kind), usual)


class DeepSpeedSimulation(Simulation):
    """A simulation in which an activation leaves when the gradient before it exists, over links that know sizes."""

    def __init__(self, measured: MeasuredPlan) -> None:
        plan = measured.plan
        sizes = [float(measured.samples)] * plan.num_microbatches
        super().__init__(compile(plan, len(sizes)), measured.profile, measured.cluster, sizes)
        transfers = SizedTransfers(measured.cluster, measured.links)
        transfers.bytes = self.transfers.bytes
        self.transfers = transfers
        for rank in self.ranks.values():  # like ranks share their lists
            rank.seconds = {s: self._with_gathering(measured, rank, s, passes) for s, passes in rank.seconds.items()}
        self.averaging = [averaging_seconds(measured, s) for s in range(len(plan.stages))]
        self.held: dict[int, tuple[int, int, int]] = {}  # rank → the result of a forward that waits

    def _with_gathering(self, measured: MeasuredPlan, rank: RankState, stage: int, passes: Passes) -> Passes:
        """Seconds of each operation, with those of gathering what the forward or the backward receives."""
        kind = measured.cluster.devices[rank.rank].type.name
        gathered_passes = list(passes)
        for operation, comes in ((FORWARD, stage > 0), (BACKWARD, stage < len(self.plan.stages) - 1)):
            if comes:
                sender = stage - 1 if operation == FORWARD else stage + 1
                sizes = self.transfers.bytes[operation, sender, False].tolist()
                gathering = {size: gathering_seconds(measured, kind, size) for size in set(sizes)}
                gathered_passes[operation] = [
                    a + gathering[size] for a, size in zip(gathered_passes[operation], sizes, strict=True)
                ]
        return tuple(gathered_passes)

    def send(self, rank: RankState, operation: int, stage: int, minibatch: int, now: float) -> None:
        """Send a result on at once, but a forward's only with the backward that comes next.

        While the pipeline fills, the step after a forward has no backward: that of as many microbatches ago as stages
        follow.
        """
        own_stage = self.plan.stages[stage]
        ago = (len(self.plan.stages) - 1 - stage) * len(own_stage.ranks)
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


def gathering_seconds(measured: MeasuredPlan, kind: str, num_bytes: float) -> float:
    """Seconds of a ring all-gather among the n GPUs of a device: n − 1 messages of 1/n of a tensor from each."""
    link, degree = measured.inner_links.get(kind), int(kind.rpartition(" x")[2])
    if link is None:
        return 0.0
    return (degree - 1) * link.transfer_time(num_bytes / degree * link.senders)


def averaging_seconds(measured: MeasuredPlan, stage: int) -> float:
    """Seconds of a ring all-reduce of a stage's gradients: 2(m−1) messages of 1/m of them, at its slowest link.

    All GPUs of a replica send at the same time over their node's network.
    """
    own_stage = measured.plan.stages[stage]
    count = len(own_stage.ranks)
    if count == 1:
        return 0.0
    graph = measured.profile.graph
    num_bytes = sum(graph.layers[graph.index[id]].parameter_bytes for id in own_stage.layers)
    kinds = own_stage.device_types
    pairs = set(zip(kinds, (*kinds[1:], kinds[0]), strict=True))
    return 2 * (count - 1) * max(measured.links[pair].transfer_time(num_bytes / count) for pair in pairs)


_BUCKET = 5e8  # bytes of gradients that are averaged at a time
_SHARDS = 4  # the most GPUs of a replica that are taken to share its gradients


# Predict as Sailor's own simulator does, by its published formulas
def published_prediction(measured: MeasuredPlan) -> Prediction:
    """Return the prediction of Sailor's simulator for a measured plan."""
    stages = range(len(measured.plan.stages))
    work = [max(_work(measured, s, kind) for kind in measured.plan.stages[s].device_types) for s in stages]
    transfers = [_transfers(measured, s) for s in stages]
    slowest = max(a + b for a, b in zip(work, transfers, strict=True))
    replicas = len(measured.plan.stages[0].ranks)
    count = -(-measured.plan.num_microbatches // replicas)
    pipeline = (count - 1) * slowest + sum(work) + sum(transfers)
    seconds = pipeline + max(_update(measured, s) for s in stages) + max(_averaging(measured, s) for s in stages)
    return Prediction(seconds, max(_memory(measured, s) for s in stages))


def _work(measured: MeasuredPlan, stage: int, kind: str) -> float:
    index = measured.profile.graph.index
    return sum(measured.profile.time([index[id] for id in measured.plan.stages[stage].layers], kind, measured.samples))


def _update(measured: MeasuredPlan, stage: int) -> float:
    """Its simulator takes what the profile has for a stage's first layer for the whole stage."""
    rates, own_stage = measured.profile.update_rates, measured.plan.stages[stage]
    profiled = profiled_bytes([layer.parameter_bytes for layer in measured.profile.graph.layers])
    return max(rates[kind] for kind in own_stage.device_types) * profiled


def _transfers(measured: MeasuredPlan, stage: int) -> float:
    """Seconds that a stage's transfers add to each of its microbatches: how often they count is theirs."""
    plan, index = measured.plan, measured.profile.graph.index
    last = len(plan.stages) - 1
    if not last:
        return 0.0
    sent = _crossing(measured, stage, stage + 1, index[plan.stages[stage].layers[-1]]) if stage < last else 0.0
    back = _crossing(measured, stage, stage - 1, index[plan.stages[stage].layers[0]]) if stage else 0.0
    if stage == last:
        return 2 * back
    if not stage:
        return sent if last < 3 else 2 * sent
    return sent + back


def _crossing(measured: MeasuredPlan, stage: int, other: int, layer: int) -> float:
    """The slowest transfer between two stages, in messages of the whole tensor."""
    ours, theirs = measured.plan.stages[stage].device_types, measured.plan.stages[other].device_types
    num_bytes = measured.profile.cost(layer, ours[0], measured.samples).output_bytes
    pairs = {(a, theirs[k % len(theirs)]) for k, a in enumerate(ours)}
    return max(_whole(measured.links[pair]).transfer_time(num_bytes) for pair in pairs)


def _averaging(measured: MeasuredPlan, stage: int) -> float:
    own_stage, graph = measured.plan.stages[stage], measured.profile.graph
    count = len(own_stage.ranks)
    if count == 1:
        return 0.0
    degree = min(_SHARDS, *(int(kind.rpartition(" x")[2]) for kind in own_stage.device_types))
    num_bytes = sum(graph.layers[graph.index[id]].parameter_bytes for id in own_stage.layers) / degree
    pairs = set(zip(own_stage.device_types, own_stage.device_types[1:], strict=False))
    full, rest = divmod(num_bytes, _BUCKET)
    links = [_whole(measured.links[pair]) for pair in pairs]
    seconds = (full * link.transfer_time(_BUCKET / count) + link.transfer_time(rest / count) for link in links)
    return 2 * (count - 1) * max(seconds)


def _memory(measured: MeasuredPlan, stage: int) -> float:
    own_stage = measured.plan.stages[stage]
    in_flight = len(measured.plan.stages) - stage
    held = [measured.held(stage, kind) for kind in own_stage.device_types]
    return (
        max(WEIGHT_COPIES * weights + in_flight * held_bytes for weights, held_bytes in held)
        + CONTEXT_BYTES_OF["GH-96"]
    )


def _whole(link: SizedLink) -> SizedLink:
    return SizedLink(link.coefficients)
