"""Plan and simulate the settings of the partition explorer; answers are cached."""

import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ...errors import InputError
from ...planning import PlanProgress, Problem, bound_of, partition, planners_with
from ...planning.by_hand import by_hand, with_cuts, with_groups
from ...planning.device_groups import device_classes
from ...planning.run_estimate import judged
from ...planning.scale import Scale, Scaled
from ...planning.simulator import simulate
from ...util.derived import Kept, remembered
from ...values.cluster import Cluster
from ...values.plan import Plan
from ...values.profile import CostSample, Profile
from ...values.trace import Trace
from .as_code import as_code
from .settings import Settings, placed

_GAP = 1e-3  # an optimality gap that is not worth a search
_KEPT = 64  # plans that are remembered: going back costs nothing


@dataclass(frozen=True)
class Answer:
    """A plan with the settings that it was made for. `bound`: no plan has a smaller period, if that is known."""

    settings: Settings
    problem: Problem
    plan: Plan
    bound: float | None
    trace: Trace
    scaled: Scaled | None  # batch size and voxel size, where they are not those profiled
    best: Plan | None = None  # what the optimal planner made of the same devices, if it could

    @property
    def cluster(self) -> Cluster:
        return self.problem.cluster

    def base(self, field: str) -> str:
        """A name of this plan and its settings but for one, by which the page knows whether a table is of them."""
        others = tuple(value for name, value in vars(self.settings).items() if name != field)
        return format(hash((self.plan.stages, self.plan.schedule, self.plan.weights, others)) & (2**64 - 1), "x")

    def place(self, field: str, part: object = None) -> str:
        """A name of all settings but one field, or but a `part` of it: devices of one type, or a cut by its number."""
        kept: Any = None
        if field == "devices":
            kept = tuple(pair for pair in self.settings.devices if pair[0] != part)
        elif field == "cuts":
            kept = tuple(-1 if k == part else at for k, at in enumerate(self.settings.cuts or ()))
        return format(hash(replace(self.settings, **{field: kept})) & (2**64 - 1), "x")

    @property
    def ends(self) -> list[int]:
        """Layers before each cut."""
        return _ends(self.plan)

    @property
    def best_ends(self) -> list[int]:
        """Layers before each cut of the optimal planner's plan."""
        return [] if self.best is None else _ends(self.best)

    def told(self) -> str:
        """The settings in one line."""
        return self.settings.told(self.cluster)

    def as_code(self) -> str:
        """The cell that makes this plan again, given `profile`."""
        by_planner = self.settings.cuts is None and self.settings.stage_devices is None
        return as_code(
            self.plan,
            self.cluster,
            planner=self.settings.planner if by_planner else None,
            scaled=self.scaled,
            compression=self.settings.compression,
            recompute=self.settings.recompute,
        )


def _ends(plan: Plan) -> list[int]:
    sizes = [len(stage.layers) for stage in plan.stages]
    return [sum(sizes[: k + 1]) for k in range(len(sizes) - 1)]


class Planning:
    """Answers settings with a plan for `profile` on what they make of `cluster`."""

    def __init__(self, profile: Profile, cluster: Cluster, scale: Scale | None, *, minibatches: int) -> None:
        self.profile, self.cluster, self.scale, self.minibatches = profile, cluster, scale, minibatches
        self._asked: tuple[tuple[object, ...], Problem] | None = None
        self._made: dict[Hashable, Plan | str] = {}
        self._searched: set[Hashable] = set()  # whose plan is not a quick one any more
        self._compressed = {1.0: profile}
        self._kept: Kept = {}

    def answer(self, settings: Settings) -> Answer:
        """Plan and simulate. Raises InputError for settings that cannot be planned."""
        problem = self.problem(settings)
        plan, bound, best = self._plan(problem, settings)
        counts = problem.profile.typical_sizes
        number = max(self.minibatches, 2 * plan.num_microbatches)
        trace = simulate(plan, problem.profile, problem.cluster, [counts[k % len(counts)] for k in range(number)])
        return Answer(settings, problem, plan, bound, trace, self.scaled(settings), best)

    def plan(self, settings: Settings) -> Plan:
        """Plan without a timeline. Raises InputError for settings that cannot be planned."""
        return self._plan(self.problem(settings), settings)[0]

    def has_gap(self, answer: Answer) -> bool:
        """Return whether a search that takes longer may find a better plan, or a better bound, than a quick one."""
        gap = answer.best.estimate.gap if answer.best is not None and answer.best.estimate else None
        return (
            answer.bound is not None
            and gap is not None
            and gap > _GAP
            and self._key(answer.settings) not in self._searched
        )

    def searched(self, answer: Answer, progress: Callable[[PlanProgress], object]) -> Plan:
        """Return what the optimal planner makes of an answer's devices if it takes its time."""
        start = answer.best if answer.problem.rules.stages_per_rank[0] == 1 else None
        return _partition(answer.problem, "optimal", {}, progress=progress, warm_start=start)

    def take(self, answer: Answer, plan: Plan) -> Answer:
        """Return the answer again, by the plan of a longer search if it is better, and by its bound."""
        best, key = answer.best, self._key(answer.settings)
        assert best is not None and best.estimate is not None and plan.estimate is not None
        bound, before = plan.estimate.lower_bound_seconds, best.estimate.lower_bound_seconds
        if plan.estimate.period_seconds > (1 - _GAP) * best.estimate.period_seconds:
            plan = best
        assert plan.estimate is not None and bound is not None and before is not None
        bound = min(max(bound, before), plan.estimate.period_seconds)
        self._made[key] = replace(plan, estimate=replace(plan.estimate, lower_bound_seconds=bound))
        self._searched.add(key)
        return self.answer(answer.settings)

    def _key(self, settings: Settings) -> Hashable:
        self.problem(settings)
        assert self._asked is not None
        return (*self._asked[0], "optimal")

    def judge(self, plan: Plan, settings: Settings) -> tuple[Problem, Plan]:
        """Return what is asked for, and this plan's estimate for it. Raises InputError if there is no device."""
        problem = self.problem(settings)
        return problem, judged(plan, problem)

    def scaled(self, settings: Settings) -> Scaled | None:
        """The batch size and voxel size chosen, with the law of voxels; None if they are those profiled."""
        scale, chosen = self.scale, (settings.batch_size, settings.voxel_size)
        if scale is None or None in chosen or chosen == (scale.batch_size, scale.voxel_size):
            return None
        assert settings.batch_size is not None and settings.voxel_size is not None
        return scale, settings.batch_size, settings.voxel_size

    def _profile(self, settings: Settings) -> Profile:
        """The profile at the batch size, voxel size and compression chosen."""
        ratio, scaled = settings.compression, self.scaled(settings)
        if ratio not in self._compressed:
            self._compressed[ratio] = compressed(self.profile, ratio)
        profile = self._compressed[ratio]
        if scaled is None:
            return profile
        scale, sizes = scaled[0], scaled[1:]
        return remembered(self._kept, "sized", (ratio, *sizes), lambda: scale.scaled(profile, *sizes))

    def problem(self, settings: Settings) -> Problem:
        """Planning problem; the same object while it is unchanged, because it caches costs.

        Raises InputError if there is no device.
        """
        cluster = placed(self.cluster, settings)
        sizes = (settings.batch_size, settings.voxel_size, settings.compression)
        key = (cluster, settings.schedule, settings.num_microbatches, settings.recompute, *sizes)
        if self._asked is None or self._asked[0] != key:
            self._asked = key, Problem(self._profile(settings), *key[:4])
        return self._asked[1]

    def _plan(self, problem: Problem, settings: Settings) -> tuple[Plan, float | None, Plan | None]:
        """(the plan as the default cost model sees it, a lower bound of every plan's period, the optimal planner's).

        The last two are None where they are not known.
        """
        several = settings.stages_per_device
        try:
            best, refused = self._planned(problem, "optimal"), ""  # which also bounds others
        except InputError as error:
            best, refused = None, str(error)
        plan = _by_hand(problem, settings)
        if plan is None:
            if best is None and several == 1:
                raise InputError("explorer.refused", refused)
            plan = self._planned(problem, settings.planner, **({"stages_per_device": several} if several > 1 else {}))
        if plan.weights != settings.weights:
            plan = replace(plan, weights=settings.weights).check(problem.graph, problem.cluster)
        plan = judged(plan, problem)
        bound = bound_of(plan, best.estimate.lower_bound_seconds) if best is not None and best.estimate else None
        assert plan.estimate is not None
        return replace(plan, estimate=replace(plan.estimate, lower_bound_seconds=bound)), bound, best

    def _planned(self, problem: Problem, planner: str, **options: int) -> Plan:
        """Return a planner's result from the cache or anew. Raises InputError if nothing fits."""
        assert self._asked is not None
        key = (*self._asked[0], planner, *options.items())
        if key not in self._made:
            if len(self._made) >= _KEPT:
                oldest = next(iter(self._made))
                self._made.pop(oldest)
                self._searched.discard(oldest)
            try:
                quick = {"quick": True} if planner in planners_with("quick") else {}
                self._made[key] = _partition(problem, planner, {**quick, **options})
            except InputError as error:
                self._made[key] = str(error)
        found = self._made[key]
        if isinstance(found, str):
            raise InputError("explorer.refused", found)
        return found


def _by_hand(problem: Problem, settings: Settings) -> Plan | None:
    """The plan with pinned cuts or devices; None if nothing is pinned."""
    cuts, devices = settings.cuts, settings.stage_devices
    if devices is None:
        return None if cuts is None else with_cuts(problem, cuts)
    kinds = [one.type.name for one in device_classes(problem.cluster)]
    groups = [tuple(dict(group).get(kind, 0) for kind in kinds) for group in devices]
    lost = {name for group in devices for name, number in group if number and name not in kinds}
    if lost:
        raise InputError(
            "explorer.device_lost",
            f"the stages use {min(lost)}, but none is selected; raise its slider, or unpin devices",
        )
    return with_groups(problem, groups) if cuts is None else by_hand(problem, cuts, groups)


def _partition(
    problem: Problem,
    planner: str,
    options: Mapping[str, int],
    *,
    progress: Callable[[PlanProgress], object] | None = None,
    warm_start: Plan | None = None,
) -> Plan:
    return partition(
        problem.profile,
        problem.cluster,
        planner=planner,
        schedule=problem.schedule,
        num_microbatches=problem.num_microbatches,
        recompute=problem.recompute,
        progress=progress,
        warm_start=warm_start,
        **options,
    )


def unless(superseded: Callable[[], bool], search: Callable[[], Plan]) -> Plan | None:
    """Return the plan of a search; None as soon as it is superseded, however seldom the search reports."""

    def watch(*_: object) -> None:
        if superseded():
            raise KeyboardInterrupt

    try:
        sys.setprofile(watch)  # called for each function of this thread alone
        try:
            plan = search()
        finally:
            sys.setprofile(None)
    except KeyboardInterrupt:
        return None
    return None if superseded() else plan


def compressed(profile: Profile, ratio: float) -> Profile:
    """The profile whose features cross a boundary in 1/ratio of the bytes; what a stage keeps stays as it is."""

    def squeeze(sample: CostSample, knows_saved: bool) -> CostSample:
        saved = sample.saved_bytes if knows_saved else sample.output_bytes
        return replace(sample.squeezed(ratio), saved_bytes=saved)

    costs = {}
    for name, layers in profile.costs.items():
        knows_saved = any(sample.saved_bytes for cost in layers for sample in cost.samples)
        costs[name] = tuple(cost.changed(partial(squeeze, knows_saved=knows_saved)) for cost in layers)
    return replace(profile, costs=costs)
