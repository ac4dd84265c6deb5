"""What a search knows at any time: the plans that were found, and a time per minibatch that no plan beats.

Searches and bounds add to it as they go on, so that an interrupted search still has a plan and an honest gap.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from os import PathLike

import numpy as np

from ...errors import InputError
from ...util.text.numbers import duration, gap_text
from ...values.plan import Plan
from ..base import Problem
from ..cuts import Cuts
from ..device_groups import DeviceGroups, device_classes
from .chain_search import Moves, Path
from .min_step_time import StepModel
from .relaxed_bound import is_close
from .search_space import Rules, Space, class_prices
from .stage_cost_tables import StageModel

INTERRUPTED = "the search was interrupted: the gap is that of the best plan until then"


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """State of a search for a plan, as `partition` passes it to `progress`.

    Attributes:
        seconds: Time since the start of the search.
        period_seconds: Time per minibatch of the best plan so far.
        lower_bound_seconds: Proven lower bound on the time per minibatch of any plan, so far.
    """

    seconds: float
    period_seconds: float
    lower_bound_seconds: float

    @property
    def gap(self) -> float:
        """Share of the best plan's time that a better plan could save at most."""
        return max(1 - self.lower_bound_seconds / self.period_seconds, 0.0) if self.period_seconds > 0 else 0.0

    def __str__(self) -> str:
        return f"{self.seconds:.0f} s: {duration(self.period_seconds)} per minibatch, gap {gap_text(self.gap)}"


@dataclass(frozen=True, eq=False)
class Found:
    """A path, the space it is of, and its period."""

    space: Space
    path: Path
    value: float

    def path_on(self, space: Space) -> Path:
        """The path in another space of the same groups that has its cuts."""
        cut_of = {mask: cut for cut, mask in enumerate(space.model.cuts.masks)}
        masks = self.space.model.cuts.masks
        return [(group, cut_of[masks[first]], cut_of[masks[last]]) for group, first, last in self.path]


class Known:
    """The plans of a search and its bound; `progress` is called whenever one of them gets better."""

    def __init__(self, progress: Callable[[PlanProgress], object] | None = None) -> None:
        self.plans: list[Found] = []
        self.low, self.period = 0.0, inf  # the bound, and the least period
        self.quiet = False  # while values leave out a part of the cost
        self._progress, self._start = progress, time.perf_counter()

    def add(self, plans: Iterable[Found]) -> None:
        """Add plans."""
        more = list(plans)
        self.plans += more
        least = min((plan.value for plan in more), default=inf)
        if least < self.period:
            self.period = least
            self._report()

    def prove(self, low: float) -> None:
        """Add a lower bound of the period of all plans."""
        if low > self.low:
            self.low = low
            self._report()

    def judge(self, judged: Iterable[Found]) -> None:
        """Replace the plans by those with the whole of their costs."""
        self.plans, self.period, self.quiet = [], inf, False
        self.add(judged)

    @property
    def best(self) -> Found:
        """The plan with the least period, the first of equal ones."""
        return min(self.plans, key=lambda plan: plan.value)

    @property
    def is_close(self) -> bool:
        """Return whether the gap is not worth a second."""
        return is_close(self.low, self.period)

    def _report(self) -> None:
        if self._progress is not None and self.plans and self.low > 0 and not self.quiet:
            self._progress(PlanProgress(time.perf_counter() - self._start, self.period, min(self.low, self.period)))


def timed_model(problem: Problem, space: Space, *, published: bool) -> StageModel | StepModel:
    """Return the model whose `period` is the seconds per minibatch of a path."""
    return StepModel.of(problem, space.model) if problem.synchronous and not published else space.model


def path_of_plan(problem: Problem, rules: Rules, plan: Plan) -> Found | None:
    """Return the stages of a plan as a path, with shares by the planner; None if they need too much memory.

    Raises InputError if the plan has several pipelines, several stages per device, or other layers or devices.
    """
    if isinstance(plan, str | PathLike):
        text = f"{{warm_start}} is a {type(plan).__name__}, expected a Plan; read a file by Plan.load"
        raise InputError("planner.warm_start", text, setting="warm_start")
    if plan.one("warm_start takes a plan of one pipeline").stages_per_rank != 1:
        text = "{warm_start} requires a plan with one stage per device; give another plan, or omit it"
        raise InputError("planner.warm_start", text, setting="warm_start")
    plan.check(problem.graph, problem.cluster)
    classes, bit = device_classes(problem.cluster), {layer: k for k, layer in enumerate(problem.layers)}
    class_of_rank = {rank: k for k, device_class in enumerate(classes) for rank in device_class.ranks}
    masks, mask, index = [0], 0, problem.graph.index
    counts = np.zeros((len(plan.stages), len(classes)), dtype=np.intp)
    for k, stage in enumerate(plan.stages):
        mask |= sum(1 << bit[index[name]] for name in stage.layers if index[name] in bit)
        masks.append(mask)
        for rank in stage.ranks:
            counts[k, class_of_rank[rank]] += 1
    cuts = Cuts.chosen(tuple(problem.layers), problem.graph.input_layers, masks)
    if len(cuts) != len(masks):
        return None  # a stage has only layers that load the data
    every, used = np.arange(len(counts)), np.concatenate([[0], np.cumsum(counts[::-1].sum(axis=1))])
    left = np.array([len(device_class.ranks) for device_class in classes]) - np.concatenate(
        [np.zeros((1, len(classes)), dtype=np.intp), np.cumsum(counts[::-1], axis=0)]
    )
    spare = left @ class_prices(problem, classes)
    moves = Moves(used, every, every[::-1], every + 1, spare, np.arange(len(every), -1, -1))
    groups = DeviceGroups.of(problem, classes, counts, even=rules.published)
    space = Space.of(problem, rules, cuts, groups, moves, complete=False)
    path = [(k, k, k + 1) for k in every.tolist()]
    if space.memory is not None and not space.memory.fits(moves, path):
        return None
    return Found(space, path, timed_model(problem, space, published=rules.published).period(path))
