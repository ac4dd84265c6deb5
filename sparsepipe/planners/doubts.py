"""What a plan has to say against itself, whoever made it: devices without work, and memory that does not do."""

from dataclasses import replace

from ..cluster import Cluster
from ..plan import Plan
from .positions import teams


def with_doubts(plan: Plan, cluster: Cluster) -> Plan:
    """The plan, which has an estimate, with a warning for devices it leaves unused and for memory it has too little of.

    The published planners' memory rules let plans pass that do not fit, and the baselines have none.
    """
    found = list(plan.warnings)
    total, used = len(cluster.devices), len(plan.ranks)
    if used < total and not any("stay unused" in text for text in found):
        found.append(f"{total - used} of {total} devices stay unused")
    if text := beyond_memory(plan, cluster):
        found.append(text)
    return replace(plan, warnings=tuple(found))


def beyond_memory(plan: Plan, cluster: Cluster) -> str:
    """Say where a plan needs more memory than its devices have, by its estimate; nothing where it fits."""
    over = []
    for team in teams(plan):
        kinds = [cluster.devices[rank].type for rank in plan.stages[team.stages[0]].ranks]
        least = min(kinds, key=lambda kind: kind.memory_bytes)
        if team.memory > least.memory_bytes:
            over.append((team.memory / least.memory_bytes, team, least))
    if not over:
        return ""
    _, worst, kind = max(over, key=lambda one: one[0])
    others = f" (so for {len(over)} of {plan.pipeline_size} groups of devices)" if len(over) > 1 else ""
    return (
        f"the plan does not fit into memory: {worst.name} needs {worst.memory / 1e6:.1f} MB on a device of type "
        f"{kind.name!r}, which has {kind.memory_bytes / 1e6:.1f} MB{others}; planner 'optimal' looks for one that fits"
    )
