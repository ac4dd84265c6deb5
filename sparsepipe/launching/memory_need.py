"""What memory a plan needs of a job, whoever made the plan: looked at before the job begins, or continues, under it.

It is what the planners' cost model expects of the job's own minibatches (planning/run_estimate.py), by the profile that
the job is compared with. A running job without one uses the plan's own estimate; if it has none, a line says so.
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..data.folder import found as find_source
from ..data.samplers import split_by_size
from ..errors import InputError
from ..runtime import RunConfig
from ..runtime.config import (
    REFUSE,
    SKIP,
    SPLIT,
    SPLIT_OR_SKIP,
    Composition,
    FittingSizes,
    check_limit_unit,
    limit_without_profile,
)
from ..runtime.plan_fit import ForwardOnly, bytes_by_place, check_memory, needed_bytes
from ..runtime.workloads.resolved import ResolvedRun
from ..util.io.options import tell
from ..util.text.numbers import number_of
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile

if TYPE_CHECKING:
    from ..runtime.stages.memory_limit import RankMemory

_NAMED = 4  # of the samples that are left out
_PARTS_TRIED = 64  # sizes of parts of a minibatch
_SPLITS = (SPLIT, SPLIT_OR_SKIP)  # settings that split minibatches
_SKIPS = (SKIP, SPLIT_OR_SKIP)  # settings that leave samples out
_NOTHING_TELLS = "the plan's memory need could not be checked before the run: {}"


class PlacedMemory(NamedTuple):
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


def fitted_to_limit(
    plan: Plan, run: ResolvedRun, *, profile: Profile | None, resumes: Path | None, here: bool
) -> ResolvedRun:
    """Return a run with the setting `fitting_sizes`: its largest minibatch, what `oversize` leaves out, or splits.

    `here`: the data are on this machine, and sizes of samples are read. Raises InputError, with the sample's name, if
    one does not fit under `memory_limit` with all layers recomputed, and for a missing or unsuitable profile.
    """
    config = run.config
    unknown = replace(run, config=config.replace(fitting_sizes=None))
    if config.memory_limit is None or not config.workload.trains:
        return unknown
    recorded = None if resumes is None else kept_devices(resumes)[0]
    profile = recorded or profile  # workers go by the one that the run has kept
    if profile is None:
        raise limit_without_profile()
    if not here and config.oversize == REFUSE:
        return unknown
    if not here and find_source(config.data) is None:
        raise InputError(
            "memory.sizes_unknown",
            f"{{oversize}} goes by the sizes of all samples, but {config.data} is not on this machine; launch where "
            "the data are",
            setting={"oversize": config.oversize},
        )
    check_limit_unit(profile.size_unit, run.size_unit)
    replicas = any(len(stage.ranks) > 1 and not stage.shares_scenes for own in plan.pipelines for stage in own.stages)
    if config.oversize in _SPLITS and config.synchronised_batch_norm and replicas:
        raise InputError(  # replicas with other numbers of parts would wait for each other
            "memory.split_synchronised",
            "{synchronised_batch_norm} takes statistics over minibatches of all replicas, which {oversize} splits; "
            "omit one of them",
            setting={"synchronised_batch_norm": None, "oversize": config.oversize},
        )
    shares = any(stage.shares_scenes for own in plan.pipelines for stage in own.stages if len(own.stages) > 1)
    if config.oversize in _SPLITS and shares:
        raise InputError(
            "memory.split_scenes",
            "{oversize} splits no minibatch of a plan in which some of several stages share scenes; choose 'skip', or "
            "a plan of one stage",
            setting={"oversize": config.oversize},
        )
    fitting = _fitting_sizes(plan, run, _PlanNeed.of_plan(plan, profile, unknown.config))
    if count := len(fitting.left_out):
        names = ", ".join(fitting.names[:_NAMED]) + (", …" if count > _NAMED else "")
        tell(f"left out as too large for the memory limit: {number_of(count, 'sample')} ({names})")
    if fitting.part is not None:
        kinds = [layer.description.lower() for layer in profile.graph.layers]
        normed = any("batch" in kind and "norm" in kind for kind in kinds)
        changes = "; batch norm takes the statistics of a part, not of the minibatch" if normed else ""
        sizes = np.sort(run.data.training.sample_sizes())[-config.batch_size :].tolist()
        if normed and any(len(part) == 1 for part in split_by_size(range(len(sizes)), sizes, fitting.part)):
            changes += ", and some parts have one sample"
        tell(f"minibatches above {fitting.part:,.0f} {run.size_unit} are split to fit under the memory limit{changes}")
    return replace(run, config=config.replace(fitting_sizes=json.dumps(asdict(fitting))))


def _fitting_sizes(plan: Plan, run: ResolvedRun, need: "_PlanNeed") -> FittingSizes:
    """Raises InputError for a sample that does not fit unless the run skips it, and for a minibatch that does not."""
    config, training = run.config, run.data.training
    sizes = np.asarray(training.sample_sizes(), dtype=float)
    distinct = np.unique(sizes)
    most = float(distinct[-1])
    if config.oversize in _SKIPS:  # bytes rise with size
        fits = bisect_left(distinct, True, key=lambda size: need.at(float(size)).limit > need.limit)
        most = float(distinct[max(fits, 1) - 1])  # if none fits, the smallest is named
    sample = int(np.flatnonzero(sizes == most)[0])
    left_out = tuple(np.flatnonzero(sizes > most).tolist())
    decided = Composition.decided(config)
    budget = config.batch_voxels or (decided.budget if decided else None)
    fitting = np.sort(sizes[sizes <= most])
    largest = max(most, budget or float(fitting[-config.batch_size :].sum()))
    splits = config.oversize in _SPLITS and need.at(largest).limit > need.limit
    for size in sorted({most, largest}):
        least = need.at(size, most if splits else None)
        if least.limit <= need.limit:
            continue
        alone = size == most
        what = f"{training.name(sample)} has" if alone else f"{config.batch_size} samples have up to"
        way_out = "crop scenes ({crop})" if alone else "lower {batch_size}"
        others = {} if alone or splits else {"oversize": SPLIT}
        raise InputError(
            "memory.too_large",
            f"{plan.prefix(least.pipeline)}{what} {size:,.0f} {run.size_unit}, which need {least.limit / 1e6:,.1f} MB "
            f"in stage {least.stage} with all layers recomputed{', in parts' if splits and not alone else ''}; "
            f"{{memory_limit}} is {need.limit / 1e6:,.1f} MB: raise it, {way_out}, "
            f"{'split minibatches ({oversize}), ' if others else ''}or plan more stages",
            setting=dict.fromkeys(("memory_limit", "crop" if alone else "batch_size")) | others,
            sample=sample,
        )
    part = need.largest_part(most, largest) if splits else None
    return FittingSizes(largest, left_out, tuple(map(training.name, left_out)), part)


class _LeastLimit(NamedTuple):
    """The least limit in bytes under which minibatches of a size train, and where it is needed."""

    limit: float
    pipeline: int
    stage: int


@dataclass(frozen=True, eq=False)
class _PlanNeed:
    """The memory of all ranks of a plan under a limit in bytes."""

    limit: float
    memories: Sequence[tuple[int, int, "RankMemory"]]  # with the pipeline and a stage of each

    @classmethod
    def of_plan(cls, plan: Plan, profile: Profile, config: RunConfig) -> "_PlanNeed":
        """Raises InputError for a limit that the weights of a rank alone exceed."""
        from ..runtime.stages.memory_limit import RankMemory  # here: it brings torch

        limit = config.memory_limit
        assert limit is not None
        memories: list[tuple[int, int, RankMemory]] = []
        for k, pipeline in enumerate(plan.pipelines):
            for rank in pipeline.ranks:
                memory = RankMemory.of_settings(pipeline, rank, profile, config, limit=limit)
                memories += [(k, stage, memory) for stage in pipeline.stages_of(rank)]
        return cls(limit, memories)

    def at(self, size: float, part: float | None = None) -> _LeastLimit:
        """Return the least limit under which all stages train on minibatches of a size, if `part` in parts of that."""
        return max(_LeastLimit(memory.least_bytes(stage, size, part), k, stage) for k, stage, memory in self.memories)

    def largest_part(self, least: float, size: float) -> float:
        """Return the size of the largest parts in which minibatches of a size fit: `least` at least, which does."""
        steps = np.unique(np.floor(np.geomspace(least, size, _PARTS_TRIED))).tolist()  # sizes are whole numbers
        return float(
            steps[max(0, bisect_left(steps, True, key=lambda part: self.at(size, part).limit > self.limit) - 1)]
        )


def need_of_job(folder: Path, plan: Plan, config: RunConfig) -> PlacedMemory:
    """Return what the job at work in a folder would need under a plan.

    Raises InputError if a device of the cluster that it was launched for has less.
    """
    if not config.workload.trains:
        return PlacedMemory(None)  # it holds nothing
    why = "it has no estimate, and the run was launched without a profile"
    limit = config.memory_limit
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
        return PlacedMemory(None, _NOTHING_TELLS.format(why))
    if limit is None and (told := _beyond_devices(expected, cluster)):
        raise InputError("memory.too_little", told)
    by_place = bytes_by_place(expected)
    if limit is not None and by_place is not None:  # larger minibatches recompute layers, so that ranks keep to it
        by_place = tuple(min(each, limit) for each in by_place)
    return PlacedMemory(by_place)


def check_limit_of_job(folder: Path, plan: Plan, config: RunConfig) -> None:
    """Raise InputError if the largest minibatch of the job at work in a folder does not fit under another plan."""
    profile = kept_devices(folder)[0]
    largest = FittingSizes.of(config).largest
    if profile is None or config.memory_limit is None or largest is None:
        return
    need = _PlanNeed.of_plan(plan, profile, config)
    least = need.at(largest, FittingSizes.of(config).part)
    if least.limit > need.limit:
        raise InputError(
            "memory.too_large_for_plan",
            f"minibatches of up to {largest:,.0f} {profile.size_unit} need {least.limit / 1e6:,.1f} MB in stage "
            f"{least.stage} of the plan with all layers recomputed; the job's memory limit is "
            f"{need.limit / 1e6:,.1f} MB",
        )


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
    from ..planning.estimate import beyond_memory

    return beyond_memory(plan, cluster)
