"""The plans of strategies for a cluster as points of a figure: simulated, emulated by real processes, or measured."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import lcm

from ..planning import Problem, estimate
from ..planning.simulator import simulate
from ..records import RunRecord
from ..records.run_progress import MINIBATCHES, SAMPLES
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..views.plots import Point
from ..views.plots.table import SPARSEPIPE_2020
from .machines import Machines

PLANNERS = {  # a strategy's name in figures: the planner that finds its plan
    "data parallel": "data-parallel",
    "model parallel": "model-parallel",
    "PipeDream": "pipedream",
    SPARSEPIPE_2020: "sparsepipe-2020",
    "optimal": "optimal",
}
ONE = "one device"
_ROUNDS = 12  # of all stages, over which a rate is taken


def one_device(profile: Profile, cluster: Cluster) -> Plan:
    """Everything on the fastest device of a cluster: what the strategies are compared with."""
    problem = Problem(profile, cluster)
    fastest = min(cluster.devices, key=lambda device: problem.total_seconds(device.type.name))
    plan = problem.plan([problem.stage(problem.layers, (fastest.rank,))], ONE)
    return replace(plan, estimate=estimate(plan, problem))


def simulated(plans: Mapping[str, Plan], machines: Machines, cluster: Cluster, *, label: str = "") -> list[Point]:
    """A simulated point for the plan of each strategy on `cluster`, below the bound that the optimal plan proves."""
    points = [_simulated(name, plan, machines, cluster, label) for name, plan in plans.items()]
    proven = plans["optimal"].estimate if "optimal" in plans else None
    if proven is None or not proven.lower_bound_seconds or machines.batch_size is None:
        return points
    bound = machines.batch_size / proven.lower_bound_seconds
    return [replace(point, bound_samples_per_second=bound) for point in points]


def emulated(name: str, record: RunRecord, machines: Machines, num_devices: int) -> Point:
    """The point of a strategy from a replay of its plan by real processes."""
    summary = record.metrics("summary")[-1]
    rate = summary[SAMPLES] / record.config["batch_size"] if record.knows_samples else summary[MINIBATCHES]
    samples, minibatches = _paces(rate, machines)
    return Point(name, "", num_devices, samples, "emulated", run=record.name, minibatches_per_second=minibatches)


def measured(records: Sequence[RunRecord]) -> list[Point]:
    """Two points for each finished run on this machine: what its plan predicts, and what was measured."""
    points = []
    for record in records:
        plan, batch_size = record.plan, record.config["batch_size"]
        name = ONE if len(plan.ranks) == 1 else "data parallel" if len(plan.stages) == 1 else "optimal"
        rate = record.metrics("summary")[-1]["samples_per_second"]
        if predicted := getattr(plan, "estimate", None):
            expected = batch_size / predicted.period_seconds
            points.append(Point(name, "here", len(plan.ranks), expected, run=record.name))
        points.append(Point(name, "here", len(plan.ranks), rate, "measured", run=record.name))
    return points


def traffic(plan: Plan, problem: Problem) -> tuple[float, float]:
    """Bytes of one minibatch that all devices send: (activations both ways, gradients that are averaged)."""
    table, index = problem.table, problem.graph.index
    before, crossing, averaged = set(problem.graph.input_layers), 0.0, 0.0
    for k, stage in enumerate(plan.stages):
        layer_indices = [index[id] for id in stage.layers]
        before |= set(layer_indices)
        if k + 1 < len(plan.stages):
            forward, backward = table.payload(before)
            crossing += float(forward[0] + backward[0])
        ring = (
            2 * (len(stage.ranks) - 1) * float(table.parameter_bytes[layer_indices].sum())
        )  # Patarasuk and Yuan, 2009
        averaged += ring / (plan.num_microbatches if plan.flushes else stage.round)
    return crossing, averaged


def _simulated(name: str, plan: Plan, machines: Machines, cluster: Cluster, label: str) -> Point:
    problem = Problem(machines.profile, cluster, plan.schedule, plan.num_microbatches)
    expected = estimate(plan, problem)  # by one cost model, whatever the planner's own
    rate = _steady_rate(plan, machines.profile, cluster, problem.size)
    samples, minibatches = _paces(rate, machines)
    crossing, averaged = traffic(plan, problem)
    return Point(
        name,
        label,
        len(cluster.devices),
        samples,
        minibatches_per_second=minibatches,
        activation_bytes=crossing,
        gradient_bytes=averaged,
        memory_bytes=max(stage.memory_bytes for stage in expected.stages),
    )


def _paces(rate: float, machines: Machines) -> tuple[float | None, float | None]:
    """Samples per second, or minibatches where the machines' profile does not tell of samples."""
    known = machines.batch_size
    return (None, rate) if known is None else (known * rate, None)


def _steady_rate(plan: Plan, profile: Profile, cluster: Cluster, voxels: float) -> float:
    """Simulated minibatches per second over whole rounds of all stages, filling and draining left out."""
    whole = lcm(*(stage.round for stage in plan.stages))
    fill = whole * -(-4 * len(plan.ranks) // whole)
    trace = simulate(plan, profile, cluster, [voxels] * (2 * fill + _ROUNDS * whole))
    ends = sorted(span.end for span in trace.spans if span.stage == 0 and span.kind == "backward")
    return _ROUNDS * whole / (ends[fill + _ROUNDS * whole - 1] - ends[fill - 1])
