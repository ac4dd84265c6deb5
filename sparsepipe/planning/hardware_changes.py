"""What changes of a cluster are worth: one more device, faster links, more memory, or without the slowest device.

The optimum of a cluster lies between the proven lower bound and the period of the plan. The change of throughput
between two clusters therefore lies in an interval, which is as narrow as both optimality gaps.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from ..errors import InputError
from ..util.text.numbers import Printed, at_most, duration, duration_or_none, number_of
from ..values.cluster import Cluster
from ..values.cluster_parts import Link
from ..values.plan import Plan, Stage
from ..values.profile import Profile
from . import PlanSettings, partition

_MORE_BYTES = 2e9  # of memory, which a change adds
_FASTER = 2.0  # times the bandwidth of a link
_INTERRUPTED = "the comparison was interrupted"
_EXACT = 1e-9  # width of an interval that is one number


@dataclass(frozen=True)
class HardwareChange:
    """A change of a cluster, and the interval of what it does to the throughput of the best plan.

    Attributes:
        name: The change, such as "one more titan-v on gpu-1".
        cluster: The cluster after the change.
        least: Lower end of the change of throughput, as a share: 0.31 for +31 %. None: no plan, or no lower bound.
        most: Upper end of the change. None: no plan, or no lower bound.
        period_seconds: Period of the plan for this cluster in seconds per minibatch. None: no plan.
        reason: Why there is no plan; empty if there is one.
    """

    name: str
    cluster: Cluster
    least: float | None = None
    most: float | None = None
    period_seconds: float | None = None
    reason: str = ""

    @property
    def change(self) -> str:
        """Return the interval in words, "+31.0% to +33.0%", rounded outwards; one number if both plans are optimal."""
        if self.reason:
            return f"no plan: {self.reason}"
        if self.least is None or self.most is None:
            return "not proven"
        if self.most - self.least < _EXACT:
            return f"{self.least:+z.1%}"
        ends = -at_most(-self.least, places=3), at_most(self.most, places=3)
        return " to ".join(dict.fromkeys(f"{end:+z.1%}" for end in ends))

    def to_json(self) -> dict[str, object]:
        """Return one object, without the cluster."""
        names = ("name", "least", "most", "period_seconds", "reason")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class HardwareChanges(Printed):
    """Changes of a cluster by their value, the most valuable first.

    Attributes:
        plan: The plan for the cluster as it is.
        changes: The changes.

    Example:
        >>> found = sp.compare_hardware(profile, cluster)
        >>> {change.name: change.least for change in found.changes}["without the slowest device, cpu on local"] < 0
        True

    See also:
        background/planner_and_proof, `compare_hardware`
    """

    plan: Plan
    changes: tuple[HardwareChange, ...]

    def summary(self) -> str:
        """Say in one line what the changes are compared with."""
        estimate = self.plan.estimate
        text = "changes of the hardware: throughput of the best plan"
        return text if estimate is None else f"{text}, now {duration(estimate.period_seconds)} per minibatch"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return columns and a row for each change: name, throughput, time per minibatch."""
        rows = [(change.name, change.change, duration_or_none(change.period_seconds)) for change in self.changes]
        return ("change", "throughput", "time per minibatch"), rows

    def to_json(self) -> dict[str, object]:
        """Return one object with a list of the changes."""
        estimate = self.plan.estimate
        seconds = None if estimate is None else estimate.period_seconds
        bound = None if estimate is None else estimate.lower_bound_seconds
        return {
            "period_seconds": seconds,
            "lower_bound_seconds": bound,
            "changes": [change.to_json() for change in self.changes],
        }


def compare_hardware(
    profile: Profile,
    cluster: Cluster,
    *,
    schedule: str = PlanSettings.schedule,
    num_microbatches: int | None = None,
    recompute: bool = False,
    quick: bool = False,
    progress: Callable[[str], object] | None = None,
) -> HardwareChanges:
    """Plan for changes of a cluster, and give the interval of what each does to the throughput of the best plan.

    Changes: one more device of each type, links of twice the bandwidth, 2 GB more memory for each device type with a
    limit, and the cluster without its slowest device. A new device joins the first node that has its type. Steps of a
    synchronous schedule keep their number of microbatches.

    Args:
        profile: Costs of the layers on every device type of the cluster.
        cluster: Devices and links.
        schedule, num_microbatches, recompute, quick: Settings of `partition`; the planner is "optimal".
        progress: Function that gets a line such as "2 of 5 changes" before each change. With it, KeyboardInterrupt
            ends the comparison: changes that are not planned by then have that as their reason.

    Returns:
        The plan for the cluster as it is, and the changes, the most valuable first.

    Raises:
        InputError: As in `partition`.

    Example:
        >>> found = sp.compare_hardware(profile, cluster)
        >>> best = found.changes[0]
        >>> best.name, best.least >= 0
        ('one more cpu on local', True)

    See also:
        background/planner_and_proof, `partition`, `regret`
    """

    def planned(each: Cluster, microbatches: int | None) -> Plan:
        return partition(
            profile, each, schedule=schedule, num_microbatches=microbatches, recompute=recompute, quick=quick
        )

    plan, changes = planned(cluster, num_microbatches), list[HardwareChange]()
    every = [*_changes(profile, cluster)]
    for k, (name, changed, sign) in enumerate(every):
        try:
            if progress:
                progress(f"{k} of {number_of(len(every), 'change')}")
            changes.append(_judged(name, changed, sign, plan, planned(changed, plan.num_microbatches)))
        except InputError as error:
            changes.append(HardwareChange(name, changed, reason=str(error)))
        except KeyboardInterrupt:
            if progress is None:
                raise
            changes += [HardwareChange(name, changed, reason=_INTERRUPTED) for name, changed, _ in every[k:]]
            break
    changes.sort(key=lambda change: float("inf") if change.period_seconds is None else change.period_seconds)
    return HardwareChanges(plan, tuple(changes))


def _judged(name: str, cluster: Cluster, sign: int, before: Plan, after: Plan) -> HardwareChange:
    """Compare two plans. `sign`: 1 if the best plan cannot be slower after the change, -1 if it cannot be faster."""
    assert before.estimate is not None and after.estimate is not None
    period_before, low_before = before.estimate.period_seconds, before.estimate.lower_bound_seconds
    period, low = after.estimate.period_seconds, after.estimate.lower_bound_seconds
    if sign > 0:
        period = min(period, period_before)  # the plan of before is possible after it, too
    if low is None or low_before is None:
        return HardwareChange(name, cluster, period_seconds=period)
    if not period or not low:  # no layer takes any time, or nothing is proven
        return HardwareChange(name, cluster, 0.0 if sign > 0 else -1.0, None if period else 0.0, period)
    least, most = low_before / period - 1, period_before / low - 1
    if sign > 0:
        return HardwareChange(name, cluster, max(least, 0.0), most, period)
    return HardwareChange(name, cluster, least, min(most, 0.0), period)


def _changes(profile: Profile, cluster: Cluster) -> Iterator[tuple[str, Cluster, int]]:
    """Yield (name, cluster, sign) of each change: see `_judged`."""
    nodes, types = cluster.nodes, cluster.device_types
    for kind in types:
        home = next(node for node in nodes if kind in node.device_types)
        larger = replace(home, device_types=(*home.device_types, kind))
        every = tuple(larger if node is home else node for node in nodes)
        yield f"one more {kind.name} on {home.name}", replace(cluster, nodes=every), 1
    if len(nodes) > 1 and _limits(cluster.network):
        yield "network of twice the bandwidth", replace(cluster, network=_faster(cluster.network)), 1
    if any(len(node.device_types) > 1 and _limits(node.link) for node in nodes):
        every = tuple(replace(node, link=_faster(node.link)) for node in nodes)
        yield "links within nodes of twice the bandwidth", replace(cluster, nodes=every), 1
    for kind in types:
        if kind.memory_bytes < float("inf"):
            more = replace(kind, memory_bytes=kind.memory_bytes + _MORE_BYTES)
            owned = [tuple(more if other == kind else other for other in node.device_types) for node in nodes]
            every = tuple(replace(node, device_types=others) for node, others in zip(nodes, owned, strict=True))
            yield f"2 GB more memory on each {kind.name}", replace(cluster, nodes=every), 1
    if len(cluster.devices) > 1:
        seconds = {kind: sum(profile.time(range(len(profile.graph.layers)), kind.name)) for kind in types}
        slowest = max(reversed(cluster.devices), key=lambda device: seconds[device.type])
        rest = [device.rank for device in cluster.devices if device is not slowest]
        name = f"without the slowest device, {slowest.type.name} on {slowest.node.name}"
        yield name, cluster.part(rest), -1


def _limits(link: Link) -> bool:
    return link.bandwidth < float("inf")


def _faster(link: Link) -> Link:
    return replace(link, bandwidth=_FASTER * link.bandwidth)


# A plan for the hosts that are left when others are lost: as before, by the run's profile, or by joining stages
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
