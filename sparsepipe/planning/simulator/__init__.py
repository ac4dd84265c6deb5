"""Simulate a plan, of one pipeline or of several, from the same programs and decisions as a real run.

simulation.py  one pipeline: what every rank does and when
member.py      one of several: the same, with minibatches by pace, read ahead as a run's are
together.py    the loop over several: who takes which minibatch, which merges there are, who waits
exchange.py    how long the weights of a merge are on their way
outcome.py     what several come to
bound.py       a time that no order of the minibatches beats
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import InputError
from ...util.io.fields import MOST, MOST_MINIBATCHES, given_integer, given_number, number, shown
from ...util.io.quantities import knows_its_keywords
from ...util.io.settings import Number, Settings, WholeNumber, setting
from ...util.text.numbers import number_of
from ...values.cluster import Cluster
from ...values.plan import Plan
from ...values.profile import Profile
from ...values.replication.base import pace
from ...values.schedule import check_rule, compile
from ...values.stragglers import Stragglers, held_up_fact
from ...values.stragglers.restarts import RESTART_SECONDS, with_restart
from ...values.trace import WORK, Span, Trace
from .bound import lower_bound
from .member import Member
from .outcome import CAUSES, PipelinePace, PipelinesForecast
from .simulation import Simulation, collector_paused
from .together import HANDED_OUT, TIME, Together

__all__ = [
    "CAUSES",
    "RESTART_SECONDS",
    "PipelinePace",
    "PipelinesForecast",
    "SimulationSettings",
    "check_sizes",
    "lower_bound",
    "simulate",
    "simulate_pipelines",
]


@dataclass(frozen=True, repr=False)
class SimulationSettings(Settings):
    """Settings of a simulation."""

    minibatches: int = setting(32, WholeNumber(1, MOST_MINIBATCHES), "number of minibatches")
    epoch_minibatches: int | None = setting(
        None,
        WholeNumber(1),
        "minibatches per epoch; at its end --replan epoch may change the plan, and a checkpoint is written",
        words="with --replan a tenth of the minibatches, else all",
    )
    seed: int = setting(0, WholeNumber(0, 2**64), "random seed of the groups of a synchronization scheme")
    restart_seconds: float = setting(
        RESTART_SECONDS,
        Number(0, MOST, above=True),
        "time from a kill until its pipeline trains again, in seconds",
        unit="S",
    )


def check_sizes(sizes: Any) -> None:
    """Raise InputError if a caller's `sizes` are not numbers of 0 or more, one a minibatch."""
    if isinstance(sizes, str | bytes) or not hasattr(sizes, "__len__"):
        raise InputError(
            "simulation.sizes_malformed",
            f"sizes {shown(sizes)} given, expected a number for each minibatch, such as [4096] * 32",
        )
    for size in sizes:
        given_number(size, "a minibatch's size of")
        if not 0 <= size <= MOST:
            raise InputError("number.below_least", f"a minibatch size of {size} given, expected 0 or more")


@knows_its_keywords
def simulate(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    sizes: Sequence[float],
    *,
    stragglers: Stragglers | str | None = None,
    restart_seconds: float = RESTART_SECONDS,
    epoch_minibatches: int | None = None,
) -> Trace:
    """Simulate a plan and return the predicted trace.

    Args:
        plan: Plan. Pipeline replicas share the minibatches; `simulate_pipelines` reports on each replica.
        profile: Costs of the layers. If the profile has no optimizer rate, the optimizer takes no time.
        cluster: The devices and links.
        sizes: Size of each minibatch at the network's input, in the profile's `size_unit`.
        stragglers: Injected stragglers, as a value or text, such as "slow:rank=1,factor=4". The trace stores them as
            its fact "held_up".
        restart_seconds: Time in seconds from a kill until the ranks train again from the last checkpoint.
        epoch_minibatches: Minibatches per epoch. At the end of an epoch the pipeline drains, and a checkpoint is
            written. Default: all.

    Returns:
        The trace, with times in seconds. Its fact "restart" contains the cost of a kill.

    Raises:
        InputError: An invalid plan, stragglers on unknown ranks, malformed sizes, or negative times.

    Example:
        >>> predicted = sp.simulate(plan, profile, cluster, [2000.0] * 8)
        >>> round(predicted.makespan, 2)
        0.83

    See also:
        guides/traces_and_what_if, `lower_bound`, `simulate_pipelines`, `plots.timeline`
    """
    if plan.members:
        if epoch_minibatches is not None:
            text = "epoch_minibatches requires a plan of one pipeline, but this plan has several; omit it"
            raise InputError("option.of_one_pipeline", text)
        return simulate_pipelines(
            plan, profile, cluster, sizes, stragglers=stragglers, restart_seconds=restart_seconds
        ).trace
    check_sizes(sizes)
    plan.check(profile.graph, cluster)
    held_up = Stragglers.of(stragglers)
    held_up.check(max(plan.ranks) + 1)
    number(restart_seconds, "restart_seconds")
    if epoch_minibatches is not None:
        given_integer(epoch_minibatches, "minibatches of an epoch:", least=1)

    def simulated(first: int, end: int) -> list[Span]:
        simulation = Simulation(compile(plan, end - first), profile, cluster, sizes[first:end])
        if held_up.parts:
            simulation.hold_up(held_up.later(first) if first else held_up)
        return simulation.run()

    with collector_paused():
        facts: dict[str, Any] = {**held_up_fact(held_up)}
        if epoch_minibatches is None and not held_up.end_ranks:
            return Trace(tuple(simulated(0, len(sizes))), "simulated", facts)
        spans, restart = with_restart(
            simulated, held_up, len(sizes), restart_seconds=restart_seconds, epoch_minibatches=epoch_minibatches
        )
        return Trace(tuple(spans), "simulated", facts | ({"restart": restart} if restart else {}))


@knows_its_keywords
def simulate_pipelines(
    pipelines: Plan,
    profile: Profile,
    cluster: Cluster,
    sizes: Sequence[float],
    *,
    stragglers: Stragglers | str | None = None,
    seed: int = 0,
    restart_seconds: float = RESTART_SECONDS,
    starts: Sequence[float] = (),
) -> PipelinesForecast:
    """Simulate pipeline replicas that share the minibatches of an epoch.

    As in a run, each pipeline takes the minibatches of its next update when it has room. The replicas synchronize by
    `pipelines.replication`; the links determine the time to send weights. After a kill, a pipeline resumes with the
    weights of a live pipeline, and its unfinished minibatches are assigned again. Reading data takes no time.

    Args:
        pipelines: A plan of pipeline replicas.
        profile: Costs of the layers.
        cluster: The devices and links.
        sizes: Size of each minibatch at the network's input, in the profile's `size_unit`.
        stragglers: Injected stragglers, a value or its text.
        seed: Random seed of the groups of the synchronization scheme.
        restart_seconds: Time in seconds from a kill until its pipeline trains again.
        starts: Start time of each pipeline in seconds. Default: 0.

    Returns:
        A forecast: trace, throughput of each pipeline, group sizes, staleness and bytes.

    Raises:
        InputError: Invalid pipelines, stragglers on unknown ranks, or a kill with a scheme that averages gradients,
            which is not supported.

    Example:
        >>> pair = sp.partition_pipelines(profile, sp.Cluster.uniform(4, device_type="cpu"), 2)
        >>> forecast = sp.simulate_pipelines(pair, profile, sp.Cluster.uniform(4, device_type="cpu"), sizes * 4)
        >>> forecast.trace.ranks
        (0, 1, 2, 3)

    See also:
        guides/pipeline_replicas, background/synchronization_schemes, `partition_pipelines`
    """
    check_sizes(sizes)
    number(restart_seconds, "restart_seconds")
    if starts and len(starts) != len(pipelines.pipelines):
        raise InputError(
            "simulation.start_count",
            f"{len(starts)} start times for {number_of(len(pipelines.pipelines), 'pipeline')}: expected one each",
        )
    begins = [number(start, "a start") for start in starts] or [0.0] * len(pipelines.pipelines)
    check_rule(pipelines.check(profile.graph, cluster))
    held_up = Stragglers.of(stragglers)
    held_up.check(max(pipelines.ranks) + 1)
    with collector_paused():
        together = Together(
            pipelines.pipelines,
            profile,
            cluster,
            sizes,
            rule=pipelines.rule,
            stragglers=held_up if held_up.parts else None,
            seed=seed,
            restart_seconds=restart_seconds,
        )
        together.run(begins)
        lives = [[*pipeline.past, last] for pipeline, last in zip(together.pipelines, together.members, strict=True)]
        paces = tuple(
            _pace(together, own, profile, cluster, sizes, samples=pipelines.samples or 1.0, start=start)
            for own, start in zip(lives, begins, strict=True)
        )
        spans = [span for own in lives for life in own for span in _numbered(life)]
    return PipelinesForecast(
        Trace(tuple(spans), "simulated", pipelines.trace_facts | held_up_fact(held_up)),
        pipelines.rule,
        paces,
        dict(together.averages.group_sizes),
        dict(together.averages.staleness),
        together.averages.forced,
        together.averages.bytes,
        tuple(tuple(_taken(own)) for own in lives),
        pipelines.samples,
        _done(lives),
    )


def _done(lives: Sequence[Sequence[Member]]) -> tuple[float, float]:
    """Return the ends of the first and the last minibatch: a run counts them at their last stage's update, too."""
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
    tally, taken = found.pipelines[last.number].tally, [sizes[place] for place in _taken(lives)]
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
    """Return when the last of a pipeline's minibatches was done; its start where it did none."""
    return max((span.end for life in lives for span in life.spans()), default=start)


def _numbered(member: Member) -> list[Span]:
    """The spans of a pipeline with minibatches by their numbers in the epoch."""
    numbers = [*member.numbers, *member.lost]
    return [span._replace(minibatch=numbers[span.minibatch]) for span in member.spans()]
