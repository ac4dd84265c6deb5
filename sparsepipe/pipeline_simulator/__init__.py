"""Simulate several pipelines that average by a replication rule, from the same programs and decisions as a real run.

together.py   the loop over all pipelines: who takes which minibatch, which merges there are, who waits
member.py     one pipeline: the simulator of one plan, with minibatches by pace
loader.py     what a pipeline takes ahead of what it trains, as a run's does
exchange.py   how long the weights of a merge are on their way
outcome.py    what it all comes to
"""

from collections.abc import Sequence

from ..cluster import Cluster
from ..display.counting import number_of
from ..errors import InputError
from ..io.fields import number
from ..io.keywords import knows_its_keywords
from ..pipelines import Pipelines
from ..profile import Profile
from ..replication.paces import pace
from ..schedule import check_rule
from ..simulator import check_sizes, collector_paused
from ..stragglers import Stragglers, held_up_fact
from ..stragglers.restarts import RESTART_SECONDS
from ..trace import WORK, Span, Trace
from .member import Member
from .outcome import CAUSES, PipelinePace, PipelinesForecast
from .together import HANDED_OUT, TIME, Together

__all__ = ["CAUSES", "RESTART_SECONDS", "PipelinePace", "PipelinesForecast", "simulate_pipelines"]


@knows_its_keywords
def simulate_pipelines(
    pipelines: Pipelines,
    profile: Profile,
    cluster: Cluster,
    sizes: Sequence[float],
    *,
    stragglers: Stragglers | str | None = None,
    seed: int = 0,
    restart_seconds: float = RESTART_SECONDS,
    starts: Sequence[float] = (),
) -> PipelinesForecast:
    """Let pipelines share one minibatch of each of `sizes` (at the network's input, in the profile's unit).

    Each takes the next ones when it has room, as many ahead as a run's loaders read ahead of what is trained, in whole
    units of its plan's updates; less than a unit goes to who is empty. They average by `pipelines.replication`, whose
    draws are by `seed`. Weights are on their way for as long as the cluster's links take for them, beside the
    activations. A pipeline of which a rank is killed trains again `restart_seconds` later, with a live one's weights;
    what its last stage had not done goes back to all. `starts`: when each pipeline begins, in seconds; all at once when
    not given, which in a run they do not: of those that wait for each other little, the groups depend on it.

    Reading takes no time here. Labels that a run reads from files are asked for a step earlier still in schedules with
    several minibatches a step; that is not simulated.

    Raises InputError for pipelines that cannot run, for stragglers of ranks that are not there, and for a kill where
    the rule averages gradients: what the others do then is not simulated.
    """
    check_sizes(sizes)
    number(restart_seconds, "restart_seconds")
    if starts and len(starts) != len(pipelines.pipelines):
        raise InputError(
            "simulation.start_count",
            f"{len(starts)} starts for {number_of(len(pipelines.pipelines), 'pipeline')}: expected one each",
        )
    begins = [number(start, "a start") for start in starts] or [0.0] * len(pipelines.pipelines)
    check_rule(pipelines.check(profile.graph, cluster))
    held_up = Stragglers.of(stragglers)
    held_up.check(max(pipelines.ranks) + 1)
    with collector_paused():
        found = Together(
            pipelines.pipelines,
            profile,
            cluster,
            sizes,
            rule=pipelines.replication,
            stragglers=held_up if held_up.parts else None,
            seed=seed,
            restart_seconds=restart_seconds,
        )
        found.run(begins)
        lives = [[life for life in (*found.past, last) if life.number == last.number] for last in found.members]
        paces = tuple(
            _pace(found, own, profile, cluster, sizes, samples=pipelines.samples or 1.0, start=start)
            for own, start in zip(lives, begins, strict=True)
        )
        spans = [span for own in lives for life in own for span in _numbered(life)]
    return PipelinesForecast(
        Trace(tuple(spans), "simulated", pipelines.trace_facts | held_up_fact(held_up)),
        pipelines.replication,
        paces,
        dict(found.group_sizes),
        dict(found.staleness),
        found.forced,
        found.bytes,
        tuple(tuple(_taken(own)) for own in lives),
        pipelines.samples,
        _done(lives),
    )


def _done(lives: Sequence[Sequence[Member]]) -> tuple[float, float]:
    """When the first and the last minibatch of all was done: a run counts them at their last stage's update, too."""
    ends: dict[int, float] = {}
    for life in (life for own in lives for life in own):
        last = len(life.plan.stages) - 1
        for span in life.spans():
            if span.stage == last and span.kind in WORK and span.minibatch < len(life.numbers):
                number = life.numbers[span.minibatch]
                ends[number] = max(ends.get(number, 0.0), span.end)
    return (min(ends.values()), max(ends.values())) if ends else (0.0, 0.0)


def _taken(lives: Sequence[Member]) -> list[int]:
    """The minibatches that a pipeline has done, in its order."""
    return [place for life in lives for place in life.numbers]


def _pace(
    found: Together,
    lives: Sequence[Member],
    profile: Profile,
    cluster: Cluster,
    sizes: Sequence[float],
    *,
    samples: float,
    start: float,
) -> PipelinePace:
    last = lives[-1]
    tally, taken = found.tallies[last.number], [sizes[place] for place in _taken(lives)]
    alone = Together([last.plan], profile, cluster, taken, rule=None, stragglers=last.stragglers)
    alone.run([0.0])
    lost = {cause: tally.lost[cause] for cause in CAUSES}
    lost["straggler"] = max(sum(life.extra[rank] for life in lives) for rank in last.plan.ranks)
    seconds = max(_end(lives, start), tally.blocked_until) - start
    return PipelinePace(
        len(taken),
        seconds,
        pace(samples * len(taken), seconds),
        pace(samples * len(taken), _end(alone.members, 0.0)),
        lost,
        tuple(tally.waited_for[other] for other in range(len(found.members))),
        tally.waited_for[TIME],
        tally.waited_for[HANDED_OUT],
    )


def _end(lives: Sequence[Member], start: float) -> float:
    """When the last of a pipeline's minibatches was done; its start where it did none."""
    return max((span.end for life in lives for span in life.spans()), default=start)


def _numbered(member: Member) -> list[Span]:
    """The spans of a pipeline with minibatches by their numbers in the epoch."""
    numbers = [*member.numbers, *member.lost]
    return [span._replace(minibatch=numbers[span.minibatch]) for span in member.spans()]
