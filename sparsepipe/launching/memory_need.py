"""What memory a plan needs of a job, whoever made the plan: looked at before the job begins, or continues, under it.

It is what the planners' cost model expects of the job's own minibatches (planning/run_estimate.py), by the profile that
the job is compared with. A running job without one uses the plan's own estimate; if it has none, a line says so.
"""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError
from ..runtime import RunConfig
from ..runtime.config import limit_without_profile
from ..runtime.forward_only import ForwardOnly
from ..runtime.plan_fit import bytes_by_place, check_memory, needed_bytes
from ..runtime.workloads.resolved import ResolvedRun
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile

_NOTHING_TELLS = "the plan's memory need could not be checked before the run: {}"


class MemoryNeed(NamedTuple):
    """Bytes of a rank at each of a plan's places, None if nothing tells; then `doubt` says so in a line."""

    by_place: tuple[float, ...] | None
    doubt: str = ""


def check_at_launch(
    plan: Plan,
    config: RunConfig,
    *,
    profile: Profile | None,
    cluster: Cluster | None,
    resumes: Path | None,
    here: bool,
    forward_only: bool = False,
) -> None:
    """Raise InputError if a device, or this machine, has less memory than the plan needs.

    `resumes`: the folder of the run that continues, which keeps the profile and the cluster that it was launched with.
    `here`: all ranks are on this machine. Without a profile of such minibatches nothing is looked at.
    """
    if profile is None and resumes is not None:
        profile, cluster = kept_devices(resumes)
    if profile is None or not config.workload.trains:
        return
    needed = 0.0
    for k, own in enumerate(plan.pipelines):
        try:
            expected = _expected(own, config, profile, cluster, forward_only=forward_only)
        except InputError:
            return  # another network's, or of a batch size from which nothing follows for this one
        limit = config.memory_limit
        if limit is None and (told := _beyond_devices(expected, cluster)):
            raise InputError("memory.too_little", plan.prefix(k) + told)
        by_place = [each if limit is None else min(each, limit) for each in bytes_by_place(expected) or ()]
        needed += needed_bytes(own, by_place, own.ranks)
    if here:
        check_memory(needed, config)


def check_largest(plan: Plan, run: ResolvedRun, *, profile: Profile | None, resumes: Path | None, here: bool) -> None:
    """Raise InputError if the largest minibatch of a run does not fit under `memory_limit` with all recomputed.

    It names the largest sample. `here`: the data are on this machine, and sizes of samples are read.
    """
    config = run.config
    if config.memory_limit is None or not config.workload.trains:
        return
    if profile is None and resumes is not None:
        profile, _ = kept_devices(resumes)
    if profile is None:
        raise limit_without_profile()
    if not here or profile.size_unit != run.size_unit:
        return
    from ..runtime.stages.memory_limit import RankMemory  # here: it brings torch

    training = run.data.training
    sizes = training.sample_sizes()
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    alone = float(sizes[largest])
    together = config.batch_voxels or float(sum(sorted(sizes)[-config.batch_size :]))
    for k, pipeline in enumerate(plan.pipelines):
        for rank in pipeline.ranks:
            memory = RankMemory(pipeline, rank, profile, limit_bytes=config.memory_limit)
            for stage, size in product(pipeline.stages_of(rank), sorted({alone, max(alone, together)})):
                least = memory.least_bytes(stage, size)
                if least <= config.memory_limit:
                    continue
                what = f"{training.name(largest)} has" if size == alone else f"{config.batch_size} samples have up to"
                way_out = "raise it, crop scenes ({crop})" if size == alone else "raise it, lower {batch_size}"
                raise InputError(
                    "memory.too_large",
                    f"{plan.prefix(k)}{what} {size:,.0f} {profile.size_unit}, which need {least / 1e6:,.0f} MB in "
                    f"stage {stage} with all layers recomputed; {{memory_limit}} is "
                    f"{config.memory_limit / 1e6:,.0f} MB: {way_out}, or plan more stages",
                    setting=dict.fromkeys(("memory_limit", "crop" if size == alone else "batch_size")),
                    sample=largest,
                )


def need_of_job(folder: Path, plan: Plan, config: RunConfig) -> MemoryNeed:
    """Return what the job at work in a folder would need under a plan.

    Raises InputError if a device of the cluster that it was launched for has less.
    """
    if not config.workload.trains:
        return MemoryNeed(None)  # it holds nothing
    why = "it has no estimate, and the run was launched without a profile"
    cluster: Cluster | None = None
    expected = plan if plan.estimate else None
    try:
        profile, cluster = kept_devices(folder)
        if profile is not None:
            forward_only = ForwardOnly.of_run(folder) is not None
            expected = _expected(plan, config, profile, cluster, forward_only=forward_only)
    except InputError as error:
        why = f"the run's profile does not contain it ({error})"
    if expected is None:
        return MemoryNeed(None, _NOTHING_TELLS.format(why))
    if told := _beyond_devices(expected, cluster):
        raise InputError("memory.too_little", told)
    return MemoryNeed(bytes_by_place(expected))


def kept_devices(folder: Path) -> tuple[Profile, Cluster] | tuple[None, None]:
    """Return the profile and the cluster that the run in a folder is compared with, if it was launched with both.

    Raises InputError if they cannot be read.
    """
    kept = folder / "profile.json", folder / "cluster.toml"
    return (Profile.load(kept[0]), Cluster.load(kept[1])) if all(path.exists() for path in kept) else (None, None)


def _expected(plan: Plan, config: RunConfig, profile: Profile, cluster: Cluster | None, *, forward_only: bool) -> Plan:
    """Return the plan with the estimate that holds for a run; on identical devices if none are given.

    Raises InputError if the profile does not tell.
    """
    from ..planning.run_estimate import estimated_for_run  # here: no launch without a profile waits for planners

    devices = cluster or Cluster.uniform(1 + max(plan.ranks), device_type=profile.device_types[0])
    expected = estimated_for_run(
        plan,
        profile,
        devices,
        batch_size=config.batch_size,
        voxel_size=config.voxel_size,
        forward_only=forward_only,
    )
    return expected if config.ema is None or forward_only else _with_moving_averages(expected, profile)


def _with_moving_averages(plan: Plan, profile: Profile) -> Plan:
    """Return a plan whose estimate counts the moving averages of the weights, which have the size of the weights."""
    assert plan.estimate is not None
    weight_bytes = {layer.id: layer.parameter_bytes for layer in profile.graph.layers}
    stages = [
        replace(part, memory_bytes=part.memory_bytes + sum(weight_bytes[id] for id in plan.stages[k].layers))
        for k, part in enumerate(plan.estimate.stages)
    ]
    return replace(plan, estimate=replace(plan.estimate, stages=tuple(stages)))


def _beyond_devices(plan: Plan, cluster: Cluster | None) -> str:
    """Return what the planners say of a plan that does not fit into its devices' memory; empty if it does."""
    if cluster is None or max(plan.ranks) >= len(cluster.devices):
        return ""
    from ..planning.doubts import beyond_memory

    return beyond_memory(plan, cluster)
