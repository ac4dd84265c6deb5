"""Plans by hand: a person gives the cuts or the devices of each stage, and the rest is chosen.

Cuts lie between layers in topological order: `ends[k]` layers come before cut k. A stage's devices are counts of each
device class of the cluster (`device_classes`), in the order of their first rank.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, product

import numpy as np

from ..errors import InputError
from ..util.text.numbers import number_of
from ..values.costs import Array
from ..values.plan import Plan
from .base import Problem, check_interleaves
from .cuts import Cuts
from .device_groups import DeviceGroups, device_classes
from .estimate import estimate
from .exact.stage_cost_tables import StageModel, default_model

Counts = tuple[int, ...]
NAME = "by hand"
MOST_STATES = 20_000  # device counts that the search over devices keeps for each stage


def by_hand(problem: Problem, ends: Sequence[int], groups: Sequence[Counts]) -> Plan:
    """Make the plan with these cuts and these devices for each stage.

    Raises InputError for cuts that do not grow, devices that the cluster does not have, and a stage without any.
    """
    check_interleaves(problem.schedule, 1)
    _check_cuts(problem, ends)
    _check_groups(problem, groups)
    if len(groups) != len(ends) + 1:
        raise InputError(
            "by_hand.group_count",
            f"{number_of(len(ends), 'cut')} between {number_of(len(ends) + 1, 'stage')}, but devices are assigned to "
            f"{len(groups)}; give devices for each stage",
        )
    classes = device_classes(problem.cluster)
    device_groups = DeviceGroups.of(problem, classes, np.array(groups, dtype=np.intp))
    bounds, taken, stages = [0, *ends, len(problem.layers)], set[int](), []
    for k in range(len(groups)):
        ranks, shares = device_groups.ranks(k, taken)
        taken.update(ranks)
        stages.append(problem.stage(problem.layers[bounds[k] : bounds[k + 1]], ranks, shares))
    plan = problem.plan(stages, NAME)
    return replace(plan, estimate=estimate(plan, problem))


def with_cuts(problem: Problem, ends: Sequence[int]) -> Plan:
    """Keep the cuts and choose the devices of each stage: the slowest stage as fast as can be, transfers aside.

    Exact over all counts of each class if there are few enough of them; a cluster with more than `MOST_STATES`
    combinations of counts raises InputError.
    """
    _check_cuts(problem, ends)
    classes = device_classes(problem.cluster)
    have = tuple(len(c.ranks) for c in classes)
    if len(ends) + 1 > sum(have):
        raise InputError(
            "by_hand.too_many_cuts",
            f"{number_of(len(ends), 'cut')} between {number_of(len(ends) + 1, 'stage')} but only "
            f"{number_of(sum(have), 'device')}; remove split points",
        )
    if np.prod([n + 1 for n in have]) > MOST_STATES:
        raise InputError(
            "by_hand.too_many_kinds",
            f"{number_of(sum(have), 'device')} of {len(have)} kinds are too many to search; assign the device types "
            "by hand too",
        )
    options = [counts for counts in product(*(range(n + 1) for n in have)) if any(counts)]
    model = _model(problem, options)
    bounds = [0, *ends, len(problem.layers)]
    every = np.arange(len(options))
    best = np.full([n + 1 for n in have], np.inf)
    best[(0,) * len(have)] = 0.0
    chosen = []
    for a, b in zip(bounds, bounds[1:], strict=False):
        best, pick = _one_more_stage(best, options, model.seconds(every, a, b))
        chosen.append(pick)
    # Among equals the fewest devices: more of them would only average more.
    at = min(np.ndindex(*best.shape), key=lambda used: (best[used], sum(used)))
    groups = []
    for pick in reversed(chosen):
        counts = options[pick[at]]
        groups.append(counts)
        at = tuple(a - c for a, c in zip(at, counts, strict=True))
    return by_hand(problem, ends, groups[::-1])


def with_groups(problem: Problem, groups: Sequence[Counts]) -> Plan:
    """Keep each stage's devices and choose the cuts: the slowest stage or boundary as fast as can be."""
    _check_groups(problem, groups)
    num_layers, num_stages = len(problem.layers), len(groups)
    if num_stages > num_layers:
        raise InputError(
            "planner.too_many_stages",
            f"{number_of(num_stages, 'stage')} for {number_of(num_layers, 'layer')}: expected at least one layer per "
            "stage",
        )
    model = _model(problem, groups, in_this_order=True)
    places = np.arange(num_layers + 1)
    best, picks = np.where(places == 0, 0.0, np.inf), []
    for k in range(num_stages):
        first, last = np.meshgrid(places, places, indexing="ij")
        seconds = np.where(first < last, model.seconds(k, np.minimum(first, last), last), np.inf)
        if k:
            entering = np.array([model.boundary(k - 1, k, int(cut)) for cut in places])
            seconds = np.maximum(seconds, entering[:, None])
        worst = np.maximum(best[:, None], seconds)
        picks.append(worst.argmin(axis=0))
        best = worst.min(axis=0)
    at, ends = num_layers, []
    for pick in reversed(picks):
        at = int(pick[at])
        ends.append(at)
    return by_hand(problem, ends[::-1][1:], groups)


def with_stages(problem: Problem, stages: Sequence[Sequence[int]], replicas: Sequence[int] = ()) -> Plan:
    """Make the plan with these layers in each stage, as other runtimes place stages: consecutive ones side by side.

    With fewer stages than devices, each stage has replicas on consecutive ranks: as many as `replicas` says, else the
    same number. Several times as many stages are interleaved, as the schedule places them. Raises InputError for
    numbers of stages and devices that do not fit, and for an order of layers that the network does not have.
    """
    num_devices, num_stages = len(problem.cluster.devices), len(stages)
    counts = list(replicas) or [num_devices // num_stages] * num_stages
    ranks: list[tuple[int, ...]]
    if num_stages > num_devices and num_stages % num_devices == 0 and not replicas:
        check_interleaves(problem.schedule, num_stages // num_devices)
        ranks = [(problem.rules.position(k, num_devices),) for k in range(num_stages)]
    elif sum(counts) == num_devices and len(counts) == num_stages and min(counts) > 0:
        check_interleaves(problem.schedule, 1)
        ends = list(accumulate(counts))
        ranks = [tuple(range(end - count, end)) for count, end in zip(counts, ends, strict=True)]
    else:
        expected = f"{sum(replicas)}" if replicas else f"{num_stages}, a multiple, or a part of it"
        raise InputError(
            "by_hand.stages_and_devices",
            f"{number_of(num_stages, 'stage')} for {number_of(num_devices, 'device')}: expected {expected} devices",
        )
    placed = [problem.stage(layers, each) for layers, each in zip(stages, ranks, strict=True)]
    plan = problem.plan(placed, NAME).check(problem.graph, problem.cluster)
    return replace(plan, estimate=estimate(plan, problem))


def _one_more_stage(best: Array, options: Sequence[Counts], seconds: Array) -> tuple[Array, np.ndarray]:
    """Add a stage: the time of the slowest stage for each number of devices used so far, and the option taken."""
    least_loads = np.full(best.shape, np.inf)
    pick = np.zeros(best.shape, dtype=np.intp)
    for k, counts in enumerate(options):
        before = tuple(slice(0, size - c) for size, c in zip(best.shape, counts, strict=True))
        after = tuple(slice(c, None) for c in counts)
        candidate = np.maximum(best[before], seconds[k])
        better = candidate < least_loads[after]
        least_loads[after] = np.where(better, candidate, least_loads[after])
        pick[after] = np.where(better, k, pick[after])
    return least_loads, pick


def _model(problem: Problem, options: Sequence[Counts], *, in_this_order: bool = False) -> StageModel:
    """Costs of any run of layers on each of these groups of devices; `in_this_order`: of stages one after the other."""
    candidates = DeviceGroups.of(problem, device_classes(problem.cluster), np.array(options, dtype=np.intp))
    if in_this_order and problem.cluster.sending_costs:
        candidates = candidates.in_this_order()
    return default_model(problem, Cuts.along(problem.table, problem.layers), candidates)


def _check_cuts(problem: Problem, ends: Sequence[int]) -> None:
    bounds = [0, *ends, len(problem.layers)]
    if any(b <= a for a, b in zip(bounds, bounds[1:], strict=False)):
        raise InputError(
            "by_hand.cuts_misplaced",
            f"split points after {list(ends)} of {len(problem.layers)} layers: expected increasing numbers with at "
            "least one layer per stage; move the split points apart",
        )


def _check_groups(problem: Problem, groups: Sequence[Counts]) -> None:
    classes = device_classes(problem.cluster)
    for k, counts in enumerate(groups):
        if len(counts) != len(classes) or min(counts) < 0:
            raise InputError(
                "by_hand.count_malformed",
                f"stage {k} has device counts {counts}, expected {len(classes)} whole numbers, each 0 or more",
            )
        if not any(counts):
            raise InputError("by_hand.stage_empty", f"stage {k} has no device; assign one to it, or remove the stage")
    for column, kind in enumerate(classes):
        used = sum(counts[column] for counts in groups)
        if used > len(kind.ranks):
            raise InputError(
                "by_hand.too_many_devices",
                f"the stages use {used} {kind.type.name}, but the cluster has {len(kind.ranks)}; remove some from "
                "the stages",
            )
