"""Profiles and plans under hypothetical conditions: compressed boundaries, other weight policies."""

from dataclasses import replace

from ..costs import MemoryNeed
from ..plan import Plan
from ..planners import Problem, estimate
from ..planners.estimate import stage_memory
from ..profile import CostSample, LayerCost, Profile
from ..schedule import compile_until_steady
from ..schedule_rules import WEIGHT_POLICIES


def compressed(profile: Profile, ratio: float) -> Profile:
    """The profile whose features cross a boundary in 1/ratio of the bytes; what a stage keeps stays as it is."""

    def squeeze(sample: CostSample, told: bool) -> CostSample:
        saved = sample.saved_bytes if told else sample.output_bytes
        return replace(sample.squeezed(ratio), saved_bytes=saved)

    costs = {}
    for name, layers in profile.costs.items():
        told = any(sample.saved_bytes for cost in layers for sample in cost.samples)
        costs[name] = tuple(LayerCost(tuple(squeeze(s, told) for s in cost.samples)) for cost in layers)
    return replace(profile, costs=costs)


def judged(plan: Plan, problem: Problem) -> Plan:
    """The plan with the default cost model's estimate, with the memory of the plan's own weight policy."""
    expected = estimate(plan, problem)
    straight = plan.stages_per_rank == 1  # of interleaved stages it counts them
    if plan.weights != WEIGHT_POLICIES[plan.schedule][0] and straight:
        parts, program = [], compile_until_steady(plan)
        for k, (stage, part) in enumerate(zip(plan.stages, expected.stages, strict=True)):
            fullest = max(zip(stage.shares, stage.ranks, strict=True))[1]
            own = [problem.graph.index[id] for id in stage.layers]
            weights = MemoryNeed(float(problem.table.parameter_bytes[own].sum()), 0.0, 0.0)
            now = weights.total(versions=program.num_versions(k, fullest), minibatches=program.in_flight(k, fullest))
            parts.append(replace(part, memory_bytes=part.memory_bytes - stage_memory(plan, k, weights) + now))
        expected = replace(expected, stages=tuple(parts))
    seconds = plan.estimate.plan_seconds if plan.estimate else 0.0
    return replace(plan, estimate=replace(expected, plan_seconds=seconds))
