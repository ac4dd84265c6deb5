"""Predict a measured plan's step and its peak of memory, from what was profiled; nothing is fitted to a plan."""

from dataclasses import dataclass

from ..formats.sailor import MeasuredPlan, gpu_of
from ..schedule import compile
from ..simulator import collector_paused
from .deepspeed import DeepSpeedSimulation

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
    """What a step is predicted to take, and what memory the fullest GPU is to need."""

    seconds: float
    peak_bytes: float

    def errors(self, measured: MeasuredPlan) -> tuple[float, float]:
        """How far time and memory are off, as shares of what was measured; above 0 where too much is predicted."""
        return self.seconds / measured.seconds - 1, self.peak_bytes / measured.peak_bytes - 1


def predict(measured: MeasuredPlan) -> Prediction:
    """Simulate one step in DeepSpeed's order, and add up what the fullest GPU holds."""
    with collector_paused():
        end = max(row[3] for row in DeepSpeedSimulation(measured).run())
    return Prediction(end, peak_bytes(measured))


def peak_bytes(measured: MeasuredPlan) -> float:
    """Bytes of the fullest GPU: weights and all that is kept for each, microbatches in flight, what libraries hold."""
    plan, index = measured.plan, measured.profile.graph.index
    program = compile(plan, plan.num_microbatches)
    found = []
    for s, stage in enumerate(plan.stages):
        before = index[stage.layers[0]] - 1
        for rank, kind in zip(stage.ranks, stage.device_types, strict=True):
            weights, kept = measured.held(s, kind)
            incoming = measured.profile.cost(before, kind, measured.samples).output_bytes if s else 0.0
            in_flight = program.in_flight(s, rank)
            found.append(WEIGHT_COPIES * weights + in_flight * (kept + incoming) + context_bytes(kind))
    return max(found)


def context_bytes(kind: str) -> float:
    """What a GPU of this type of device holds beside torch's memory."""
    usual = CONTEXT_BYTES_ALONE if kind.endswith(" x1") else CONTEXT_BYTES
    return CONTEXT_BYTES_OF.get(gpu_of(kind), usual)
