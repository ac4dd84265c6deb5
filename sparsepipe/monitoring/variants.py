"""Variants: ways to answer devices that change while a job runs. What the job is like now in, what to do out.

A new one is a function here and a row of VARIANTS.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import InputError
from ..planning import Problem
from ..planning.published.dynpipe import recut
from ..util.io.fields import shown
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import LayerCost, Profile
from .decision import CAUTION, Caution, Decision, decide, faster_or_slower, stay
from .factors import Factors
from .moves import Pace, cost_of, moves_between, transfer_seconds

LayerFactors = Sequence[float]  # for each layer of a profile's graph, times as long as alone


@dataclass(frozen=True)
class Situation:
    """A job whose devices are watched."""

    plan: Plan  # that it follows
    first_plan: Plan  # that it began with
    profile: Profile
    cluster: Cluster
    factors: Factors
    minibatches_left: int
    seconds_per_minibatch: float | None = None  # as measured
    caution: Caution = CAUTION
    # What a predictor expects of each layer on a rank that is not as its profile says (None: it does not know yet).
    predict: Callable[[int], LayerFactors | None] | None = None
    # By which share minibatches will be shorter under a plan, by what plans have shown, where the simulator says one.
    believed: Callable[[Plan, float], float] = lambda plan, share: share
    also: tuple[Factors, ...] = ()  # what devices may be as well, as far as measurements tell


@dataclass(frozen=True)
class Variant:
    """A way to answer changes of devices."""

    name: str
    summary: str  # a few words, for a list of them
    decide: Callable[[Situation], Decision]
    at_epochs: bool = False  # whether it is asked at the ends of epochs, else when an alarm is raised
    asks_predictor: bool = False  # whether it asks a predictor where there is one
    looks_back: bool = False  # whether it is asked again when it is known what a change gave
    needs_predictor: bool = False  # whether it is another variant without one, where a run trains


def variant(name: str) -> Variant:
    """The variant of a name. Raises InputError for one that is none."""
    if name not in VARIANTS:
        raise InputError("replan.unknown", f"unknown replan {shown(name)}, expected one of {', '.join(VARIANTS)}")
    return VARIANTS[name]


def best_plan(now: Situation) -> Decision:
    """Change cuts, replication, shares and the order of devices, leave devices out and take them back, if it pays."""
    return decide(
        now.plan,
        now.profile,
        now.cluster,
        now.factors,
        also=now.also,
        minibatches_left=now.minibatches_left,
        seconds_per_minibatch=now.seconds_per_minibatch,
        known=(now.first_plan,),
        caution=now.caution,
        believed=now.believed,
    )


def dynpipe_decision(now: Situation, layer_factors: Mapping[int, LayerFactors]) -> Decision:
    """Decide as DynPipe does: follow its planner, whatever the change costs or gains.

    `layer_factors` says of ranks what each layer takes there. What a change gains and costs is reported all the same.
    """
    expected, devices = _with_layer_factors(now, layer_factors)
    problem = Problem(expected, devices, now.plan.schedule, now.plan.num_microbatches)
    try:
        new = recut(now.plan, problem)
    except InputError as error:
        return stay(now.plan, str(error))
    if new.stages == now.plan.stages:
        return stay(now.plan, "DynPipe's planner finds no better cuts")
    new = replace(new, weights=now.plan.weights, accumulation=now.plan.accumulation)
    if not now.caution.follows(new):
        return stay(now.plan, "DynPipe's planner finds no cuts that this job can follow")
    before, after = (Pace.of(plan, expected, devices) for plan in (now.plan, new))
    moves = moves_between(now.plan, new, now.profile, now.cluster)
    transfer = transfer_seconds(moves, now.cluster)
    cost = cost_of(before, after, transfer_seconds=transfer, other_seconds=now.caution.other_seconds)
    faster = 1 - after.seconds_per_minibatch / before.seconds_per_minibatch
    gain = now.minibatches_left * (now.seconds_per_minibatch or before.seconds_per_minibatch) * faster
    why = f"DynPipe's planner expects it to be {faster_or_slower(faster)}"
    return Decision(new, True, gain, cost, moves, why, faster, faster)


def measured_factors(now: Situation) -> dict[int, LayerFactors]:
    """Each disturbed rank's own measured ratio, the same for every layer."""
    count = len(now.profile.graph.layers)
    return {rank: (factor,) * count for rank, factor in enumerate(now.factors.ranks) if factor != 1}


def predicted_factors(now: Situation) -> dict[int, LayerFactors]:
    """Return the predicted slowdown of each disturbed rank; the measured ratio without a prediction."""
    measured = measured_factors(now)
    if now.predict is None:
        return measured
    return {rank: now.predict(rank) or factors for rank, factors in measured.items()}


def _with_layer_factors(now: Situation, layer_factors: Mapping[int, LayerFactors]) -> tuple[Profile, Cluster]:
    """A profile and a cluster in which each of these ranks has a device type of its own; links are not looked at."""
    costs, rates = dict(now.profile.costs), dict(now.profile.update_rates)
    overheads = dict(now.profile.step_overheads)
    types = [device.type for device in now.cluster.devices]
    for rank, factors in layer_factors.items():
        kind = types[rank].name
        name = f"{kind} of rank {rank} now"
        costs[name] = tuple(
            LayerCost(
                tuple(replace(s, forward=s.forward * factor, backward=s.backward * factor) for s in cost.stretched)
            )
            for cost, factor in zip(now.profile.costs[kind], factors, strict=True)
        )
        rates |= {name: rates[kind]} if kind in rates else {}
        overheads |= {name: overheads[kind]} if kind in overheads else {}
        types[rank] = replace(types[rank], name=name)
    nodes, first = [], 0
    for node in now.cluster.nodes:
        count = len(node.device_types)
        nodes.append(replace(node, device_types=tuple(types[first : first + count])))
        first += count
    profile = replace(now.profile, costs=costs, update_rates=rates, step_overheads=overheads)
    return profile, replace(now.cluster, nodes=tuple(nodes))


NEVER = Variant("never", "no repartitioning", lambda now: stay(now.plan, "the plan never changes"))
EPOCH = Variant(
    "epoch",
    "DynPipe's planner, at the ends of epochs (DynPipe-Re)",
    lambda now: dynpipe_decision(now, predicted_factors(now)),
    at_epochs=True,
    asks_predictor=True,
)
MEASURED = Variant(
    "measured",
    "DynPipe's planner, with the measured slowdown of each stage (Simple)",
    lambda now: dynpipe_decision(now, measured_factors(now)),
)
PREDICTED = Variant(  # without a predictor, as in simulations and replays, it is `measured`
    "predicted",
    "DynPipe's planner, with the predicted slowdown of each layer (DynPipe)",
    lambda now: dynpipe_decision(now, predicted_factors(now)),
    asks_predictor=True,
    needs_predictor=True,
)
LIVE = Variant(
    "live", "the optimal plan for the measured devices, if the gain exceeds the cost", best_plan, looks_back=True
)
VARIANTS = {one.name: one for one in (NEVER, EPOCH, MEASURED, PREDICTED, LIVE)}
