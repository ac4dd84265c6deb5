"""What a plan is expected to do in a run: its estimate for the run's own minibatches, and for its own weight policy."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..errors import InputError
from ..values.cluster import Cluster
from ..values.costs import Array, LayerTable, MemoryNeed
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.recomputation import stage_bytes
from ..values.schedule import compile_until_steady
from ..values.schedule_rules import WEIGHT_POLICIES
from .base import Problem
from .estimate import estimate, forward_estimate, stage_memory
from .scale import Scale


def estimated_for_run(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    *,
    batch_size: int,
    voxel_size: float,
    forward_only: bool = False,
) -> Plan:
    """Return the plan with the default cost model's estimate for minibatches of so many samples at such voxels.

    Times and bytes are the profile's, scaled to the voxels of such minibatches. Raises InputError if the plan is not
    one for the profile's network and the cluster's devices, and if the profile does not tell what a minibatch of
    another size takes.
    """
    plan.check(profile.graph, cluster)
    recompute = any(stage.recomputes for stage in plan.stages)
    sized = _sized(profile, batch_size, voxel_size)
    problem = Problem(sized, cluster, plan.schedule, plan.num_microbatches, recompute, forward_only)
    return replace(plan, estimate=forward_estimate(plan, problem)) if forward_only else judged(plan, problem)


def stage_costs(plan: Plan, profile: Profile, cluster: Cluster, sizes: Sequence[float] | Array) -> tuple[Array, Array]:
    """Return what minibatches of these sizes take on each stage, of all pipelines: [stages, sizes].

    Seconds of forward and backward, on the slowest device of the stage; and bytes kept for the backward. Raises
    InputError if the plan is not one for the profile's network and the cluster's devices.
    """
    plan.check(profile.graph, cluster)
    table = LayerTable.of(profile, sizes)
    seconds, saved_bytes = [], []
    for stage in (stage for pipeline in plan.pipelines for stage in pipeline.stages):
        layers = [profile.graph.index[layer] for layer in stage.layers]
        kinds = {cluster.devices[rank].type.name for rank in stage.ranks}
        again = table.recomputed(stage)
        each = [table.seconds[kind][layers].sum(axis=0) + table.forward[kind][again].sum(axis=0) for kind in kinds]
        seconds.append(np.max(each, axis=0))
        saved_bytes.append(stage_bytes(table, stage, column=slice(None))[0])
    return np.array(seconds), np.array(saved_bytes)


def largest_size(
    plan: Plan, profile: Profile, cluster: Cluster, *, seconds: float | None = None, kept_bytes: float | None = None
) -> float:
    """Return the size of the largest minibatch that is within a budget on every stage; see `stage_costs`.

    Raises InputError if no minibatch is.
    """
    low, high = 1.0, 1e9
    for _ in range(4):  # costs rise with size: narrow down between neighbours of a grid
        sizes = np.geomspace(low, high, 65)
        times, sizes_left = stage_costs(plan, profile, cluster, sizes)
        fits = np.ones(len(sizes), dtype=bool)
        fits &= True if seconds is None else times.max(axis=0) <= seconds
        fits &= True if kept_bytes is None else sizes_left.max(axis=0) <= kept_bytes
        last = int(np.argmin(fits)) - 1 if not fits.all() else len(sizes) - 1
        if last < 0:
            least = f"{times[:, 0].max():.3g} s" if seconds is not None else f"{sizes_left[:, 0].max():.3g} bytes"
            raise InputError(
                "order.budget_below_any",
                f"the smallest minibatch needs {least} on a stage according to the profile, more than the budget; "
                "raise the budget",
            )
        low, high = sizes[last], sizes[min(last + 1, len(sizes) - 1)]
    return float(low)


def judged(plan: Plan, problem: Problem) -> Plan:
    """The plan with the default cost model's estimate, with the memory of the plan's own weight policy."""
    expected = estimate(plan, problem)
    straight = plan.stages_per_rank == 1  # of interleaved stages it counts them
    if plan.weights != WEIGHT_POLICIES[plan.schedule][0] and straight:
        parts, program = [], compile_until_steady(plan)
        for k, (stage, part) in enumerate(zip(plan.stages, expected.stages, strict=True)):
            fullest = max(zip(stage.shares, stage.ranks, strict=True))[1]
            layer_indices = [problem.graph.index[id] for id in stage.layers]
            weights = MemoryNeed(float(problem.table.parameter_bytes[layer_indices].sum()), 0.0, 0.0, 0.0)
            now = weights.total(versions=program.num_versions(k, fullest), minibatches=program.in_flight(k, fullest))
            parts.append(replace(part, memory_bytes=part.memory_bytes - stage_memory(plan, k, weights) + now))
        expected = replace(expected, stages=tuple(parts))
    seconds = plan.estimate.plan_seconds if plan.estimate else 0.0
    return replace(plan, estimate=replace(expected, plan_seconds=seconds))


def _sized(profile: Profile, batch_size: int, voxel_size: float) -> Profile:
    """Raises InputError if the profile does not tell what a minibatch of another size takes."""
    scale = Scale.of(profile)
    if scale is None and profile.batch_size not in (None, batch_size):
        raise InputError(
            "profile.other_batch_size",
            f"the profile covers only batch size {profile.batch_size}; use that size, or profile again",
        )
    if scale is None or (batch_size, voxel_size) == (scale.batch_size, scale.voxel_size):
        return profile
    return scale.scaled(profile, batch_size, voxel_size)
