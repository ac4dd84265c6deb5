"""Simulate several pipelines that average by a replication rule, from the same programs and decisions as a real run.

together.py   the loop over all pipelines: who takes which minibatch, which merges there are, who waits
member.py     one pipeline: the simulator of one plan, with minibatches by pace
exchange.py   how long the weights of a merge are on their way
outcome.py    what it all comes to
"""

from collections.abc import Sequence

from ..cluster import Cluster
from ..forecast import steady_rate
from ..pipelines import Pipelines
from ..profile import Profile
from ..replication import rule_text
from ..simulator import collector_paused
from ..stragglers import Stragglers
from ..trace import Span, Trace
from .member import Member
from .outcome import CAUSES, PipelinePace, PipelinesForecast
from .together import Together

__all__ = ["CAUSES", "PipelinePace", "PipelinesForecast", "simulate_pipelines"]


def simulate_pipelines(
    pipelines: Pipelines,
    profile: Profile,
    cluster: Cluster,
    sizes: Sequence[float],
    *,
    stragglers: Stragglers | None = None,
    seed: int = 0,
) -> PipelinesForecast:
    """Let pipelines share one minibatch of each of `sizes` (at the network's input, in the profile's unit).

    Each takes the next ones when it has room, in whole units of its plan's updates. They average by
    `pipelines.replication`, whose draws are by `seed`. Weights are on their way for as long as the cluster's links take
    for them, beside the activations. Raises InputError for pipelines that cannot run, and for stragglers of ranks that
    are not there or that are killed.
    """
    pipelines.check(profile.graph, cluster)
    if stragglers is not None:
        stragglers.check(max(pipelines.ranks) + 1)
        stragglers = stragglers if stragglers.parts else None
    with collector_paused():
        found = Together(
            pipelines.pipelines,
            profile,
            cluster,
            sizes,
            rule=pipelines.replication,
            stragglers=stragglers,
            seed=seed,
        )
        found.run()
        paces = tuple(_pace(found, member, profile, cluster, sizes, pipelines.samples) for member in found.members)
        spans = [span for member in found.members for span in _numbered(member)]
        ranks = [list(pipelines.ranks_of(k)) for k in range(len(paces))]
    return PipelinesForecast(
        Trace(tuple(spans), "simulated", {"pipelines": ranks}),
        rule_text(pipelines.replication),
        paces,
        dict(found.group_sizes),
        dict(found.staleness),
        found.forced,
        found.bytes,
        tuple(tuple(member.numbers) for member in found.members),
    )


def _pace(
    found: Together, member: Member, profile: Profile, cluster: Cluster, sizes: Sequence[float], samples: float
) -> PipelinePace:
    tally = found.tallies[member.number]
    taken = [sizes[number] for number in member.numbers]
    alone = Together([member.plan], profile, cluster, taken, rule=None, stragglers=member.stragglers)
    alone.run()
    lost = {cause: tally.lost[cause] for cause in CAUSES}
    lost["straggler"] = max(member.extra.values(), default=0.0)
    return PipelinePace(
        len(taken),
        samples * _rate(member),
        samples * _rate(alone.members[0]),
        lost,
        tuple(tally.waited_for[other] for other in range(len(found.members))),
        tally.waited_for[-1],
    )


def _rate(member: Member) -> float:
    """Minibatches a second when steady."""
    if not member.numbers:
        return 0.0
    return steady_rate(Trace(tuple(member.spans()), "simulated"), member.plan, len(member.numbers))


def _numbered(member: Member) -> list[Span]:
    """The spans of a pipeline with minibatches by their numbers in the epoch."""
    return [span._replace(minibatch=member.numbers[span.minibatch]) for span in member.spans()]
