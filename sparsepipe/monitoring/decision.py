"""Decide whether a running job changes its plan: what a change gains over what is left, compared with what it costs.

Everything is asked of the devices as they are now (`Factors.scaled`): the planner for plans, the simulator for their
paces. A change must gain more than it costs by a margin, and make each minibatch faster by a share that measurements
can tell, whichever of the ways that devices may be, within the errors of what was measured, is so: what is not sure to
pay is left alone, so that noise moves nothing (hysteresis). What changes gave so far says how far simulated gains are
to be believed (outcomes.py).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import InputError
from ..planning import Problem, partition
from ..planning.by_hand import with_groups
from ..planning.device_groups import device_classes
from ..util.text.numbers import number_of
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from .factors import Factors
from .moves import (
    LayerMove,
    MoveCost,
    Pace,
    cost_of,
    largest_payload,
    moves_between,
    nearest,
    to_json,
    transfer_seconds,
)


def faster_or_slower(share: float) -> str:
    """By which share minibatches are shorter, in words: "7.3% faster", "43.5% slower", "as fast"."""
    told = f"{abs(share):.1%}"
    if float(told[:-1]) == 0:
        return "as fast"
    return f"{told} {'faster' if share > 0 else 'slower'}"


@dataclass(frozen=True)
class Caution:
    """Thresholds above which a change is worth its cost."""

    margin: float = 1.5  # its gain must be so many times its cost
    least_share: float = 0.08  # and each minibatch faster by this share,
    least_share_of_others: float = 0.2  # or by this one where other devices work together: no profile tells how they do
    other_seconds: float = 0.1  # that every change takes: to agree, to build stages, to open connections
    follows: Callable[[Plan], bool] = lambda plan: True  # whether the job can: one of several pipelines keeps its ranks


@dataclass(frozen=True)
class Decision:
    """Plan to follow from now on, and the reason."""

    plan: Plan  # the present one where nothing is to change
    changes: bool
    gain_seconds: float  # over the minibatches that it was decided for, by the best change looked at
    cost: MoveCost  # of that change
    moves: tuple[LayerMove, ...]  # what changes hands; nothing where nothing is to change
    why: str  # one line
    simulated: float = 0.0  # the share by which the simulator has minibatches shorter under that change
    share: float = 0.0  # by which they are believed to be, of which the gain is told

    @property
    def cost_seconds(self) -> float:
        return self.cost.seconds

    @property
    def moved_bytes(self) -> float:
        return sum(move.num_bytes for move in self.moves)

    def to_json(self) -> dict[str, Any]:
        """Return the decision as a row of a record. The plan is stored separately."""
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
    also: Iterable[Factors] = (),
    minibatches_left: int,
    seconds_per_minibatch: float | None = None,
    known: Iterable[Plan] = (),
    caution: Caution = CAUTION,
    believed: Callable[[Plan, float], float] = lambda plan, share: share,
) -> Decision:
    """Choose the plan with the largest gain over `minibatches_left` after the cost of the change.

    The present plan is kept if no gain is large enough.

    Candidates are the optimal plan, the present stages and devices with other split points, and the plans in `known`,
    such as the first plan of the job. Any device of the cluster may be left out or added.

    Args:
        plan: Present plan of the job.
        profile: Profile that the plan was made for.
        cluster: Cluster that the plan was made for.
        factors: Present slowdown of each device and link.
        minibatches_left: Remaining minibatches of the run, or the number for which devices are expected to stay as they
            are.
        also: Other possible slowdowns, given the measurements. The gain of a change is the least gain in any of them.
        seconds_per_minibatch: Measured time per minibatch; gains are in proportion to it.
        believed: Function that corrects the simulated gain of a plan by earlier outcomes.

    Raises:
        InputError: A plan that does not fit the profile and the cluster.
    """
    plan.check(profile.graph, cluster)
    ways = [one.scaled(profile, cluster) for one in (factors, *also)]
    befores, seen = [Pace.of(plan, *way) for way in ways], largest_payload(plan, profile)
    measured = seconds_per_minibatch or befores[0].seconds_per_minibatch
    known = list(known)
    best: _Looked | None = None
    for new in filter(caution.follows, _all_candidates(plan, ways, cluster, known)):
        afters = [Pace.of(new, *way) for way in ways]
        shares = [_shorter(before, after) for before, after in zip(befores, afters, strict=True)]
        moves = moves_between(plan, new, profile, cluster)
        transfer = transfer_seconds(moves, cluster, factors, seen_bytes=seen)
        cost = cost_of(befores[0], afters[0], transfer_seconds=transfer, other_seconds=caution.other_seconds)
        together = _groups(new) == _groups(plan) or _signature(new) in map(_signature, known)
        needed = caution.least_share if together else max(caution.least_share, caution.least_share_of_others)
        # An alarm comes when noise is at its highest: what was measured then is rather too much, the least too little.
        simulated = (shares[0] + min(shares)) / 2
        looked = _Looked(
            new,
            believed(new, simulated),
            believed(new, min(shares)),
            needed,
            simulated,
            minibatches_left * measured,
            cost,
            moves,
        )
        if best is None or looked.rank > best.rank:
            best = looked
    if best is None:
        return stay(plan, "no other plan differs from the present one")
    aside: dict[str, Any] = {"gain_seconds": best.gain, "cost": best.cost}
    if best.gain <= 0:
        return stay(plan, "no other plan is faster on the devices in their present state", **aside)
    told_of = best.told(minibatches_left)
    if best.least < best.needed:
        return stay(plan, f"{told_of}; a change must be {best.needed:.0%} faster", **aside)
    if best.least * best.left_seconds <= caution.margin * best.cost.seconds:
        return stay(plan, f"{told_of}; it must gain {caution.margin:g} times that", **aside)
    return Decision(best.plan, True, best.gain, best.cost, best.moves, told_of, best.simulated, best.share)


@dataclass(frozen=True)
class _Looked:
    """Another plan that was looked at: what it would give and cost."""

    plan: Plan
    share: float  # by which minibatches are expected to be shorter
    least: float  # by which they are in any of the ways that devices may be
    needed: float  # by which they must be
    simulated: float  # by which the simulator has them shorter
    left_seconds: float  # that the minibatches left take under the present plan
    cost: MoveCost
    moves: tuple[LayerMove, ...]

    @property
    def gain(self) -> float:
        return self.left_seconds * self.share + 0.0  # which is 0 where it is -0

    @property
    def rank(self) -> tuple[bool, float]:
        """Of two plans the one with the higher is better."""
        enough = self.least >= self.needed
        return enough, self.gain - self.cost.seconds if enough else self.least - self.needed

    def told(self, minibatches_left: int) -> str:
        """Return the expected gain and, in brackets, its uncertainty and the simulated gain if it differs."""
        text = (
            f"{faster_or_slower(self.share)}: gains {self.gain:.2f} s over {number_of(minibatches_left, 'minibatch')}, "
        )
        text += f"costs {self.cost.seconds:.2f} s"
        notes = []
        if self.share - self.least >= _TOLD:
            notes.append(f"at worst {faster_or_slower(self.least)} within the measurement error")
        if self.share > max(self.simulated, 0.0) + _TOLD:
            notes.append(f"as measured under that plan before; simulated {faster_or_slower(self.simulated)}")
        elif self.share < self.simulated - _TOLD:
            notes.append(f"simulated {faster_or_slower(self.simulated)}, corrected by the gains of earlier changes")
        return text + (f" ({'; '.join(notes)})" if notes else "")


def _groups(plan: Plan) -> set[tuple[int, ...]]:
    """Return which devices work together, each group at layers of its own."""
    return {tuple(sorted(stage.ranks)) for stage in plan.stages}


def _signature(plan: Plan) -> tuple[Any, ...]:
    """Return what makes plans different, whoever made them."""
    return tuple((stage.layers, stage.ranks, stage.shares) for stage in plan.stages)


def _shorter(before: Pace, after: Pace) -> float:
    return 1 - after.seconds_per_minibatch / before.seconds_per_minibatch


def _all_candidates(
    plan: Plan, ways: Sequence[tuple[Profile, Cluster]], cluster: Cluster, known: Iterable[Plan]
) -> list[Plan]:
    """The candidates for any way that devices may be, each once, as plans of the devices' own types."""
    found = [for_real(new, cluster) for way in ways for new in candidates(plan, *way, ())]
    found += candidates(plan, *ways[0], known)
    once = {_signature(new): new for new in reversed(found)}
    return list(once.values())[::-1]


def candidates(plan: Plan, now: Profile, devices: Cluster, known: Iterable[Plan]) -> list[Plan]:
    """Return other plans for the devices as they are now, each once: the optimal one, stages cut again, the known."""
    found: list[Plan] = []
    settings: dict[str, Any] = {"schedule": plan.schedule, "num_microbatches": plan.num_microbatches}
    recompute = any(stage.recomputes for stage in plan.stages)
    ways: tuple[Callable[[], Plan], ...] = (
        lambda: partition(now, devices, quick=True, recompute=recompute, **settings),
        lambda: _same_devices(plan, Problem(now, devices, plan.schedule, plan.num_microbatches, recompute)),
    )
    for make in ways:
        try:
            found.append(nearest(plan, make(), now, devices))
        except InputError:  # what this schedule, these stages or this memory does not let it plan
            continue
    found = [replace(new, weights=plan.weights, accumulation=plan.accumulation) for new in found] + [
        new for new in known if set(new.ranks) <= {device.rank for device in devices.devices}
    ]
    different = {_signature(new): new for new in reversed(found)}
    different.pop(_signature(plan), None)
    return list(different.values())[::-1]


def _same_devices(plan: Plan, problem: Problem) -> Plan:
    """The same number of devices of each kind in each stage, cut again."""
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
