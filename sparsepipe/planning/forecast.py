"""Summarise a simulation: steady-state throughput, why devices idle, peak memory."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ..util.io.quantities import SIZE
from ..util.text.numbers import Certainty
from ..values.cluster import Cluster, Link
from ..values.costs import LayerTable, MemoryNeed
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.recomputation import stage_bytes
from ..values.schedule import Op, compile
from ..values.stragglers import Stragglers
from ..values.stragglers.restarts import Restart
from ..values.trace import Trace
from .simulator import lower_bound, simulate


@dataclass(frozen=True, slots=True)
class Bubble:
    """Shares of all device time in which devices do not compute; their sum is the trace's bubble fraction."""

    imbalance: float  # the fullest device would work on while the others had finished, even if nothing ever waited
    dependency: float  # filling, draining and the order of actions, if transfers and averaging took no time
    communication: float  # transfers and averaging
    restart: float = 0.0  # after a rank was killed, until all train again
    sizes: float = 0.0  # minibatches of several sizes; below 0 where small ones fill and drain the pipeline


@dataclass(frozen=True, slots=True)
class Forecast:
    """A simulated run, in numbers."""

    trace: Trace
    minibatches_per_second: float  # steady state: without the first and the last quarter, and were nobody killed
    bubble: Bubble
    peak_bytes: dict[int, float]  # rank → bytes
    certainty: Certainty | None = None  # of the seconds, the worst of all minibatches; None: costs without a size
    balanced_seconds: float = 0.0  # what as many minibatches would take if each cost the mean of all
    lower_bound_seconds: float = 0.0  # no order of these minibatches takes less: see `simulator.lower_bound`

    def beyond_memory(self, cluster: Cluster) -> str:
        """Return a sentence on the rank that exceeds its device's memory most; empty if none does."""
        return beyond_memory(self.peak_bytes, cluster)

    @property
    def restart(self) -> Restart | None:
        """Return the cost of a kill; None without a kill."""
        return self.trace.facts.get("restart")

    def to_json(self) -> dict[str, Any]:
        """Everything but the spans."""
        return {
            "makespan_seconds": self.trace.makespan,
            "balanced_seconds": self.balanced_seconds,
            "lower_bound_seconds": self.lower_bound_seconds,
            "minibatches_per_second": self.minibatches_per_second,
            "bubble_fraction": self.trace.bubble_fraction,
            "bubble": asdict(self.bubble),
            "peak_bytes": {str(rank): peak for rank, peak in self.peak_bytes.items()},
            **(self.certainty.to_json() if self.certainty else {}),
            **({"restart": self.restart.to_json()} if self.restart else {}),
        }


def forecast(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    sizes: Sequence[float],
    *,
    stragglers: Stragglers | None = None,
    **restarting: Any,
) -> Forecast:
    """Simulate `plan`, of one pipeline, on minibatches of these sizes and summarise it.

    `restarting`: `restart_seconds` and `epoch_minibatches`, as `simulate` takes them. Raises InputError as that does.
    """
    trace = steady = simulate(plan.one(), profile, cluster, sizes, stragglers=stragglers, **restarting)
    if stragglers is not None and trace.facts.get("restart"):
        steady = simulate(plan, profile, cluster, sizes, stragglers=stragglers.without_kills())
    mean_profile, mean_sizes = _equal(profile, sizes)
    balanced = simulate(plan, mean_profile, cluster, mean_sizes, stragglers=stragglers, **restarting)
    return Forecast(
        trace,
        steady_rate(steady, plan, len(sizes)),
        split_bubble(trace, plan, profile, cluster, sizes, stragglers=stragglers, **restarting),
        peak_bytes(plan, profile, cluster, sizes),
        certainty(plan, profile, cluster, sizes),
        balanced.makespan,
        lower_bound(plan, profile, cluster, sizes),
    )


def _equal(profile: Profile, sizes: Sequence[float]) -> tuple[Profile, Sequence[float]]:
    """Return a profile and sizes of as many minibatches that each cost the mean of all; the same if all are equal."""
    if len(set(sizes)) < 2:
        return profile, sizes
    return profile.averaged(sizes), [float(np.mean(sizes))] * len(sizes)


def certainty(plan: Plan, profile: Profile, cluster: Cluster, sizes: float | Sequence[float]) -> Certainty | None:
    """Return how sure the predicted seconds of the devices used are, the worst of `sizes`.

    None for costs that do not depend on size.
    """
    if not profile.sized:
        return None
    return profile.certainty(sizes, sorted({cluster.devices[rank].type.name for rank in plan.ranks}))


def minibatches_of_a_step(plan: Plan) -> int:
    """Return in how many minibatches what a plan's ranks do repeats: `steady_rate` needs four times as many."""
    return plan.num_microbatches if plan.flushes else max(stage.round for stage in plan.stages)


def steady_rate(trace: Trace, plan: Plan, num_minibatches: int) -> float:
    """Minibatches per second by the ends of the first stage's backwards, over the middle half; in whole steps."""
    ends = np.zeros(num_minibatches)
    for span in trace.spans:
        if span.stage == 0 and span.kind == "backward":
            ends[span.minibatch] = span.end
    ends = np.maximum.accumulate(ends)
    step = minibatches_of_a_step(plan)
    first, last = num_minibatches // 4 // step * step, 3 * num_minibatches // 4 // step * step
    if last <= first or first < 1:
        return num_minibatches / trace.makespan if trace.makespan else float("inf")
    seconds = ends[last - 1] - ends[first - 1]
    return float((last - first) / seconds) if seconds else float("inf")


def beyond_memory(peak_bytes: Mapping[int, float], cluster: Cluster) -> str:
    """Return a sentence on the rank that exceeds its device's memory most; empty if none does."""
    limits = {rank: cluster.devices[rank].type.memory_bytes for rank in peak_bytes}
    over = [rank for rank, peak in peak_bytes.items() if peak > limits[rank]]
    if not over:
        return ""
    worst = max(over, key=lambda rank: peak_bytes[rank] / limits[rank])
    return (
        f"the plan does not fit into memory: rank {worst} needs {SIZE.shown(peak_bytes[worst])} at its peak, but its "
        f"device has {SIZE.shown(limits[worst])} ({len(over)} of {len(limits)} ranks have too little)"
    )


def split_bubble(
    trace: Trace,
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    sizes: Sequence[float],
    *,
    stragglers: Stragglers | None = None,
    **restarting: Any,
) -> Bubble:
    """Split idle time by what is left of it if transfers are free, if also all minibatches cost the same, and if
    nothing ever waits.
    """
    makespan, ranks = trace.makespan, trace.ranks
    if not makespan:
        return Bubble(0.0, 0.0, 0.0)
    free = Cluster(tuple(replace(node, link=Link()) for node in cluster.nodes), Link())
    without_transfers = simulate(plan, profile, free, sizes, stragglers=stragglers, **restarting)
    mean_profile, mean_sizes = _equal(profile, sizes)
    balanced = simulate(plan, mean_profile, free, mean_sizes, stragglers=stragglers, **restarting)
    restart: Restart | None = trace.facts.get("restart")
    gone = restart.restart_seconds if restart else 0.0
    busy, even = ([timed_trace.busy(rank) for rank in ranks] for timed_trace in (trace, balanced))
    mean, even_mean = (sum(each) / len(ranks) for each in (busy, even))
    lost = without_transfers.makespan - balanced.makespan + even_mean - mean
    return Bubble(
        (max(even) - even_mean) / makespan,
        (balanced.makespan - gone - max(even)) / makespan,
        (makespan - without_transfers.makespan) / makespan,
        gone / makespan,
        lost / makespan,
    )


def peak_bytes(plan: Plan, profile: Profile, cluster: Cluster, sizes: Sequence[float]) -> dict[int, float]:
    """Bytes on each rank at its fullest: weights and optimizer state, and the minibatches in flight at that moment."""
    distinct, which = np.unique(np.asarray(sizes, dtype=float), return_inverse=True)
    table = LayerTable.of(profile, distinct, {cluster.devices[rank].type.name for rank in plan.ranks})
    index, received = profile.graph.index, table.payloads(plan, held=True)
    needs: list[list[MemoryNeed]] = []  # of each stage, for each minibatch
    for stage, (incoming, _) in zip(plan.stages, received, strict=False):
        layer_indices = [index[id] for id in stage.layers]
        weights = float(table.parameter_bytes[layer_indices].sum())
        saved_bytes, working = stage_bytes(table, stage, column=slice(None))
        by_size = zip(saved_bytes.tolist(), incoming.tolist(), working.tolist(), strict=True)
        each = [MemoryNeed(weights, *own_bytes) for own_bytes in by_size]
        needs.append([each[k] for k in which.tolist()])
    most = dict.fromkeys(sorted(plan.ranks), 0.0)
    program = compile(plan, len(sizes))
    for rank in most:
        for action, held in program.holdings(rank):
            total = 0.0
            for s, (versions, minibatches) in held.items():
                need, runs = needs[s], action.minibatch if s == action.stage and action.op is not Op.UPDATE else None
                total += need[0].total(versions=len(versions), minibatches=0)
                total += sum(need[m].incoming_bytes for m in minibatches)
                if not plan.stages[s].recompute:  # else only the inputs wait
                    total += sum(need[m].saved_bytes for m in minibatches if m != runs)
                if runs is not None:
                    total += need[runs].working_bytes - need[runs].parameter_bytes
            most[rank] = max(most[rank], total)
    return most
