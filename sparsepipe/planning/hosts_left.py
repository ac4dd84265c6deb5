"""A plan for the hosts that are left when others are lost: as before, by the run's profile, or by joining stages.

stages   0        1        2              the second host is lost: no profile says what layers cost, so its stage
hosts    a        b        c      ──►     joins the neighbour with fewer layers:   0+1 on a, 2 on c
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from ..errors import InputError
from ..values.cluster import Cluster
from ..values.plan import Plan, Stage
from ..values.profile import Profile


@dataclass(frozen=True)
class Continuation:
    """Continuation of a run: the plan, the hosts, and a short text on the plan's origin."""

    plan: Plan
    cluster: Cluster
    how: str


def plan_for_hosts_left(plan: Plan, cluster: Cluster, lost: Collection[str], *, profile: Path) -> Continuation:
    """Plan again for the hosts of `cluster` that are not `lost`, which are named.

    If devices to spare are like those of the plan, it stays; if `profile` is a file, it says what layers cost.
    Raises InputError if no host is left, or stages are interleaved and there is no profile.
    """
    nodes = tuple(node for node in cluster.nodes if node.name not in lost)
    if not nodes:
        raise InputError("hosts.none_left", "all hosts failed; start the job again once some are reachable")
    lost_ranks = {device.rank for device in cluster.devices if device.node.name in lost}
    remaining_ranks = [device.rank for device in cluster.devices if device.rank not in lost_ranks]
    types = [device.type.name for device in cluster.devices]
    return plan_for_devices_left(plan, replace(cluster, nodes=nodes), remaining_ranks, types=types, profile=profile)


def plan_for_devices_left(
    plan: Plan, left: Cluster, kept: Sequence[int], *, types: Sequence[str], profile: Path
) -> Continuation:
    """Plan again for the devices of `left`, which were those of the ranks `kept`, in its order.

    `types`: of the device of each rank before; a rank beyond the plan's was to spare. Otherwise as
    `plan_for_hosts_left`.
    """
    count = 1 + max(plan.ranks)  # it may leave out some below
    if [device.type.name for device in left.devices[:count]] == list(types[:count]):
        return Continuation(_placed(plan, left), left, "the same plan on other devices")
    reason = ""
    if profile.exists():
        try:
            plan_by_profile = _by_profile(plan, left, Profile.load(profile))
            return Continuation(plan_by_profile, left, "planned again with the run's profile")
        except InputError as error:
            reason = f" (by the run's profile: {error})"
    joined = _joined(plan, kept)
    return Continuation(
        _placed(joined, left), left, f"neighbouring stages merged, {len(joined.stages)} in total{reason}"
    )


def _by_profile(plan: Plan, left: Cluster, profile: Profile) -> Plan:
    from . import partition  # here: it is made of this folder's files

    recompute = any(stage.recomputes for stage in plan.stages)
    plan_by_profile = partition(
        profile, left, schedule=plan.schedule, num_microbatches=plan.num_microbatches, recompute=recompute
    )
    if sorted(plan_by_profile.ranks) != list(range(len(plan_by_profile.ranks))):
        raise InputError(
            "plan.leaves_out_device",
            f"the plan does not use every device; it uses only ranks {sorted(plan_by_profile.ranks)}",
        )
    return replace(plan_by_profile, weights=plan.weights, accumulation=plan.accumulation)


def _joined(plan: Plan, kept: Sequence[int]) -> Plan:
    """The plan with the ranks `kept` alone, counted again in that order: stages that have none left join a
    neighbour.
    """
    if plan.stages_per_rank > 1:
        raise InputError(
            "plan.interleaved",
            "interleaved stages cannot be merged; plan for the remaining hosts, then resume with that plan",
        )
    stages = [_with(stage, kept) for stage in plan.stages]
    while not all(stage.ranks for stage in stages):
        stages = _one_fewer(stages)
    number = {rank: rank_index for rank_index, rank in enumerate(rank for rank in kept if rank in plan.ranks)}
    counted = tuple(replace(stage, ranks=tuple(number[rank] for rank in stage.ranks)) for stage in stages)
    reason = "adapted from the previous plan for the remaining hosts, without a profile"
    return replace(plan, stages=counted, planner="hosts left", estimate=None, warnings=(reason,), provenance=None)


def _one_fewer(stages: Sequence[Stage]) -> list[Stage]:
    """The stages with one that has no ranks joined to a neighbour that has, of fewest layers."""
    neighbours = [pair for pair in pairwise(stages) if bool(pair[0].ranks) != bool(pair[1].ranks)]
    first, second = min(neighbours, key=lambda pair: sum(len(stage.layers) for stage in pair if stage.ranks))
    whose = first if first.ranks else second
    joined = replace(whose, layers=first.layers + second.layers, warmup=None, segments=())
    return [joined if stage is first else stage for stage in stages if stage is not second]


def _with(stage: Stage, ranks: Sequence[int]) -> Stage:
    """The stage with the replicas of these ranks alone."""
    remaining_replicas = [k for k, rank in enumerate(stage.ranks) if rank in ranks]
    return replace(
        stage,
        ranks=tuple(stage.ranks[k] for k in remaining_replicas),
        shares=tuple(stage.shares[k] for k in remaining_replicas),
        device_types=(),
        nodes=(),
    )


def _placed(plan: Plan, cluster: Cluster) -> Plan:
    """The plan with the names of the devices that its ranks are on now."""
    return replace(plan, stages=tuple(_named(stage, cluster) for stage in plan.stages))


def _named(stage: Stage, cluster: Cluster) -> Stage:
    devices = [cluster.devices[rank] for rank in stage.ranks]
    return replace(
        stage,
        device_types=tuple(device.type.name for device in devices),
        nodes=tuple(device.node.name for device in devices),
    )
