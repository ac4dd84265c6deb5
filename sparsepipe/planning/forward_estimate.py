"""What a plan is expected to do in inference: forwards alone.

latency  = Σ over stages of the slowest replica's forward + Σ over boundaries of a transfer forwards: an input's way
           through an empty pipeline
period   = max over stages of max over replicas of forward × share / round, and over boundaries of the busiest port
memory   = the weights once, what a minibatch's layers put out, and what comes in
"""

from ..values.costs import boundary_link, port_share
from ..values.plan import Estimate, Plan, StageEstimate
from .base import Problem
from .estimate import baseline_data_parallel, between_hosts, boundaries, kinds_of, network_bytes, network_rates


def forward_estimate(plan: Plan, problem: Problem) -> Estimate:
    """Estimate inference by a plan that `check` accepts; `problem` is `forward_only`.

    The bytes that a stage sends are those of its outputs; no bound is given.
    """
    layers, payloads = boundaries(plan, problem)
    _, between = boundaries(plan, problem, between_hosts=True)
    table, latency, stages = problem.table, 0.0, []
    ports, sending = [0.0], network_bytes(plan, problem)
    for k, stage in enumerate(plan.stages):
        rates = zip(kinds_of(problem, stage), network_rates(problem, stage), strict=True)
        seconds = [float(table.forward[kind][layers[k], 0].sum()) + each * sending[k] for kind, each in rates]
        compute = max(t * share for t, share in zip(seconds, stage.shares, strict=True)) / stage.round
        elsewhere = between_hosts(problem, plan.stages[k : k + 2])
        transfer, port = _transfer(plan, problem, k, float((between if elsewhere else payloads)[k + 1][0][0]))
        latency += max(seconds) + transfer
        ports.append(port)
        own_layers = list(layers[k])
        memory = table.parameter_bytes[own_layers].sum() + float(payloads[k][0][1])
        memory += table.saved_bytes[own_layers, 1].sum() + table.coordinate_bytes[own_layers, 1].sum()
        sent = float(payloads[k + 1][0][0]) if k + 1 < len(plan.stages) else 0.0
        stages.append(StageEstimate(compute, float(memory), max(ports[-2:]), 0.0, sent))
    everyone = baseline_data_parallel(problem)
    whole = [problem.total_seconds(kind) for kind in kinds_of(problem, everyone.stages[0])]
    return Estimate(
        max([*(stage.compute_seconds for stage in stages), *ports]),
        tuple(stages),
        single_device_seconds=min(whole),
        data_parallel_seconds=max(whole) / len(whole),
        size=problem.size,
        memory_size=problem.memory_size,
        size_unit=problem.profile.size_unit,
        latency_seconds=latency,
    )


def _transfer(plan: Plan, problem: Problem, k: int, num_bytes: float) -> tuple[float, float]:
    """(seconds of a transfer behind stage `k`, seconds a minibatch of the busiest port there); 0 after the last."""
    pair, cluster = plan.stages[k : k + 2], problem.cluster
    if len(pair) < 2:
        return 0.0, 0.0
    seconds = boundary_link(cluster, (*pair[0].ranks, *pair[1].ranks)).transfer_time(num_bytes)
    return seconds, seconds * max(port_share(cluster, own, network=between_hosts(problem, pair)) for own in pair)
