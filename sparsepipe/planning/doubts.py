"""Warnings of a plan, whichever planner made it: devices that it leaves unused, and stages that do not fit."""

from dataclasses import replace

from ..util.io.quantities import SIZE
from ..values.cluster import Cluster
from ..values.plan import Plan

_LOOKS, _DIVIDES = "planner 'optimal' looks for one that fits", "planner 'space' divides each scene"


def with_doubts(plan: Plan, cluster: Cluster, *, cost_model: str | None = None) -> Plan:
    """The plan, which has an estimate, with a warning for devices it leaves unused and for memory it has too little of.

    The published planners' memory rules let plans pass that do not fit, and the baselines have none; so do cost models
    of others, by which `optimal` planned where `cost_model` names one.
    """
    warnings = list(plan.warnings)
    total, used = len(cluster.devices), len(plan.ranks)
    if used < total and not any("stay unused" in text for text in warnings):
        warnings.append(f"{total - used} of {total} devices stay unused")
    counted = f"cost model {cost_model!r} computes memory differently; without it " if cost_model else ""
    if text := beyond_memory(plan, cluster, before_remedy=counted):
        warnings.append(text)
    return replace(plan, warnings=tuple(warnings))


def beyond_memory(plan: Plan, cluster: Cluster, *, before_remedy: str = "") -> str:
    """Return a sentence on the device whose memory is exceeded most, by the plan's estimate; empty if all fit.

    `before_remedy`: what else the sentence says, before the remedy.
    """
    over = []
    for position in plan.position_estimates:
        kinds = [cluster.devices[rank].type for rank in plan.stages[position.stages[0]].ranks]
        least = min(kinds, key=lambda kind: kind.memory_bytes)
        if position.memory_bytes > least.memory_bytes:
            over.append((position.memory_bytes / least.memory_bytes, position, least))
    if not over:
        return ""
    _, worst, kind = max(over, key=lambda one: one[0])
    others = f" (so for {len(over)} of {plan.pipeline_size} groups of devices)" if len(over) > 1 else ""
    return (
        f"the plan does not fit into memory: {worst.name} needs {SIZE.shown(worst.memory_bytes)} on a device of type "
        f"{kind.name!r}, which has {SIZE.shown(kind.memory_bytes)}{others}; {before_remedy}{_remedy(plan)}"
    )


def _remedy(plan: Plan) -> str:
    """Return the planners that may find a plan within memory, under its schedule if they plan that."""
    if any(stage.shares_scenes for stage in plan.stages):
        return "use more or larger devices, or smaller minibatches"
    if plan.rules.stages_per_rank[0] > 1:  # its planners keep to the memory if any plan that they find does
        return f"under a schedule of one stage per device, such as 1f1b-flush, {_LOOKS}, and {_DIVIDES}"
    return f"{_LOOKS}, {_DIVIDES}"
