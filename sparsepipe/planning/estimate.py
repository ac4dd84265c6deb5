"""The default cost model: what a plan is expected to do, from its own replicas, boundaries and links.

Legend, for stage i, with t its forward and backward on one replica (and reading, if it reads minibatches that the
first stage's process reads too; and sending and receiving, where its device's own processor does that) and s/n a
replica's share of a round:
  T = max over replicas of t·s/n, plus the optimizer's step and, as the runtime blocks on it, gradient averaging, both
      per minibatch
  L = max over replicas of t: how long one minibatch stays
  C = the transfers at a boundary; they run alongside computation, forwards and backwards at once

asynchronous     period = max(T of each stage, busiest port of each boundary). Interleaved, what a timed run of the
                 stages' order comes to once it is full (interleaved.py), or a device's ports together if that is more.
                 Ports: all that enters, or leaves, in one direction.
flush            step = Σ L + Σ (C forwards + C backwards) + max_i (Wᵢ − Lᵢ), period = step / M. W is the busiest
                 replica's ⌈M·s/n⌉ minibatches, one averaging and one step; without replication this is
                 Σ (T + 2C) + (M − 1)·max T, the length of GPipe's and DAPPLE's critical path; a boundary limits with
                 (M − 1) × its busiest port. Interleaved, Σ goes over the first lap and i over ranks with all their
                 stages (Narayanan et al., SC 2021, section 2.2: only a lap is filled and drained)
without a closed form (`ScheduleRules.simulated`)    what a simulated step of mean minibatches takes, by minibatch
sequential       one minibatch in each replica of the first stage: (Σ L + Σ C) / replicas, at least max T
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from operator import mul

import numpy as np

from ..util.derived import remembered
from ..util.io.quantities import SIZE
from ..values.cluster import Cluster
from ..values.costs import Array, MemoryNeed, averaging_time, boundary_link, copies, depth, port_loads, port_share
from ..values.plan import Estimate, Plan, Stage, StageEstimate
from ..values.recomputation import stage_bytes
from ..values.schedule import compile_until_steady, steady_period
from .base import Problem
from .forecast import certainty
from .simulator import simulate

Seconds = float | Array  # of a plan's costs, or of each draw of them


def estimate(plan: Plan, problem: Problem) -> Estimate:
    """Estimate a plan that `check` accepts. The newest answers are kept: one plan is judged again and again."""
    return remembered(problem.profile.kept, "estimates", _key(plan, problem), lambda: _estimated(plan, problem))


def _key(plan: Plan, problem: Problem) -> Hashable:
    """Return the values that an estimate depends on, besides the profile that stores it."""
    of_plan = plan.stages, plan.schedule, plan.weights, plan.num_microbatches, plan.accumulation
    of_problem = problem.cluster, problem.schedule, problem.num_microbatches, problem.recompute
    return of_plan, of_problem, problem.forward_only, problem.easier, problem.largest_size


def _estimated(plan: Plan, problem: Problem) -> Estimate:
    layers, payloads = boundaries(plan, problem)
    transfers = _transfers(plan, problem, payloads)
    ports = _ports(transfers)
    computes, averagings, latencies, works = [], [], [], []
    crossing_hosts = network_bytes(plan, problem)
    for k, stage in enumerate(plan.stages):
        kinds, rates = kinds_of(problem, stage), network_rates(problem, stage)
        seconds = [
            part * replica_seconds(problem, layers[k], kind, stage)
            + problem.table.reading_again(plan, k, kind)
            + each * crossing_hosts[k]
            for kind, each, part in zip(kinds, rates, stage.parts_of_work(), strict=True)
        ]
        between_parts = problem.table.parts_seconds(problem.cluster, plan, k, layers[k])
        seconds = [each + sum(float(passes[0]) for passes in between_parts) for each in seconds]
        compute = max(each * turns for each, turns in zip(seconds, stage.rank_turns, strict=True)) / stage.round
        averaging, update = once_a_round(plan, problem, stage, layers[k])
        computes.append(compute + update)
        averagings.append(averaging)
        latencies.append(max(seconds))
        works.append(step_work(plan, stage, seconds, averaging + update))
    # An order that goes by the pace of the stages sets how many minibatches they hold.
    paced = replace(plan, estimate=Estimate(0.0, tuple(map(StageEstimate, computes))))
    held = boundaries(plan, problem, held=True)[1]
    needs = [memory_need(problem, stage, float(before[0][1])) for stage, before in zip(plan.stages, held, strict=False)]
    if plan.stages_per_rank > 1:
        memory = _interleaved_memory(paced, needs)
    else:
        memory = [stage_memory(paced, k, need) for k, need in enumerate(needs)]
    stages = []
    for k in range(len(plan.stages)):
        sent = float(payloads[k + 1][0][0]) * _sends(plan, k, k + 1) + float(payloads[k][1][0]) * _sends(plan, k, k - 1)
        if plan.stages[k].shares_scenes:  # what it sends elsewhere, each part sends to all others before
            sent *= len(plan.stages[k].ranks)
            sent += 2 * float(problem.table.halo_bytes(layers[k], len(plan.stages[k].ranks))[0])
        transfer = max(ports[k], ports[k + 1])
        stages.append(StageEstimate(computes[k], memory[k], transfer, averagings[k], sent))
    crossing = sum(both for _, both in transfers[: plan.pipeline_size - 1])
    if plan.rules.simulated:
        period = _simulated_period(plan, problem)
    else:
        busy = [stage.compute_seconds + stage.averaging_seconds for stage in stages]
        period = float(plan_period(plan, busy, latencies, works, ports, crossing))
    everyone = baseline_data_parallel(problem)
    single = min(float(problem.alone(kind.name).sum()) for kind in problem.cluster.device_types)
    return Estimate(
        period,
        tuple(stages),
        single_device_seconds=single,
        data_parallel_seconds=period if plan.stages == everyone.stages else data_parallel_period(problem),
        size=problem.size,
        memory_size=problem.memory_size,
        size_unit=problem.profile.size_unit,
        certainty=certainty(plan, problem.profile, problem.cluster, problem.size),
    )


def _sends(plan: Plan, stage: int, other: int) -> int:
    """Return how many packets a stage sends another one for a minibatch: none unless that is there, on other ranks."""
    if not 0 <= other < len(plan.stages) or plan.stages[other].ranks == plan.stages[stage].ranks:
        return 0
    return copies((plan.stages[stage], plan.stages[other]))[0]


def with_sizes(plan: Plan, own: Estimate, problem: Problem) -> Plan:
    """A published planner's plan with its own periods, and with the bytes that its cost model does not tell."""
    sizes = estimate(plan, problem)
    stages = tuple(
        replace(stage, memory_bytes=size.memory_bytes, sent_bytes=size.sent_bytes)
        for stage, size in zip(own.stages, sizes.stages, strict=True)
    )
    return replace(plan, estimate=replace(own, stages=stages, memory_size=sizes.memory_size, certainty=sizes.certainty))


def crossing_seconds(plan: Plan, problem: Problem) -> list[float]:
    """Seconds of a transfer forwards plus one backwards, for each boundary."""
    return [both for _, both in _transfers(plan, problem, boundaries(plan, problem)[1])]


def port_seconds(plan: Plan, problem: Problem) -> list[float]:
    """Seconds per minibatch of the busiest port before each stage and after the last: none at the two ends."""

    def found() -> list[float]:
        return _ports(_transfers(plan, problem, boundaries(plan, problem)[1]))

    return remembered(problem.profile.kept, "ports", _key(plan, problem), found)


def _ports(transfers: Sequence[tuple[float, float]]) -> list[float]:
    return [0.0, *(busiest for busiest, _ in transfers), 0.0]


def boundaries(
    plan: Plan, problem: Problem, *, between_hosts: bool = False, held: bool = False
) -> tuple[list[list[int]], list[tuple[Array, Array]]]:
    """(layers of each stage, (forward, backward) bytes at the boundary before each stage and after the last)."""
    index = problem.graph.index
    layers = [[index[id] for id in stage.layers] for stage in plan.stages]
    return layers, problem.table.payloads(plan, between_hosts=between_hosts, held=held)


def _transfers(plan: Plan, problem: Problem, within: Sequence[tuple[Array, Array]]) -> list[tuple[float, float]]:
    """`boundary_times` of each boundary. `within`: what crosses them, as `boundaries` returns it within a host."""
    pairs = [plan.stages[k : k + 2] for k in range(len(plan.stages) - 1)]
    apart = [problem.easier or between_hosts(problem, pair) for pair in pairs]
    elsewhere = boundaries(plan, problem, between_hosts=True)[1] if any(apart) else within
    return [boundary_times(problem, pair, (elsewhere if apart[k] else within)[k + 1]) for k, pair in enumerate(pairs)]


def between_hosts(problem: Problem, pair: Sequence[Stage]) -> bool:
    """Return whether what crosses between two stages goes by the network: not all of their devices are on one node."""
    return len({problem.cluster.devices[rank].node.name for stage in pair for rank in stage.ranks}) > 1


def network_bytes(plan: Plan, problem: Problem) -> list[float]:
    """Bytes of a minibatch that each stage's replica sends to and receives from other hosts; 0 if it costs nothing.

    All count where not all devices of two stages are on one node, as for `boundary_link`.
    """
    bytes_by_stage = [0.0] * len(plan.stages)
    if not problem.cluster.sending_costs:
        return bytes_by_stage
    _, payloads = boundaries(plan, problem, between_hosts=True)
    for k in range(len(plan.stages) - 1):
        if between_hosts(problem, plan.stages[k : k + 2]):
            forward, backward = (float(size[0]) for size in payloads[k + 1])
            both = forward if problem.forward_only else forward + backward
            bytes_by_stage[k] += both
            bytes_by_stage[k + 1] += both
    return bytes_by_stage


def network_rates(problem: Problem, stage: Stage) -> list[float]:
    """Seconds of its own time that each replica's device takes for a byte between hosts."""
    return [problem.cluster.devices[rank].type.network_seconds_per_byte for rank in stage.ranks]


def _simulated_period(plan: Plan, problem: Problem) -> float:
    """Seconds per minibatch of one step of mean minibatches."""
    sizes = [problem.size] * plan.num_microbatches
    return simulate(plan, problem.profile, problem.cluster, sizes).makespan / plan.num_microbatches


def plan_period(
    plan: Plan,
    busy: Sequence[Seconds],
    latencies: Sequence[Seconds],
    works: Sequence[Seconds],
    ports: Sequence[Seconds],
    crossing: Seconds,
) -> Seconds:
    """Seconds per minibatch, of stages that are `busy` for so long each."""
    if plan.rules.one_minibatch_at_a_time:
        return largest([(sum(latencies) + crossing) * max(plan.stages[0].shares) / plan.stages[0].round, *busy])
    if plan.flushes:
        count, size = plan.num_microbatches, plan.pipeline_size
        longest = largest([sum(works[k::size]) - latencies[k] for k in range(size)])
        busiest = largest([sum(ports[k::size]) for k in range(size)])
        return (sum(latencies[:size]) + crossing + largest([longest, (count - 1) * busiest])) / count
    if plan.stages_per_rank > 1:
        entering = (sum(ports[k] for k in stages) for stages in plan.positions)
        leaving = (sum(ports[k + 1] for k in stages) for stages in plan.positions)
        return max(steady_period(tuple(map(float, busy)), plan.positions), *map(float, (*entering, *leaving)))
    return largest([*busy, *ports])


def largest(values: Sequence[Seconds]) -> Seconds:
    """The largest of several times; of arrays, draw by draw."""
    if not any(isinstance(value, np.ndarray) for value in values):
        return max(map(float, values))
    most: Array = np.maximum.reduce(np.broadcast_arrays(*values))
    return most


def step_work(plan: Plan, stage: Stage, seconds: Sequence[Seconds], once: float) -> Seconds:
    """Seconds that the busiest replica works in one step: its whole minibatches, and what is done once.

    The latter (averaging and the optimizer's step) is given as seconds per minibatch.
    """
    turns = [-(-plan.num_microbatches * share // stage.round) for share in stage.rank_turns]
    return largest([t * k for t, k in zip(seconds, turns, strict=True)]) + once * plan.num_microbatches


def once_a_round(plan: Plan, problem: Problem, stage: Stage, layers: Sequence[int]) -> tuple[float, float]:
    """Seconds per minibatch of what a stage does once a round or step: averaging, and the optimizer's step."""
    minibatches = plan.num_microbatches if plan.flushes else stage.round
    num_bytes = float(problem.table.parameter_bytes[list(layers)].sum())
    update = problem.table.update_time(layers, kinds_of(problem, stage))
    return averaging_time(problem.cluster, stage.ranks, num_bytes) / minibatches, update / minibatches


def replica_seconds(problem: Problem, layers: Sequence[int], kind: str, stage: Stage) -> float:
    """Forward and backward of a stage's `layers` on one device; the forward twice of those that are recomputed."""
    seconds = float(problem.table.seconds[kind][layers, 0].sum())
    if stage.recomputes:
        seconds += float(problem.table.forward[kind][problem.table.recomputed(stage), 0].sum())
    return seconds


def boundary_times(problem: Problem, pair: Sequence[Stage], payload: tuple[Array, Array]) -> tuple[float, float]:
    """Between two stages: (seconds per minibatch of the busiest port, of a transfer forwards plus one backwards)."""
    if pair[0].ranks == pair[1].ranks:  # interleaved on one rank: nothing is sent
        return 0.0, 0.0
    link = boundary_link(problem.cluster, (*pair[0].ranks, *pair[1].ranks))
    loads, sent = port_loads(problem.cluster, pair, network=between_hosts(problem, pair)), copies(pair)
    seconds = [link.transfer_time(float(size[0])) for size in payload]
    return max(map(mul, loads, seconds)), sum(map(mul, sent, seconds))


def memory_need(problem: Problem, stage: Stage, incoming: float) -> MemoryNeed:
    """Return the memory need of a stage's layers at the size that must fit into memory."""
    table = problem.table
    layers = [problem.graph.index[id] for id in stage.layers]
    saved_bytes, working = stage_bytes(table, stage)
    return MemoryNeed(float(table.parameter_bytes[layers].sum()), float(saved_bytes[0]), incoming, float(working[0]))


def stage_memory(plan: Plan, k: int, need: MemoryNeed) -> float:
    """Bytes on the fullest replica of stage `k`, which has no other."""
    stage = plan.stages[k]
    shares, later = stage.shares, sum(other.num_replicas for other in plan.stages[k + 1 :])
    if stage.shares_scenes:  # each rank has a part of every minibatch; the largest decides
        need, shares = need.part(max(stage.parts_of_work())), (1,)
    versions, minibatches = depth(plan.schedule, plan.num_microbatches, shares, later, stage.warmup)
    return need.total(versions=versions, minibatches=minibatches, recompute=stage.recompute)


def _interleaved_memory(plan: Plan, needs: Sequence[MemoryNeed]) -> list[float]:
    """Bytes of each interleaved stage in the moment in which its device holds most, of all of its stages together."""
    peak_bytes, program = [0.0] * len(needs), compile_until_steady(plan)
    for rank in plan.ranks:
        rank_stages, fullest = plan.stages_of(rank), [0.0]
        for running, counts in program.moments(rank):
            parts = [
                needs[k].total(versions=v, minibatches=m, recompute=plan.stages[k].recompute, runs=k == running)
                for k, (v, m) in zip(rank_stages, counts, strict=True)
            ]
            fullest = max(fullest, parts, key=lambda parts: (sum(parts), parts))
        if sum(fullest) > sum(peak_bytes[k] for k in rank_stages):
            for k, part in zip(rank_stages, fullest, strict=True):
                peak_bytes[k] = part
    return peak_bytes


def kinds_of(problem: Problem, stage: Stage) -> list[str]:
    return [problem.cluster.devices[rank].type.name for rank in stage.ranks]


def baseline_data_parallel(problem: Problem) -> Plan:
    """One stage over every device, equal shares."""
    ranks = range(len(problem.cluster.devices))
    return problem.plan([problem.stage(problem.layers, ranks, recompute=False)], "data-parallel")


def data_parallel_period(problem: Problem) -> float:
    """Seconds per minibatch of one stage over every device, equal shares."""
    plan = baseline_data_parallel(problem)
    stage = plan.stages[0]
    seconds = [replica_seconds(problem, problem.layers, kind, stage) for kind in kinds_of(problem, stage)]
    averaging, update = once_a_round(plan, problem, stage, problem.layers)
    busy = max(seconds) / stage.round + update + averaging
    work = step_work(plan, stage, seconds, averaging + update)
    return float(plan_period(plan, [busy], [max(seconds)], [work], [], 0.0))


def forward_estimate(plan: Plan, problem: Problem) -> Estimate:
    """Estimate inference by a plan that `check` accepts; `problem` is `forward_only`.

    The bytes that a stage sends are those of its outputs; no bound is given.
    """
    layers, payloads = boundaries(plan, problem)
    _, between = boundaries(plan, problem, between_hosts=True)
    table, latency, stages = problem.table, 0.0, []
    ports, sending = [0.0], network_bytes(plan, problem)
    for k, stage in enumerate(plan.stages):
        parts = stage.parts_of_work()
        halos = float(table.parts_seconds(problem.cluster, plan, k, layers[k])[0][0])
        seconds = [
            part * float(table.forward[kind][layers[k], 0].sum()) + halos + each * sending[k]
            for kind, each, part in zip(kinds_of(problem, stage), network_rates(problem, stage), parts, strict=True)
        ]
        compute = max(t * turns for t, turns in zip(seconds, stage.rank_turns, strict=True)) / stage.round
        elsewhere = between_hosts(problem, plan.stages[k : k + 2])
        transfer, port = _transfer(plan, problem, k, float((between if elsewhere else payloads)[k + 1][0][0]))
        latency += max(seconds) + transfer
        ports.append(port)
        own_layers = list(layers[k])
        activations = float(payloads[k][0][1]) + table.saved_bytes[own_layers, 1].sum()
        activations += table.coordinate_bytes[own_layers, 1].sum()
        memory = table.parameter_bytes[own_layers].sum() + max(parts) * activations
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


_LOOKS, _DIVIDES = "planner 'optimal' looks for one that fits", "planner 'space' divides each scene"


def with_doubts(plan: Plan, cluster: Cluster, *, cost_model: str | None = None) -> Plan:
    """The plan, which has an estimate, with a warning for devices it leaves unused and for memory it has too little of.

    The published planners' memory rules let plans pass that do not fit, and the baselines have none; so do cost models
    of others, by which `optimal` planned where `cost_model` names one.
    """
    warnings = list(plan.warnings)
    total, used = len(cluster.devices), len(plan.ranks)
    if used < total and not any("stay unused" in text for text in warnings):
        warnings.append(f"{total - used} of {total} devices stay unused")
    counted = f"cost model {cost_model!r} computes memory differently; without it " if cost_model else ""
    if text := beyond_memory(plan, cluster, before_remedy=counted):
        warnings.append(text)
    return replace(plan, warnings=tuple(warnings))


def beyond_memory(plan: Plan, cluster: Cluster, *, before_remedy: str = "") -> str:
    """Return a sentence on the device whose memory is exceeded most, by the plan's estimate; empty if all fit.

    `before_remedy`: what else the sentence says, before the remedy.
    """
    over = []
    for position in plan.position_estimates:
        kinds = [cluster.devices[rank].type for rank in plan.stages[position.stages[0]].ranks]
        least = min(kinds, key=lambda kind: kind.memory_bytes)
        if position.memory_bytes > least.memory_bytes:
            over.append((position.memory_bytes / least.memory_bytes, position, least))
    if not over:
        return ""
    _, worst, kind = max(over, key=lambda one: one[0])
    others = f" (so for {len(over)} of {plan.pipeline_size} groups of devices)" if len(over) > 1 else ""
    return (
        f"the plan does not fit into memory: {worst.name} needs {SIZE.shown(worst.memory_bytes)} on a device of type "
        f"{kind.name!r}, which has {SIZE.shown(kind.memory_bytes)}{others}; {before_remedy}{_remedy(plan)}"
    )


def _remedy(plan: Plan) -> str:
    """Return the planners that may find a plan within memory, under its schedule if they plan that."""
    if any(stage.shares_scenes for stage in plan.stages):
        return "use more or larger devices, or smaller minibatches"
    if plan.rules.stages_per_rank[0] > 1:  # its planners keep to the memory if any plan that they find does
        return f"under a schedule of one stage per device, such as 1f1b-flush, {_LOOKS}, and {_DIVIDES}"
    return f"{_LOOKS}, {_DIVIDES}"
