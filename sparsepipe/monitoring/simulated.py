"""Simulate a run that changes its plan by itself: what a variant does about stragglers, and what comes of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError
from ..util.io.fields import given_integer
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.stragglers import Stragglers
from ..values.trace import Span, Trace
from .change_point import NO_KILLS, UNDISTURBED, Followed, Segment, seconds_of, simulate_from, simulate_plans
from .decision import CAUTION, Caution, Decision, candidates, for_real
from .factors import Factors, LeftOutWork
from .moves import Pace, cost_of, moves_between, transfer_seconds
from .replanner import ChangeWatcher, Replanner
from .variants import LayerFactors, Variant

LEAD = 1  # minibatches from a decision to the first that may begin under the new plan: all ranks must have heard of it


@dataclass(frozen=True)
class Change:
    """A change of plan in a simulated run."""

    decided_at: int  # the minibatch that was next to begin then
    first_minibatch: int  # under the new plan
    decision: Decision

    def to_json(self) -> dict[str, Any]:
        return {
            "minibatch": self.first_minibatch,
            "decided_at": self.decided_at,
            "moved_bytes": self.decision.moved_bytes,
            **self.decision.to_json(),
            "plan": self.decision.plan.to_json(),
        }


@dataclass(frozen=True)
class ReplanForecast:
    """A simulated run whose plan changed."""

    variant: str
    num_minibatches: int
    segments: tuple[Segment, ...]
    changes: tuple[Change, ...]
    decisions: tuple[tuple[int, Decision], ...]  # (minibatch, decision), those that left the plan alone too

    @property
    def seconds(self) -> float:
        return seconds_of(self.segments)

    @property
    def minibatches_per_second(self) -> float:
        """Over the whole run, moves included."""
        return self.num_minibatches / self.seconds if self.seconds else float("inf")

    @property
    def trace(self) -> Trace:
        spans = tuple(span for segment in self.segments for span in segment.trace.spans)
        return Trace(spans, "simulated", self.segments[0].trace.facts)  # the whole run's stragglers, alike in each

    def to_json(self) -> dict[str, Any]:
        return {
            "variant": self.variant,
            "makespan_seconds": self.seconds,
            "minibatches_per_second": self.minibatches_per_second,
            "replans": [change.to_json() for change in self.changes],
            "pause_seconds": sum(segment.pause_seconds for segment in self.segments),
        }


def simulate_replans(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    sizes: Sequence[float],
    *,
    variant: Variant,
    watcher: ChangeWatcher,
    stragglers: Stragglers = UNDISTURBED,
    epoch_minibatches: int | None = None,
    caution: Caution = CAUTION,
    predict: Callable[[int], LayerFactors | None] | None = None,
) -> ReplanForecast:
    """Train on a minibatch of each of `sizes`, watched by `watcher`, the plan changed as `variant` says.

    A change begins with the first minibatch that has not begun when it is decided, and one more; if weights are
    updated by step, with the next step. Epochs have `epoch_minibatches`, a tenth of the run when not given. Raises
    InputError as `simulate` does.
    """
    if epoch_minibatches is not None:
        given_integer(epoch_minibatches, "minibatches of an epoch:", least=1)
    epoch = epoch_minibatches or max(1, len(sizes) // 10)
    replanner = Replanner(
        plan, profile, cluster, watcher, variant, num_minibatches=len(sizes), caution=caution, predict=predict
    )
    followed, changes, begin = [(0, plan)], list[Change](), 0.0
    while True:
        first, current = followed[-1]
        whole = simulate_from(current, profile, cluster, sizes[first:], first, begin, stragglers)
        change = _first_change(replanner, whole, current, first, epoch, sizes, stragglers)
        if change is None:
            break
        changes.append(change)
        followed.append((change.first_minibatch, change.decision.plan))
        replanner.begin(change.decision, change.first_minibatch)
        begin = simulate_plans(followed, profile, cluster, sizes, stragglers=stragglers, caution=caution)[-1].begin
    segments = simulate_plans(followed, profile, cluster, sizes, stragglers=stragglers, caution=caution)
    return ReplanForecast(variant.name, len(sizes), segments, tuple(changes), tuple(replanner.decisions))


def _first_change(
    replanner: Replanner,
    trace: Trace,
    plan: Plan,
    first: int,
    epoch: int,
    sizes: Sequence[float],
    stragglers: Stragglers,
) -> Change | None:
    """Show the replanner a plan's part of the run as it happens, until it changes the plan; None: it never does."""
    boundary, shown = (first // epoch + 1) * epoch, first
    for spans, following in _moments(trace, first):
        ends_epoch = following >= boundary
        new = {m: sizes[m] for m in range(shown, following)}
        left_out = [
            LeftOutWork(rank, m, 1 + stragglers.extra_seconds(rank, m, 1.0), spans[-1].end)
            for m in range(shown, following)
            for rank in range(len(replanner.cluster.devices))
            if rank not in plan.ranks
        ]
        decision = replanner.see(spans, new, following, left_out=left_out, ends_epoch=ends_epoch)
        shown = following
        begins = boundary if ends_epoch else following + LEAD
        boundary += epoch * ends_epoch
        if decision is None:
            continue
        unit = plan.num_microbatches if plan.updates_by_step else 1
        begins = first + -(-(begins - first) // unit) * unit
        if begins < len(sizes):
            return Change(following, begins, decision)
        replanner.refused()
    return None


def _moments(trace: Trace, first: int) -> Iterator[tuple[list[Span], int]]:
    """(what ended since the moment before, the next minibatch to begin), at each end of a minibatch."""
    begun = sorted((span.start, span.minibatch) for span in trace.spans if span.stage == 0 and span.kind == "forward")
    place, following, since = 0, first, list[Span]()
    for span in sorted(trace.spans, key=lambda one: one.end):
        since.append(span)
        if span.stage or span.kind != "backward":
            continue
        while place < len(begun) and begun[place][0] <= span.end:
            following = max(following, begun[place][1] + 1)
            place += 1
        yield since, following
        since = []
    if since:
        yield since, following


def check_replans(stragglers: Stragglers, num_ranks: int, num_minibatches: int) -> None:
    """Raise InputError for a straggler that ends a process: a simulation of changing plans has none to end."""
    stragglers.check(num_ranks)
    if any(stragglers.kills(rank, m) for rank in range(num_ranks) for m in range(num_minibatches)):
        raise InputError("straggler.kill_not_simulated", NO_KILLS)


_MOST_STRETCHES = 64
_MOST_PLANS = 12


# The oracle: the best sequence of plans for one who knows every slow-down in advance, with the cost of each change
@dataclass(frozen=True)
class Stretch:
    """Minibatches in which no device changes."""

    first: int
    end: int
    factors: Factors


def stretches(stragglers: Stragglers, num_ranks: int, num_minibatches: int) -> tuple[Stretch, ...]:
    """Return the slowdown of each rank over a run, without delays that are independent of its work (stops, jitter).

    If it changes more often than 64 times, the run is cut into as many equal stretches, with means.
    """
    slow = np.array(
        [
            [
                1 + stragglers.extra_seconds(rank, m, 2.0) - stragglers.extra_seconds(rank, m, 1.0)
                for rank in range(num_ranks)
            ]
            for m in range(num_minibatches)
        ]
    ).reshape(num_minibatches, num_ranks)
    changes = [0, *(np.flatnonzero((slow[1:] != slow[:-1]).any(axis=1)) + 1).tolist(), num_minibatches]
    if len(changes) - 1 > _MOST_STRETCHES:
        changes = np.linspace(0, num_minibatches, _MOST_STRETCHES + 1).astype(int).tolist()
    return tuple(
        Stretch(a, b, Factors(tuple(np.round(slow[a:b].mean(axis=0), 2).tolist())))
        for a, b in zip(changes, changes[1:], strict=False)
        if b > a
    )


def oracle_segments(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    sizes: Sequence[float],
    *,
    stragglers: Stragglers = UNDISTURBED,
    caution: Caution = CAUTION,
) -> tuple[Segment, ...]:
    """Simulate the run of somebody who changes plans where devices do, as often as it pays, or never."""
    found = best_plans(plan, profile, cluster, stretches(stragglers, len(cluster.devices), len(sizes)), caution)
    choices = [
        simulate_plans(plans, profile, cluster, sizes, stragglers=stragglers, caution=caution)
        for plans in ([(0, plan)], found)
    ]
    return min(choices, key=seconds_of)


def best_plans(
    plan: Plan, profile: Profile, cluster: Cluster, parts: Sequence[Stretch], caution: Caution = CAUTION
) -> list[Followed]:
    """The plan of each stretch, so that the run is shortest: exact over the optimal plans of all stretches.

    Dynamic programming over stretches. The run begins with `plan`, and may leave it at once.
    """
    plans = _plans(plan, profile, cluster, parts)
    paces = [[Pace.of(one, *part.factors.scaled(profile, cluster)) for one in plans] for part in parts]
    sending = [[transfer_seconds(moves_between(a, b, profile, cluster), cluster) for b in plans] for a in plans]
    best, came_from = np.array([0.0] + [np.inf] * (len(plans) - 1)), list[np.ndarray]()
    for k, part in enumerate(parts):
        changing = np.zeros((len(plans), len(plans)))
        for a, b in np.ndindex(len(plans), len(plans)):
            if a != b:
                changing[a, b] = cost_of(
                    paces[max(k - 1, 0)][a],
                    paces[k][b],
                    transfer_seconds=sending[a][b],
                    other_seconds=caution.other_seconds,
                ).seconds
        reached = best[:, None] + changing
        came_from.append(reached.argmin(axis=0))
        best = reached.min(axis=0) + [(part.end - part.first) * pace.seconds_per_minibatch for pace in paces[k]]
    at, chosen = int(best.argmin()), list[int]()
    for pick in reversed(came_from):
        chosen.append(at)
        at = int(pick[at])
    followed: list[Followed] = [(0, plan)]
    for part, one in zip(parts, reversed(chosen), strict=True):
        if plans[one] != followed[-1][1]:
            followed = [*(f for f in followed if f[0] < part.first), (part.first, plans[one])]
    return followed


def _plans(plan: Plan, profile: Profile, cluster: Cluster, parts: Sequence[Stretch]) -> list[Plan]:
    """The present plan, and the best ones for each way that devices are; of too many for those that last longest."""
    lasting: dict[tuple[float, ...], int] = {}
    for part in parts:
        lasting[part.factors.ranks] = lasting.get(part.factors.ranks, 0) + part.end - part.first
    found = [plan]
    for ranks in sorted(lasting, key=lambda ranks: -lasting[ranks])[:_MOST_PLANS]:
        now, devices = Factors(ranks).scaled(profile, cluster)
        for new in (for_real(one, cluster) for one in candidates(plan, now, devices, ())):
            if all(
                [stage.layers for stage in new.stages] != [s.layers for s in one.stages] or new.ranks != one.ranks
                for one in found
            ):
                found.append(new)
    return found
