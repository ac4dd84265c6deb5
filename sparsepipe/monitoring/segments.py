"""Simulate a run whose plan changes: each plan's minibatches by the simulator, a pause between two plans."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..errors import InputError
from ..planning.simulator import simulate
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.stragglers import Stragglers
from ..values.trace import Trace
from .decision import CAUTION, Caution
from .moves import moves_between, transfer_seconds

UNDISTURBED = Stragglers()
NO_KILLS = "straggler kill: simulated plans that change end no process; run or replay it, or simulate one plan"
Followed = tuple[int, Plan]  # (its first minibatch, plan)


@dataclass(frozen=True)
class Segment:
    """A part of a run under one plan."""

    first_minibatch: int
    plan: Plan
    begin: float  # seconds, of the run
    trace: Trace  # in the run's time and minibatches
    pause_seconds: float  # before it, in which nothing is trained


def simulate_plans(
    plans: Sequence[Followed],
    profile: Profile,
    cluster: Cluster,
    sizes: Sequence[float],
    *,
    stragglers: Stragglers = UNDISTURBED,
    caution: Caution = CAUTION,
) -> tuple[Segment, ...]:
    """Let a run follow `plans` in turn. Each pipeline runs empty before the next fills; its state moves between them.

    Raises InputError as `simulate` does.
    """
    found: list[Segment] = []
    ends = [first for first, _ in plans[1:]] + [len(sizes)]
    clock = 0.0
    before: Plan | None = None
    for (first, plan), end in zip(plans, ends, strict=True):
        pause = 0.0
        if before is not None:
            moves = moves_between(before, plan, profile, cluster)
            pause = transfer_seconds(moves, cluster) + caution.other_seconds
        trace = simulate_from(plan, profile, cluster, sizes[first:end], first, clock + pause, stragglers)
        found.append(Segment(first, plan, clock + pause, trace, pause))
        clock, before = max((span.end for span in trace.spans), default=clock + pause), plan
    return tuple(found)


def simulate_from(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    sizes: Sequence[float],
    first_minibatch: int,
    begin: float,
    stragglers: Stragglers,
) -> Trace:
    """One plan's part of a run, which begins at `begin` seconds with the run's minibatch `first_minibatch`.

    Raises InputError as `simulate` does, and if a rank is killed in it.
    """
    stragglers.check(len(cluster.devices))
    own = simulate(plan, profile, cluster, sizes, stragglers=stragglers.later(first_minibatch))
    if own.facts.get("restart"):
        raise InputError("straggler.kill_not_simulated", NO_KILLS)
    spans = (
        span._replace(start=span.start + begin, end=span.end + begin, minibatch=span.minibatch + first_minibatch)
        for span in own.spans
    )
    return Trace(tuple(spans), own.source, own.facts)


def seconds_of(segments: Sequence[Segment]) -> float:
    """Return the duration of the run in seconds."""
    return max((span.end for segment in segments for span in segment.trace.spans), default=0.0)


def iteration_seconds(segments: Sequence[Segment], num_minibatches: int) -> list[float]:
    """From the end of each minibatch's last backward to that of the next; of the first one from the beginning."""
    ends = [0.0] * num_minibatches
    for segment in segments:
        for span in segment.trace.spans:
            if span.stage == 0 and span.kind == "backward":
                ends[span.minibatch] = max(ends[span.minibatch], span.end)
    return [after - before for before, after in pairwise([0.0, *ends])]
