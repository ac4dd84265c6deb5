"""Planners choose a plan: (profile, cluster) → Plan. A class each behind the protocol in base.py, a row in PLANNERS."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..records.formats.layouts import read_layout, stages_of
from ..records.provenance import Provenance
from ..util.io.fields import MOST_LIKE_DEVICES, given_integer
from ..util.io.quantities import COUNT, keywords_of, meant
from ..util.io.settings import Amount, Choice, Flag, Settings, WholeNumber, listed, setting
from ..util.lazy_names import lazy_names
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.replication import parse_rule, rule
from ..values.replication.base import Rule
from ..values.schedule import check_rule
from ..values.schedule_rules import SCHEDULE_RULES, WEIGHT_RULES
from .base import Planner, Problem, check_interleaves, with_seconds
from .baselines import DataParallel, ModelParallel
from .by_hand import with_stages
from .estimate import data_parallel_period, estimate, with_doubts
from .exact.known_plans import PlanProgress
from .exact.optimal import CONTIGUOUS, PERIOD, Optimal
from .published.dynpipe import DynPipe
from .published.pipedream import PipeDream
from .published.sparsepipe import SparsePipe
from .several import MOST_PLANS, split
from .space import SpaceParallel

PLANNERS: Mapping[str, type[Any]] = {
    "optimal": Optimal,
    "pipedream": PipeDream,
    SparsePipe.name: SparsePipe,
    "dynpipe": DynPipe,
    "data-parallel": DataParallel,
    "space": SpaceParallel,
    "model-parallel": ModelParallel,
}

DEFAULT = Optimal.name
LAYOUT = "layout"  # who made the plan of a layout
LAYOUT_SCHEDULE = "1f1b-flush"  # what the runtimes whose layouts are read have in common
_CHOICE = Choice(tuple(PLANNERS), renamed={"sparsepipe": SparsePipe.name})


@dataclass(frozen=True, repr=False)
class PlanSettings(Settings):
    """Settings of every planner."""

    planner: str = setting(
        DEFAULT,
        _CHOICE,
        "planning algorithm, which chooses the stages",
        words="optimal; model-parallel if the schedule needs several stages per device",
    )
    schedule: str = setting("1f1b", Choice(tuple(SCHEDULE_RULES)), "order of forwards and backwards")
    num_microbatches: int | None = setting(
        None,
        WholeNumber(1, 4 * MOST_LIKE_DEVICES),
        "microbatches per step of a synchronous schedule",
        words="twice the devices",
    )
    recompute: bool = setting(
        False, Flag(), "activation recomputation before backward passes: slower, with less memory"
    )
    largest_size: float | None = setting(
        None,
        Amount(COUNT),
        "size of the largest minibatch that must fit into memory, in the profile's unit",
        words="99th percentile of the sizes",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.largest_size, str):
            object.__setattr__(self, "largest_size", COUNT.read(self.largest_size))


__all__ = [
    "DEFAULT",
    "PLANNERS",
    "PlanProgress",
    "PlanSettings",
    "Planner",
    "Problem",
    "bound_of",
    "check_interleaves",
    "comparable",
    "estimate",
    "partition",
    "partition_pipelines",
    "plan_of_layout",
    "planner_for",
    "planners_with",
]


def partition(
    profile: Profile,
    cluster: Cluster,
    *,
    planner: str = PlanSettings.planner,
    schedule: str = PlanSettings.schedule,
    num_microbatches: int | None = None,
    recompute: bool = False,
    largest_size: float | None = None,
    progress: Callable[[PlanProgress], object] | None = None,
    warm_start: Plan | None = None,
    **options: Any,
) -> Plan:
    """Partition a network into pipeline stages for the devices of a cluster.

    The plan contains the layers and devices of each stage, and the share of minibatches of each replica. Its `estimate`
    contains `period_seconds` (time per minibatch), the lower bound, and bytes.

    Args:
        profile: Costs of the layers on every device type of the cluster.
        cluster: Devices, with memory limits in bytes, and links.
        planner: Name of the planner.
        schedule: Name of the schedule. `sparsepipe.SCHEDULES` describes them.
        num_microbatches: Microbatches per step of a synchronous schedule. Default: twice the devices.
        recompute: Whether stages repeat forwards before backwards, which saves memory.
        largest_size: Size of the largest minibatch that must fit into memory. Default: 99th percentile of the sizes.
        progress: Function that the optimal planner calls whenever it has a better plan or bound, with `seconds`,
            `period_seconds`, `lower_bound_seconds` and `gap` so far. With it, KeyboardInterrupt (Ctrl-C, or raised by
            the function) ends the search, and the best plan so far is returned with its gap.
        warm_start: Plan of these layers and devices that the optimal planner starts from, such as the last one.
        options: Settings of the planner, listed below.

    Returns:
        The plan.

    Raises:
        InputError: An unknown planner or option, a device type without costs, no plan within the memory limits, or a
            warm start for other layers or devices.

    Example:
        >>> best = sp.partition(profile, cluster)
        >>> print(f"{best.estimate.period_seconds:.3f} s per minibatch, optimality gap {best.estimate.gap:.0%}")
        0.090 s per minibatch, optimality gap 0%
        >>> len(sp.partition(profile, cluster, planner="model-parallel", schedule="1f1b-flush").stages)
        2

    See also:
        background/planner_and_proof, background/schedules, `simulate`, `launch`, `partition_pipelines`
    """
    asked = PlanSettings(planner, schedule, num_microbatches, recompute, largest_size)
    planner = _CHOICE.today(planner)
    known = _options_of(planner, options, takes=keywords_of(partition))
    if num_microbatches is None:
        num_microbatches = _microbatches(schedule, len(cluster.devices))
    planned_for = _planned_as(schedule)
    if "stages_per_device" not in known and PLANNERS[planner] is not Optimal:
        check_interleaves(schedule, 1)
    problem = Problem(profile, cluster, planned_for, num_microbatches, recompute, largest_size=asked.largest_size)
    start = time.perf_counter()
    chosen = PLANNERS[planner](**options)
    if isinstance(chosen, Optimal):
        plan = chosen.plan(problem, progress=progress, warm_start=warm_start)
    elif warm_start is None:
        plan = chosen.plan(problem)
    else:
        text = f"{{warm_start}} requires planner {DEFAULT}; omit it for planner {planner!r}"
        raise InputError("planner.warm_start", text, setting="warm_start")
    seconds, cost_model = time.perf_counter() - start, options.get("cost_model")
    plan = with_doubts(with_seconds(plan, seconds), cluster, cost_model=cost_model)
    plan = plan if planned_for == schedule else _for_another(plan, schedule)
    settings = asked.replace(planner=planner, num_microbatches=num_microbatches).to_json() | options
    return replace(plan, provenance=Provenance.of(profile, cluster, settings=settings).to_json())


def partition_pipelines(
    profile: Profile,
    cluster: Cluster,
    num_pipelines: int,
    *,
    replication: Rule | str | None = None,
    planner: str = PlanSettings.planner,
    schedule: str = PlanSettings.schedule,
    num_microbatches: int | None = None,
    recompute: bool = False,
    largest_size: float | None = None,
    most_plans: int = MOST_PLANS,
    **options: Any,
) -> Plan:
    """Divide the devices of a cluster among pipeline replicas for maximum total throughput, and plan each replica.

    A pipeline may use any devices, on one node or several. If there are too many combinations, only whole nodes or
    blocks of identical devices are considered, and the plan contains a warning.

    Args:
        profile: Costs of the layers on every device type of the cluster.
        cluster: The devices and links.
        num_pipelines: Number of pipeline replicas, 2 or more.
        replication: Synchronization scheme, as a `Rule` or text. Default: "partial-reduce".
        planner, schedule, recompute, largest_size: As for `partition`.
        num_microbatches: Microbatches per step, equal in all pipelines. Default for synchronous schedules: twice the
            mean number of devices per pipeline.
        most_plans: Maximum number of parts of the cluster to plan.
        options: Settings of the planner.

    Returns:
        A plan whose `pipelines` contains the plan of each replica.

    Raises:
        InputError: As in `partition`; also too few devices, or a scheme that does not support the schedule or the
            number of pipelines.

    Example:
        >>> replicas = sp.partition_pipelines(profile, sp.Cluster.uniform(4, device_type="cpu"), 2)
        >>> [len(plan.ranks) for plan in replicas.pipelines], replicas.replication.name
        ([2, 2], 'partial-reduce')

    See also:
        guides/pipeline_replicas, background/synchronization_schemes, `simulate_pipelines`, `Plan.alike`
    """
    given_integer(num_pipelines, "pipelines:", least=2)
    chosen = parse_rule(replication) if isinstance(replication, str) else replication or rule("partial-reduce")
    asked = PlanSettings(planner, schedule, num_microbatches, recompute, largest_size)
    planner = _CHOICE.today(planner)
    _options_of(planner, options, takes=keywords_of(partition_pipelines))
    chosen.groups(num_pipelines)  # raises where its options do not fit so many pipelines
    start = time.perf_counter()
    of_one = _microbatches(schedule, len(cluster.devices)) if num_microbatches is None else num_microbatches
    if num_microbatches is None:
        num_microbatches = _microbatches(schedule, -(-len(cluster.devices) // num_pipelines))
    settings = asked.replace(planner=planner, num_microbatches=num_microbatches).to_json() | options

    def plan_of(part: Cluster) -> Plan:
        return partition(profile, part, **settings)

    problem = Problem(
        profile, cluster, _planned_as(schedule), num_microbatches or 1, recompute, largest_size=asked.largest_size
    )
    if options.get("objective", PERIOD) != PERIOD:
        raise InputError(
            "objective.of_one_pipeline",
            "objective applies only to a plan of one pipeline; omit pipelines, or omit objective",
        )
    bounded = PLANNERS.get(planner) is Optimal and options.get("cost_model", "default") == "default"
    split_plan = split(problem, num_pipelines, plan_of, bounded=bounded, most_plans=most_plans)
    samples = profile.batch_size
    unsure = "the profile lacks the samples per minibatch, so throughput is in minibatches/s"
    pipelines = Plan.together(
        split_plan.plans,
        chosen,
        samples=None if samples is None else float(samples),
        lower_bound_seconds=split_plan.lower_bound_seconds,
        plan_seconds=time.perf_counter() - start,
        data_parallel_seconds=_data_parallel_seconds(replace(problem, num_microbatches=of_one), planner, options),
        warnings=tuple(filter(None, [split_plan.left_out, "" if samples else unsure])),
        provenance=Provenance.of(profile, cluster, settings={**settings, "pipelines": num_pipelines}).to_json(),
    )
    check_rule(pipelines)
    return pipelines


def plan_of_layout(
    layout: str | Path,
    profile: Profile,
    cluster: Cluster,
    *,
    schedule: str = LAYOUT_SCHEDULE,
    num_microbatches: int | None = None,
) -> Plan:
    """Read the stages that another runtime is given, as a plan for a profile and the devices of a cluster.

    Stages lie on consecutive devices. If there are fewer stages than devices, each has as many replicas; several times
    as many stages are interleaved.

    Args:
        layout: Layout or the file that has it: Megatron's string ("Et*3|t*4|tL"), torchtitan's lists of names, split
            points of torch.distributed.pipelining, a `_pp_plan`, DeepSpeed's parts, FlagScale's settings.
        profile: Costs of the layers. Their ids are qualified names of modules, as `profile_model` names them.
        cluster: Devices and links.
        schedule: Name of the schedule, a key of `SCHEDULES`.
        num_microbatches: Microbatches per step. Default: twice the devices.

    Returns:
        The plan, with estimates of the default cost model.

    Raises:
        InputError: An unknown form, names or numbers of layers that the profile does not have, layers in no stage, or
            stages that do not fit the devices.

    Example:
        >>> plan = sp.plan_of_layout('[["conv1", "conv2"], ["conv3", "linear"]]', profile, cluster)
        >>> [stage.ranks for stage in plan.stages]
        [(0,), (1,)]

    See also:
        guides/other_runtimes, `partition`, `simulate`
    """
    start = time.perf_counter()
    if num_microbatches is None:
        num_microbatches = _microbatches(schedule, len(cluster.devices))
    problem = Problem(profile, cluster, _planned_as(schedule), num_microbatches)
    read = read_layout(layout)
    stages, notes = stages_of(read, profile.graph, num_devices=len(cluster.devices))
    plan = with_seconds(with_stages(problem, stages, read.replicas), time.perf_counter() - start)
    plan = replace(plan, planner=LAYOUT, warnings=(*notes, *plan.warnings))
    if schedule != plan.schedule:
        plan = _for_another(plan, schedule)
    settings = {"layout": str(layout), "schedule": schedule, "num_microbatches": num_microbatches}
    return replace(plan, provenance=Provenance.of(profile, cluster, settings=settings).to_json())


def _options_of(planner: str, given: Iterable[str], *, takes: Iterable[str]) -> list[str]:
    """Return the options of a planner. Raises InputError if one that is `given` is none of them; the call itself
    `takes` others, of which one may have been meant.
    """
    known = [field.name for field in fields(PLANNERS[planner])]
    if unknown := [name for name in given if name not in known]:
        others = " and ".join(planners_with(unknown[0]))
        near = None if others else meant(unknown[0], [*known, *takes])
        raise InputError(
            "planner.option_unknown",
            f"planner {planner!r} has no option {unknown[0]!r}{f' ({others} has)' if others else ''}; "
            f"{f'did you mean {near!r}? ' if near else ''}its options: {', '.join(known) or 'none'}",
        )
    return known


def _data_parallel_seconds(problem: Problem, planner: str, options: Mapping[str, Any]) -> float | None:
    """Return the data-parallel period in the plan of one pipeline on all devices; None if it has
    none, or the planner does not plan such devices together.
    """
    if options.get("cost_model") == CONTIGUOUS:
        return None
    if planner not in (PipeDream.name, SparsePipe.name):
        return data_parallel_period(problem)
    try:  # by its own cost model
        whole = PLANNERS[planner](**options).plan(problem)
    except InputError:
        return None
    return whole.estimate.data_parallel_seconds if whole.estimate else None


def planners_with(option: str) -> tuple[str, ...]:
    """The names of the planners that have an option of that name."""
    return tuple(name for name, kind in PLANNERS.items() if option in {field.name for field in fields(kind)})


def planner_for(schedule: str, wanted: str = DEFAULT) -> str:
    """Return `wanted`; if the schedule needs several stages per device and it plans one, a planner of several."""
    rules, able = SCHEDULE_RULES.get(schedule), planners_with("stages_per_device")
    return able[0] if rules is not None and rules.stages_per_rank[0] > 1 and wanted not in able else wanted


def comparable(plans: Iterable[Plan], profile: Profile, cluster: Cluster) -> tuple[Plan, ...]:
    """Return the plans with estimates by one cost model, so that they can be compared whoever made them.

    Periods, bytes and memory are those of the default cost model (estimate.py); the lower bound is the highest that any
    planner proved under that model for the same schedule, so that every plan has a gap, but for interleaved ones
    (`bound_of`). How long planning took stays.
    """
    plans = tuple(plans)
    estimates, bounds = [], dict[tuple[str, int], float]()
    for plan in plans:
        schedule = _planned_as(plan.schedule)
        expected = estimate(plan, Problem(profile, cluster, schedule, plan.num_microbatches))
        own_estimate, terms = plan.estimate or expected, (plan.schedule, plan.num_microbatches)
        if own_estimate.lower_bound_seconds is not None and own_estimate.period_seconds == expected.period_seconds:
            bounds[terms] = max(own_estimate.lower_bound_seconds, bounds.get(terms, 0.0))
        estimates.append(replace(expected, plan_seconds=own_estimate.plan_seconds))
    proven = [bound_of(plan, bounds.get((plan.schedule, plan.num_microbatches))) for plan in plans]
    return tuple(
        replace(plan, estimate=replace(expected, lower_bound_seconds=bound))
        for plan, expected, bound in zip(plans, estimates, proven, strict=True)
    )


def bound_of(plan: Plan, proven: float | None) -> float | None:
    """Return `proven`, a bound of all plans with as few stages per device as the schedule allows, for such a plan.

    None for a plan with more. Several stages per device can share out work more evenly, and wait less, than any plan
    that the bound is for.
    """
    return proven if plan.stages_per_rank == plan.rules.stages_per_rank[0] else None


def _microbatches(schedule: str, num_devices: int) -> int:
    """The minibatches of a step, if no one says how many: enough for a small bubble under schedules that flush."""
    known = SCHEDULE_RULES.get(schedule)
    return 2 * num_devices if known is not None and WEIGHT_RULES[known.weights[0]].flushes else 1


def _planned_as(schedule: str) -> str:
    """The schedule that is planned instead of `schedule`: itself, or another where it has no closed form."""
    rules = SCHEDULE_RULES.get(schedule)
    return schedule if rules is None else rules.planned_as or schedule


def _for_another(plan: Plan, schedule: str) -> Plan:
    """The plan under a schedule that it was not planned for: it keeps its estimate, and loses its lower bound."""
    assert plan.estimate is not None
    check_interleaves(schedule, plan.stages_per_rank)
    estimate = replace(plan.estimate, lower_bound_seconds=None)
    warning = f"planned and estimated for {plan.schedule}; simulate the plan to see its time under {schedule}"
    return replace(plan.with_schedule(schedule), estimate=estimate, warnings=(*plan.warnings, warning))


_OF_PLANNERS = (
    f'    - "{name}": {str(kind.__doc__).splitlines()[0]}\n{listed(kind, indent="      ")}'
    for name, kind in PLANNERS.items()
)
partition.__doc__ = "\n".join([f"{partition.__doc__}\n{listed(PlanSettings)}\n", *_OF_PLANNERS])


_MODULES = ("forecast", "measured_plans", "orders", "replaying", "simulator", "sweeps")
__getattr__, __dir__ = lazy_names(globals(), {}, folders=_MODULES)
