"""Checks of a plan: everything that is wrong with it by itself, for a layer graph, or for a number of devices."""

from collections import Counter
from collections.abc import Sequence

from ..errors import InputError
from ..util.io.fields import MOST_DEVICES, MOST_MINIBATCHES, shown
from ..util.text.numbers import listed, number_of
from .graph import LayerGraph
from .plan_parts import StagePlan
from .schedule_rules import INTERLEAVING, SCHEDULE_RULES, WEIGHT_POLICIES, WEIGHT_RULES

_MOST_NAMED = 4  # layers in a message


def violations(plan: StagePlan, graph: LayerGraph, num_devices: int | None = None) -> list[str]:
    """Return every reason why `plan` cannot run on `graph`, and on a cluster of `num_devices`, a line each."""
    found = [*_of_settings(plan), *_of_stages(plan), *_of_placement(plan), *_of_layers(plan, graph)]
    if num_devices is not None:
        found += [
            f"rank {rank} is not in a cluster of {number_of(num_devices, 'device')}"
            for rank in plan.ranks
            if rank >= num_devices
        ]
    return found


def overlaps(plans: Sequence[StagePlan]) -> list[str]:
    """Return which ranks are in more than one pipeline, a line each."""
    found, owner = [], dict[int, int]()
    for k, plan in enumerate(plans):
        for rank in plan.ranks:
            if owner.setdefault(rank, k) != k:
                found.append(f"rank {rank} is in pipelines {owner[rank]} and {k}: expected in one")
    return found


def unlike_layers(plans: Sequence[StagePlan]) -> list[str]:
    """Return what one pipeline has and another has not, of the first that differs from pipeline 0."""
    for k, plan in enumerate(plans[1:], start=1):
        first, own = plans[0].layers, plan.layers
        for has, lacks, lacking in ((0, k, set(first) - set(own)), (k, 0, set(own) - set(first))):
            if lacking:
                layers = [id for id in plans[has].layers if id in lacking]
                more = f" and {len(layers) - _MOST_NAMED} more" if len(layers) > _MOST_NAMED else ""
                named = ", ".join(layers[:_MOST_NAMED])
                told = f"pipeline {lacks} lacks layers that pipeline {has} has ({named}{more})"
                return [f"{told}: plan all for the same network"]
    return []


def beyond_bounds(plan: StagePlan) -> list[str]:
    """Return which of a plan's numbers, or of their products, would fill the memory before anything is run."""
    found = []
    if not 1 <= plan.num_microbatches <= MOST_MINIBATCHES:
        count = shown(plan.num_microbatches)
        found.append(f"num_microbatches is {count}, expected 1 or more, at most {MOST_MINIBATCHES}")
    for k, stage in enumerate(plan.stages):
        if stage.round > MOST_DEVICES:
            found.append(f"stage {k} has shares of {shown(stage.round)} together, expected at most {MOST_DEVICES}")
        elif stage.round * plan.accumulation > MOST_MINIBATCHES:
            what = f"stage {k} updates after {shown(stage.round * plan.accumulation)} minibatches"
            found.append(
                f"{what}, expected at most {MOST_MINIBATCHES}; accumulate fewer rounds than {plan.accumulation}"
            )
        if (stage.warmup or 0) * len(stage.ranks) > MOST_MINIBATCHES:
            what = f"stage {k} has a warm-up of {shown(stage.warmup)} on {number_of(len(stage.ranks), 'rank')}"
            found.append(f"{what}, expected {MOST_MINIBATCHES} minibatches at most together")
    return found


def _of_settings(plan: StagePlan) -> list[str]:
    """The schedule, its weights, and numbers that stand for the whole plan."""
    found = []
    if plan.schedule not in WEIGHT_POLICIES:
        found.append(f"schedule {plan.schedule!r} is unknown, expected one of {', '.join(WEIGHT_POLICIES)}")
    elif plan.weights not in WEIGHT_POLICIES[plan.schedule]:
        allowed = " or ".join(WEIGHT_POLICIES[plan.schedule])
        found.append(f"weights {plan.weights!r} do not match schedule {plan.schedule!r}, expected {allowed}")
    found += beyond_bounds(plan)
    if plan.accumulation < 1:
        found.append(f"accumulation is {plan.accumulation}, expected 1 or more rounds")
    elif plan.accumulation > 1 and plan.updates_by_step:
        found.append(f"accumulation requires asynchronous rounds; with {plan.weights} set num_microbatches")
    together = plan.weights in WEIGHT_RULES and WEIGHT_RULES[plan.weights].same_everywhere
    if together and len({stage.round for stage in plan.stages}) > 1:
        found.append(f"weights {plan.weights!r} need stages that update equally often: replicas of equal rounds")
    return found


def _of_stages(plan: StagePlan) -> list[str]:
    """Each stage by itself: its layers, ranks, shares and warm-up."""
    found = [] if plan.stages else ["it has no stages"]
    for k, stage in enumerate(plan.stages):
        if not stage.layers:
            found.append(f"stage {k} has no layers")
        if not stage.ranks:
            found.append(f"stage {k} has no ranks")
        if len(stage.shares) != len(stage.ranks):
            found.append(f"stage {k} has {len(stage.shares)} shares for {number_of(len(stage.ranks), 'rank')}")
        elif any(share < 1 for share in stage.shares):
            found.append(f"stage {k} has shares {stage.shares}, expected numbers of at least 1")
        if stage.warmup is not None and stage.warmup < 0:
            found.append(f"stage {k} has a warm-up of {stage.warmup}, expected 0 or more")
        if stage.recompute and stage.segments:
            found.append(f"stage {k} recomputes all its layers and segments of them too: expected one of both")
        twice = sorted(rank for rank, count in Counter(stage.ranks).items() if count > 1)
        found += [f"rank {rank} serves more than one replica of stage {k}" for rank in twice]
    found += [f"rank {rank} is negative" for rank in plan.ranks if rank < 0]
    return found


def _of_placement(plan: StagePlan) -> list[str]:
    """Check stages that share ranks: the schedule must support it, with placement over the same replicas."""
    rules, count = SCHEDULE_RULES.get(plan.schedule), plan.stages_per_rank
    shared = [rank for rank in plan.ranks if len(plan.stages_of(rank)) > 1]
    if shared and (rules is None or not rules.interleaves or (plan.updates_by_step and not plan.flushes)):
        return [
            f"rank {rank} serves more than one replica, stages {listed(plan.stages_of(rank))}: only schedules "
            f"{', '.join(map(repr, INTERLEAVING))} interleave stages, and not with weights '2bw'"
            for rank in sorted(shared)
        ]
    if rules is None or not (shared or rules.check_stages_per_rank(count)):
        return []
    if sharing := [k for k, stage in enumerate(plan.stages) if stage.shares_scenes]:
        return [f"stage {k} shares scenes between its ranks, expected one stage on each of these" for k in sharing]
    size, first = plan.pipeline_size, plan.stages[: plan.pipeline_size]
    if len(plan.stages) % size or sorted(rank for stage in first for rank in stage.ranks) != sorted(plan.ranks):
        return [f"interleaved stages come in whole laps over all ranks, each once; {len(plan.stages)} do not"]
    if told := rules.check_stages_per_rank(count):
        return [f"schedule {plan.schedule!r} {told}, but this plan has {count}"]
    found = []
    for k, stage in enumerate(plan.stages):
        before = rules.position(k, size)
        if stage.ranks != first[before].ranks:
            found.append(f"stage {k} is on ranks {stage.ranks}, expected {first[before].ranks} as stage {before}")
        if not plan.flushes and len(set(stage.shares)) > 1:
            found.append(f"stage {k} has shares {stage.shares}, without flushes interleaved stages need equal ones")
        if stage.shares != first[0].shares:
            found.append(f"stage {k} has shares {stage.shares}, interleaved stages need those of stage 0")
        if stage.warmup is not None:
            found.append(f"stage {k} has a warm-up of its own, interleaved stages have the one of their laps")
    return found


def _of_layers(plan: StagePlan, graph: LayerGraph) -> list[str]:
    """Every layer of the graph is in one stage, and no stage feeds an earlier one."""
    found: list[str] = []
    place: dict[str, int] = {}
    for k, stage in enumerate(plan.stages):
        for id in stage.layers:
            if id in place:
                found.append(f"layer {id!r} is in stage {place[id]} and again in stage {k}")
            place.setdefault(id, k)
    known = {layer.id for k, layer in enumerate(graph.layers) if k not in graph.input_layers}
    if unknown := [id for id in place if id not in known]:
        found.append(f"it is for a different graph: {len(unknown)} of its layers ({_few(unknown)}) are not in this one")
    if missing := [layer.id for layer in graph.layers if layer.id in known and layer.id not in place]:
        found.append(
            f"{number_of(len(missing), 'layer')} of the graph {'is' if len(missing) == 1 else 'are'} in no stage "
            f"({_few(missing)})"
        )
    for k, stage in enumerate(plan.stages):
        try:
            stage.segment_places(sorted(stage.layers, key=lambda id: graph.index.get(id, -1)))
        except InputError as error:
            found.append(f"stage {k}: {error}")
    for i, j in graph.edges:
        a, b = graph.layers[i].id, graph.layers[j].id
        if place.get(a, 0) > place.get(b, len(plan.stages)):
            found.append(f"layer {a!r} of stage {place[a]} feeds {b!r} of the earlier stage {place[b]}")
    return found


def _few(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")
