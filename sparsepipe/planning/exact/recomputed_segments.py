"""Plans within a memory limit that recompute only the layers that the limit requires.

Each stage recomputes nothing, segments of its layers, or all of them: the choice of the fewest seconds that fits with
its minibatches in flight. Segments are chosen by dynamic programming (values/recomputation.py). Stages come from three
searches, of which the first also proves the bound, because a limit and recomputation only add time:

    without a limit, nothing recomputed
    within the limit, nothing recomputed
    within the limit, all layers recomputed

Then single layers move between neighbouring stages as long as that helps.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from ...errors import InputError
from ...util.io.quantities import SIZE
from ...util.text.numbers import number_of
from ...values.costs import OPTIMIZER_SLOTS, depth
from ...values.plan import Plan, Stage
from ...values.recomputation import Segments, StageMemory
from ..base import Problem
from ..baselines import ModelParallel
from ..estimate import boundaries, estimate, kinds_of
from .improvement import TOO_FEW_IN_FLIGHT, deepened
from .known_plans import INTERRUPTED
from .search_space import unlimited

_BUDGETS, _QUICK_BUDGETS = 12, 3  # of kept bytes that are tried if minibatches wait
_SECONDS = 2.0  # of the processor, for moving layers
_CLOSE = 1 + 1e-9


def is_limited(problem: Problem) -> bool:
    """Return whether stages are to be recomputed, on devices with a memory limit."""
    limited = any(kind.memory_bytes < inf for kind in problem.cluster.device_types)
    return limited and problem.recompute and not problem.forward_only


def segmented_plan(
    problem: Problem, search: Callable[[Problem], Plan], *, quick: bool, most_stages: int | None
) -> Plan:
    """Return the best plan within the memory limit, with a lower bound of the period of all such plans.

    `search`: plans a problem as it is, with at most `most_stages`. Raises InputError if no plan fits even with
    recomputation.
    """
    fitting, keeping = FittingStages(problem, quick), replace(problem, recompute=False)
    free = search(replace(keeping, cluster=unlimited(problem.cluster)))
    assert free.estimate is not None
    bound, best = free.estimate.lower_bound_seconds or 0.0, fitting.best_of(free)
    if not best.keeps_all and INTERRUPTED not in free.warnings:
        for other in (keeping, problem):
            try:
                best = min(best, fitting.best_of(search(other), fits=True), key=lambda one: one.rank)
            except InputError as error:
                if error.code != "planner.no_plan":
                    raise
        if best.missing > 0 and (most_stages or inf) >= len(problem.cluster.devices):
            best = min(best, fitting.best_of(ModelParallel().plan(problem)), key=lambda one: one.rank)
        if not quick or best.missing > 0:
            best = fitting.with_layers_moved(best, bound, seconds=_SECONDS)
    if best.missing > 0:
        stage = max(range(len(best.plan.stages)), key=lambda k: fitting.missing(best.plan, k))
        raise InputError(
            "planner.no_plan",
            f"no plan was found that fits into the memory of {number_of(len(problem.cluster.devices), 'device')}, even "
            f"with recomputation: stage {stage} of the nearest lacks {SIZE.shown(fitting.missing(best.plan, stage))}; "
            "use more or larger devices, or smaller minibatches",
        )
    plan, expected = best.plan, estimate(best.plan, problem)
    proven = min(bound, expected.period_seconds)
    return replace(plan, planner=free.planner, estimate=replace(expected, lower_bound_seconds=proven))


@dataclass(frozen=True)
class FittedPlan:
    """A plan whose stages recompute what they need to fit; `missing`: bytes by which the worst does not."""

    plan: Plan
    missing: float
    period: float

    @property
    def rank(self) -> tuple[float, float]:
        return self.missing, self.period

    @property
    def keeps_all(self) -> bool:
        return self.missing <= 0 and not any(stage.recomputes for stage in self.plan.stages)


@dataclass(frozen=True, eq=False)
class FittingStages:
    """The cheapest recomputation with which stages fit into the memory of their devices."""

    problem: Problem
    quick: bool = False  # whether few budgets are tried, and stages of plans that fit stay as they are
    _chosen: dict[tuple[object, ...], tuple[Stage, float]] = field(default_factory=dict)

    def best_of(self, plan: Plan, *, fits: bool = False) -> FittedPlan:
        """Return a plan fitted to the limit, with more forwards in flight only if it is no slower for them.

        `fits`: the plan does so already.
        """
        if self.quick and fits:
            return FittedPlan(plan, 0.0, estimate(plan, self.problem).period_seconds)
        warnings = tuple(text for text in plan.warnings if text != TOO_FEW_IN_FLIGHT)
        stages = tuple(replace(stage, warmup=None) for stage in plan.stages)
        bare = _bare(replace(plan, stages=stages, warnings=warnings))
        fitted = self.fitted(bare)
        if self.quick:
            return fitted
        without_limit = replace(self.problem, recompute=False, cluster=unlimited(self.problem.cluster))
        deep = deepened(bare, without_limit)
        deeper = fitted if deep.stages == bare.stages else self.fitted(deep)
        if deeper.missing <= 0 and deeper.period <= fitted.period * _CLOSE:
            return deeper
        return replace(fitted, plan=deepened(fitted.plan, self.problem)) if fitted.missing <= 0 else fitted

    def fitted(self, plan: Plan) -> FittedPlan:
        """Return a plan, whose stages keep all, with the cheapest recomputation that fits, else that of least bytes."""
        incoming = [float(before[0][1]) for before in boundaries(plan, self.problem, held=True)[1]]
        chosen = [self._choose(plan, k, incoming[k]) for k in range(len(plan.stages))]
        fitted = replace(plan, stages=tuple(stage for stage, _ in chosen))
        return FittedPlan(fitted, max(missing for _, missing in chosen), estimate(fitted, self.problem).period_seconds)

    def missing(self, plan: Plan, k: int) -> float:
        """Return the bytes that stage `k` of a plan needs beyond the memory of its devices; 0 if it fits."""
        return max(0.0, estimate(plan, self.problem).stages[k].memory_bytes - self.problem.memory_limit(plan.stages[k]))

    def with_layers_moved(self, best: FittedPlan, bound: float, *, seconds: float) -> FittedPlan:
        """Return the plan, or a better one whose neighbouring stages exchanged layers, one at a time."""
        until, better = time.process_time() + seconds, True
        while better and time.process_time() < until and not (best.missing <= 0 and best.period <= bound * _CLOSE):
            better = False
            for moved in self._neighbours(best.plan):
                # Recomputation only adds time: without it the plan must be faster already.
                if best.missing <= 0 and estimate(moved, self.problem).period_seconds >= best.period:
                    continue
                fitted = self.best_of(moved)
                if fitted.rank < (best.missing, best.period / _CLOSE):
                    best, better = fitted, True
                    break
                if time.process_time() > until:
                    break
        return best

    def _neighbours(self, plan: Plan) -> Iterator[Plan]:
        """Plans in which a stage gives a layer to the next or the one before, if no stage would feed an earlier one."""
        graph, bare = self.problem.graph, _bare(plan)
        for k, (own, following) in enumerate(zip(bare.stages, bare.stages[1:], strict=False)):
            for giver, taker, reads in ((own, following, graph.consumers), (following, own, graph.inputs)):
                inside = {graph.index[id] for id in giver.layers}
                for layer in sorted(inside) if len(inside) > 1 else ():
                    if inside.isdisjoint(reads[layer]):
                        name = graph.layers[layer].id
                        less = replace(giver, layers=tuple(id for id in giver.layers if id != name))
                        more = replace(taker, layers=tuple(sorted((*taker.layers, name), key=graph.index.__getitem__)))
                        pair = (less, more) if giver is own else (more, less)
                        yield replace(bare, stages=(*bare.stages[:k], *pair, *bare.stages[k + 2 :]))

    def _choose(self, plan: Plan, k: int, incoming: float) -> tuple[Stage, float]:
        """Return a stage with its cheapest recomputation, and the bytes that are missing even so."""
        stage, problem = plan.stages[k], self.problem
        later = sum(len(other.ranks) for other in plan.stages[k + 1 :])
        versions, minibatches = depth(plan.schedule, plan.num_microbatches, stage.shares, later, stage.warmup)
        key = (stage, versions, minibatches, incoming)
        if key not in self._chosen:
            rows = sorted(problem.graph.index[id] for id in stage.layers)
            _, working, _ = problem.table.stage_bytes(rows)
            weights = float(problem.table.parameter_bytes[rows].sum())
            room = problem.memory_limit(stage) - weights * (versions + OPTIMIZER_SLOTS) - minibatches * incoming
            kinds = list(dict.fromkeys(kinds_of(problem, stage)))
            memory = StageMemory.of(problem.table, rows, kinds, column=1)
            # Bytes are those of a large minibatch, seconds those of the mean one, as in the plan's estimate.
            mean = np.maximum.reduce([problem.table.forward[name][rows, 0] for name in kinds])
            memory = replace(memory, seconds=mean)
            whole = room - float(working[0]), float(mean.sum())  # bytes left, and seconds, if all layers run again
            self._chosen[key] = _cheapest(
                stage,
                memory,
                room,
                minibatches - 1,
                whole,
                _QUICK_BUDGETS if self.quick else _BUDGETS,
                [problem.graph.layers[row].id for row in rows],
            )
        return self._chosen[key]


def _cheapest(
    stage: Stage,
    memory: StageMemory,
    room: float,
    waiting: int,
    whole: tuple[float, float],
    budgets: int,
    ids: Sequence[str],
) -> tuple[Stage, float]:
    """Return a stage with the cheapest recomputation in `room` bytes, and what is missing with the one of least bytes.

    `waiting`: minibatches in flight besides the one at work.
    """
    segments = cheapest_segments(memory, room, waiting, budgets)
    left, seconds = whole
    if left >= 0 and (segments is None or memory.recomputed_seconds(segments) > seconds / _CLOSE):
        return replace(stage, recompute=True), 0.0
    if segments is not None:
        return replace(stage, segments=_named(segments, ids)), 0.0
    lean, held = memory.leanest(waiting)
    missing = held.peak + waiting * held.kept - room
    if missing < -left:
        return replace(stage, segments=_named(lean, ids)), missing
    return replace(stage, recompute=True), -left


def cheapest_segments(memory: StageMemory, room: float, waiting: int, budgets: int = _BUDGETS) -> Segments | None:
    """Return the segments of the fewest seconds with which a stage's minibatches fit; None if none were found.

    Args:
        memory: The stage's layers.
        room: Bytes for all minibatches in flight.
        waiting: Minibatches in flight besides the one at work, which keep their bytes alone.
        budgets: Number of kept bytes per minibatch that are tried.
    """
    if memory.whole.peak + waiting * memory.whole.kept <= room:
        return ()
    if not waiting:
        return memory.cheapest(kept_bytes=inf, peak_bytes=room)
    lean, held = memory.leanest(waiting)
    if held.peak + waiting * held.kept > room:
        return None
    # What one minibatch keeps, all that wait keep: less is left for the one at work.
    most, found = min(memory.whole.kept, room / (waiting + 1)), [lean]
    for kept in np.linspace(held.kept, most, budgets).tolist():
        each = memory.cheapest(kept_bytes=kept, peak_bytes=room - waiting * kept)
        if each is not None:
            found.append(each)
    return min(found, key=memory.recomputed_seconds)


def _bare(plan: Plan) -> Plan:
    """Return a plan whose stages keep all."""
    return replace(plan, stages=tuple(replace(stage, recompute=False, segments=()) for stage in plan.stages))


def _named(segments: Segments, ids: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((ids[first], ids[end - 1]) for first, end in segments)
