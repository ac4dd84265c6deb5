"""What a search knows at any time: the plans that were found, and a time per minibatch that no plan beats.

Searches and bounds add to it as they go on, so that an interrupted search still has a plan and an honest gap.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from os import PathLike

import numpy as np

from ...errors import InputError
from ...util.text.numbers import duration, gap_text
from ...values.costs import Array
from ...values.plan import Plan
from ..base import Problem
from ..cuts import Cuts, Index
from ..device_groups import DeviceClass, DeviceGroups, device_classes
from .chain_search import Moves, Path
from .like_nodes import ON_A_NODE, JoinedNodes
from .min_step_time import StepModel
from .priced_stages import Priced, PricedStages
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


_WIDTH = 150  # beginnings at each cut
_OPTIONS = 100  # groups to put in front of them
_PRICES = 8  # of those that were asked last
_MORE = 1 + 1e-9


# A path that uses no more devices than there are, looked for where prices of devices say that one may be
@dataclass(frozen=True, eq=False)
class _Beginnings:
    """Stages from a cut to the end of the network, a row each."""

    used: Index  # [N, T]
    kind: Index  # [N]: of the first of the stages
    value: Array  # [N]: what they and all before them cost at least, at the prices where that is most
    group: Index  # [N]: of the first of the stages
    behind: Index  # [N]: the row, among those kept at `cut`, of the stages behind it
    cut: Index  # [N]: where it ends

    def rows(self, chosen: Index) -> "_Beginnings":
        return _Beginnings(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    def best(self, count: int) -> "_Beginnings":
        """The least dear of those that differ."""
        order = np.argsort(self.value, kind="stable")
        keys = np.column_stack([self.kind, self.used])[order]
        _, first = np.unique(keys, axis=0, return_index=True)
        return self.rows(order[np.sort(first)[:count]])

    @classmethod
    def joined(cls, parts: Sequence["_Beginnings"]) -> "_Beginnings":
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in cls.__dataclass_fields__))


def guided_path(stages: PricedStages, asked: Sequence[Priced]) -> Path | None:
    """Return a path of the joined model below the limit of `stages`; None if none was found."""
    search = _Search(stages, list(asked)[-_PRICES:])
    return search.path()


class _Search:
    """One look for a path."""

    def __init__(self, stages: PricedStages, asked: Sequence[Priced]) -> None:
        self.stages, self.joined = stages, stages.joined
        self.size = len(self.joined.model.cuts)
        self.prices = np.stack([one.prices for one in asked])  # [P, T]
        self.before = np.stack([one.before for one in asked])  # [P, K, S]
        self.price = self.joined.counts @ self.prices.T  # [G, P]
        reachable = np.logical_or.reduce(stages.allowed, axis=0)  # [K, S]: by any kind of sender
        reachable[:, 0] = True
        places = np.where(reachable, np.arange(self.size), self.size)
        self.nearest = np.minimum.accumulate(places[:, ::-1], axis=1)[:, ::-1]
        none = np.zeros(1, dtype=np.intp)
        start = _Beginnings(
            np.zeros((1, len(self.joined.available)), dtype=np.intp), none - 1, np.zeros(1), none - 1, none, none
        )
        self.waiting: dict[int, list[_Beginnings]] = {self.size - 1: [start]}
        self.kept: dict[int, _Beginnings] = {}

    def path(self) -> Path | None:
        for cut in range(self.size - 1, 0, -1):
            if cut not in self.waiting:
                continue
            best_beginnings = self.kept[cut] = _Beginnings.joined(self.waiting.pop(cut)).best(_WIDTH)
            whole = self._grown(cut, best_beginnings)
            if whole is not None:
                return self._walk(whole)
        return None

    def _grown(self, cut: int, own: _Beginnings) -> _Beginnings | None:
        """Put each group in front of stages that begin at a cut; return what reaches the start of the network."""
        kind, groups = self.stages.kind, self._options(cut, own)
        first = self.nearest[kind[groups], self.stages.first[groups, cut - 1]]
        used = own.used[:, None, :] + self.joined.counts[groups][None, :, :]
        ahead = self.before[:, kind[groups], first].T
        value = ((own.used @ self.prices.T)[:, None, :] + (self.price[groups] + ahead)[None]).max(axis=2)
        good = (used <= self.joined.available).all(axis=2) & (value <= _MORE)
        if cut < self.size - 1:
            good &= self.stages.allowed[kind[groups][None, :], own.kind[:, None], cut]
        row, column = np.nonzero(good)
        group = groups[column]
        grown_beginnings = _Beginnings(
            used[row, column], kind[group], value[row, column], group, row, np.full(len(row), cut, dtype=np.intp)
        )
        start = first[column]
        if (start == 0).any():
            return grown_beginnings.rows(np.flatnonzero(start == 0)).best(1)
        for first_cut in np.unique(start):
            self.waiting.setdefault(int(first_cut), []).append(
                grown_beginnings.rows(np.flatnonzero(start == first_cut)).best(_WIDTH)
            )
        return None

    def _options(self, cut: int, own: _Beginnings) -> Index:
        """The groups that are the least dear in front of any of the stages."""
        first = self.nearest[self.stages.kind[: len(self.price)], self.stages.first[:, cut - 1]]
        able = np.flatnonzero(first < cut)
        ahead = self.before[:, self.stages.kind[able], first[able]].T
        least = (own.used @ self.prices.T).min(axis=0)
        value = (least + self.price[able] + ahead).max(axis=1)
        able, value = able[value <= _MORE], value[value <= _MORE]
        return able[np.argsort(value, kind="stable")[:_OPTIONS]]

    def _walk(self, found: _Beginnings) -> Path:
        path, first, row = [], 0, 0
        while True:
            last = int(found.cut[row])
            path.append((int(found.group[row]), first, last))
            if last == self.size - 1:
                return path
            found, row, first = self.kept[last], int(found.behind[row]), last


def devices_in_order(joined: JoinedNodes, path: Path, classes: Sequence[DeviceClass]) -> tuple[int, ...]:
    """The devices by class, from the end of the pipeline, for a path of the joined model; those left out come last.

    Groups on a node, large ones first, go where the least is left next to them; the others take what is left then.
    """
    model, left = joined.model, [len(device_class.ranks) for device_class in classes]
    names = list(dict.fromkeys(device_class.node.name for device_class in classes))
    class_index = {(device_class.node.name, device_class.type.name): k for k, device_class in enumerate(classes)}
    chosen: dict[int, list[int]] = {}
    sizes = [int(joined.counts[group].sum()) for group, _, _ in path]
    alone = [model.groups.placement[group] == ON_A_NODE for group, _, _ in path]
    for stage in sorted(range(len(path)), key=lambda k: (not alone[k], -sizes[k])):
        wanted = dict(zip(model.groups.types, joined.counts[path[stage][0]].tolist(), strict=True))
        free = {
            name: {kind: left[class_index[name, kind]] if (name, kind) in class_index else 0 for kind in wanted}
            for name in names
        }
        fitting = [name for name in names if all(free[name][kind] >= n for kind, n in wanted.items())]
        fitting.sort(key=lambda name: sum(free[name].values()))
        spread = sorted(names, key=lambda name: -sum(free[name][kind] for kind, n in wanted.items() if n))
        device_order = list[int]()
        for name in fitting[:1] if alone[stage] and fitting else spread:
            for kind, n in wanted.items():
                taken = min(n, free[name][kind])
                if taken:
                    device_order += [class_index[name, kind]] * taken
                    wanted[kind] -= taken
                    left[class_index[name, kind]] -= taken
        chosen[stage] = device_order
    rest = [k for k, count in enumerate(left) for _ in range(count)]
    return (*(k for stage in reversed(range(len(path))) for k in chosen[stage]), *rest)
