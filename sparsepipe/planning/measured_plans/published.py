"""Predict as Sailor's own simulator does, by its published formulas.

A step takes (microbatches − 1) times the slowest stage with its transfers, then each stage and transfer once, the
slowest optimizer step, and the slowest all-reduce of gradients, in buckets. Memory: six numbers for each weight,
microbatches in flight, and one allowance for driver and kernels on all GPUs. Source: eth-easl/sailor,
the class Simulator of sailor.Planner.simulations.runtime_simulator.
"""

from ...records.formats.sailor import MeasuredPlan, SizedLink, profiled_bytes
from .prediction import CONTEXT_BYTES_OF, WEIGHT_COPIES, Prediction

_BUCKET = 5e8  # bytes of gradients that are averaged at a time
_SHARDS = 4  # the most GPUs of a replica that are taken to share its gradients


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
