"""Decide whether a running job changes its plan: what a change gains over what is left, beside what it costs.

Everything is asked of the devices as they are now (`Factors.scaled`): the planner for plans, the simulator for their
paces. A change must gain more than it costs by a margin, and make each minibatch faster by a share that measurements
can tell: what is not sure to pay is left alone, so that noise moves nothing (hysteresis). What changes gave so far says
how far simulated gains are to be believed (outcomes.py).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..cluster import Cluster
from ..errors import InputError
from ..plan import Plan
from ..planners import Problem, partition
from ..planners.by_hand import with_groups
from ..planners.device_groups import device_classes
from ..profile import Profile
from .factors import Factors
from .moves import Move, MoveCost, Pace, cost_of, largest_payload, moves_between, nearest, to_json, transfer_seconds


@dataclass(frozen=True)
class Caution:
    """When a change is worth it."""

    margin: float = 1.5  # its gain must be so many times its cost
    least_share: float = 0.05  # and each minibatch faster by this share
    other_seconds: float = 0.1  # that every change takes: to agree, to build stages, to open connections


@dataclass(frozen=True)
class Decision:
    """The plan to follow from now on, and why."""

    plan: Plan  # the present one where nothing is to change
    changes: bool
    gain_seconds: float  # over the minibatches left, by the best change looked at
    cost: MoveCost  # of that change
    moves: tuple[Move, ...]  # what changes hands; nothing where nothing is to change
    why: str  # one line
    simulated: float = 0.0  # the share by which the simulator has minibatches shorter under that change

    @property
    def cost_seconds(self) -> float:
        return self.cost.seconds

    @property
    def moved_bytes(self) -> float:
        return sum(move.num_bytes for move in self.moves)

    def to_json(self) -> dict[str, Any]:
        """What a row of a record holds; the plan is kept beside it."""
        return {
            "changes": self.changes,
            "predicted_gain_seconds": self.gain_seconds,
            "predicted_cost": self.cost.to_json(),
            "moves": to_json(self.moves),
            "reason": self.why,
        }


CAUTION = Caution()
_TOLD = 5e-4  # of a share, whose difference is told
NO_COST = MoveCost(0.0, 0.0, 0.0, 0.0)


def stay(plan: Plan, why: str, *, gain_seconds: float = 0.0, cost: MoveCost = NO_COST) -> Decision:
    """Go on as before."""
    return Decision(plan, False, gain_seconds, cost, (), why)


def decide(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    factors: Factors,
    *,
    minibatches_left: int,
    seconds_per_minibatch: float | None = None,
    known: Iterable[Plan] = (),
    caution: Caution = CAUTION,
    believed: Callable[[Plan, float], float] = lambda plan, share: share,
) -> Decision:
    """Choose the plan that gains most over `minibatches_left` after its cost, if that is worth it.

    `profile` and `cluster` are those that `plan` was made for, `factors` say how they are now. Looked at are the
    optimal plan, the present stages and devices with other cuts, and the plans `known`, such as the one that the job
    began with. Any of the cluster's devices may be left out, or taken in. `seconds_per_minibatch` is what one takes now
    as measured; gains are in proportion to it. `believed` says by which share minibatches will be shorter under a plan
    where the simulator says one. Raises InputError for a plan that does not go with the profile and the cluster.
    """
    plan.check(profile.graph, cluster)
    now, devices = factors.scaled(profile, cluster)
    before, seen = Pace.of(plan, now, devices), largest_payload(plan, profile)
    measured = seconds_per_minibatch or before.seconds_per_minibatch
    best: tuple[float, Plan, float, MoveCost, tuple[Move, ...], float] | None = None
    for new in candidates(plan, now, devices, known):
        after = Pace.of(new, now, devices)
        faster = 1 - after.seconds_per_minibatch / before.seconds_per_minibatch
        moves = moves_between(plan, new, profile, cluster)
        transfer = transfer_seconds(moves, cluster, factors, seen_bytes=seen)
        cost = cost_of(before, after, transfer_seconds=transfer, other_seconds=caution.other_seconds)
        gain = minibatches_left * measured * believed(new, faster)
        if best is None or gain - cost.seconds > best[0]:
            best = gain - cost.seconds, new, gain, cost, moves, faster
    if best is None:
        return stay(plan, "no other plan is any different")
    _, new, gain, cost, moves, simulated = best
    share = gain / (minibatches_left * measured) if minibatches_left and measured else 0.0
    if gain <= 0:
        return stay(plan, "no other plan is faster on the devices as they are now", gain_seconds=gain, cost=cost)
    told = f"{share:.1%} faster: gains {gain:.2f} s over {minibatches_left} minibatches, costs {cost.seconds:.2f} s"
    if abs(share - simulated) >= _TOLD:
        told += f" (simulated {simulated:.1%}, corrected by what earlier changes gave)"
    if share < caution.least_share:
        return stay(plan, f"{told}; a change must be {caution.least_share:.0%} faster", gain_seconds=gain, cost=cost)
    if gain <= caution.margin * cost.seconds:
        return stay(plan, f"{told}; it must gain {caution.margin:g} times that", gain_seconds=gain, cost=cost)
    return Decision(for_real(new, cluster), True, gain, cost, moves, told, simulated)


def candidates(plan: Plan, now: Profile, devices: Cluster, known: Iterable[Plan]) -> list[Plan]:
    """Return other plans for the devices as they are now, each once: the optimal one, stages cut anew, the known."""
    found: list[Plan] = []
    settings: dict[str, Any] = {"schedule": plan.schedule, "num_microbatches": plan.num_microbatches}
    recompute = any(stage.recompute for stage in plan.stages)
    for make in (
        lambda: partition(now, devices, quick=True, recompute=recompute, **settings),
        lambda: _same_devices(plan, Problem(now, devices, plan.schedule, plan.num_microbatches, recompute)),
    ):
        try:
            found.append(nearest(plan, make(), now, devices))
        except InputError:  # what this schedule, these stages or this memory does not let it plan
            continue
    found = [
        replace(new, weights=plan.weights, routing=plan.routing, accumulation=plan.accumulation) for new in found
    ] + [new for new in known if set(new.ranks) <= {device.rank for device in devices.devices}]
    different = {tuple((s.layers, s.ranks, s.shares) for s in new.stages): new for new in reversed(found)}
    different.pop(tuple((s.layers, s.ranks, s.shares) for s in plan.stages), None)
    return list(different.values())[::-1]


def _same_devices(plan: Plan, problem: Problem) -> Plan:
    """The same number of devices of each kind in each stage, cut anew."""
    classes = device_classes(problem.cluster)
    groups = [tuple(sum(rank in one.ranks for rank in stage.ranks) for one in classes) for stage in plan.stages]
    return replace(with_groups(problem, groups), planner="cut anew")  # nobody set it by hand


def for_real(new: Plan, cluster: Cluster) -> Plan:
    """Return the plan with its devices' own type names again, and the estimate for the devices as they are now."""
    stages = tuple(
        replace(
            stage,
            device_types=tuple(cluster.devices[rank].type.name for rank in stage.ranks),
            nodes=tuple(cluster.devices[rank].node.name for rank in stage.ranks),
        )
        for stage in new.stages
    )
    return replace(new, stages=stages)
