"""The best plan for schedules that flush: minimise the time of a step, from filling the pipeline to draining it.

A step takes Σ (what each stage and boundary adds) + max (what each stage or boundary limits). For a bound on the
limits, the least sum is a shortest path over (devices used, cut). The sum can only grow as the bound shrinks, so a
bound's answer also speaks for every bound between it and the largest limit of its plan; what is left between the bounds
already asked is searched where it could still hold the best plan, until nowhere can.
"""

import heapq
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from math import inf
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...values.costs import Array
from ..base import Problem
from ..cuts import Index
from .chain_search import Limit, Moves, Path
from .memory_limits import MemoryRule
from .min_period import Watch
from .stage_cost_tables import StageModel, crossings

# Entries of dense tables that one search may look at, some ten seconds; a plan found by then is returned with its gap.
BUDGET = 3_000_000_000
MIN_EVALUATIONS, MAX_EVALUATIONS = 30, 2000
_ROUNDING = 1e-13  # of a sum, added up in another order
MOST_KEPT = 60_000_000  # entries of tables that are kept: half a gigabyte, twice


class StageSeconds(Protocol):
    """The seconds of stages, each from one cut to another."""

    def seconds(self, group: int, first: int | Index, last: int | Index) -> Array: ...

    def every(self, group: int) -> Array:
        """Return the values from every cut (row) to every cut (column), [S, S]."""
        ...


class SumModel(Protocol):
    """Contributions of stages and boundaries to the minimized sum, and to the limited quantity."""

    @property
    def works(self) -> StageModel:
        """Its stage seconds are those of the model, and its ports are what boundaries limit."""
        ...

    @property
    def latencies(self) -> StageSeconds:
        """Return the contribution of a stage."""
        ...

    @property
    def crossing(self) -> Array:
        """Return the contribution of a boundary, [links, S]."""
        ...

    def limit(self, group: int, first: int | Index, last: int | Index) -> Array:
        """Return the quantity that a stage limits."""
        ...

    def limits(self, group: int) -> Array:
        """The same of every stage on a group, as `StageModel.every`."""
        ...

    def first_weight(self, group: int) -> float:
        """Factor on the sum when this group is the first."""
        ...


@dataclass(frozen=True, eq=False)
class StepModel:
    """Contributions and limits of stages and boundaries (estimate.py: W, L and C)."""

    works: StageModel  # its stage seconds are W, and its ports what boundaries limit
    latencies: StageModel  # its stage seconds are L: what a stage adds
    crossing: Array  # [links, S]: what a boundary adds, both directions
    minibatches: int  # that `total` is the time of
    sequential: bool = False  # one minibatch at a time in each replica of the first stage: the period, not the step

    @classmethod
    def of(cls, problem: Problem, model: StageModel) -> "StepModel":
        """Derive it from the asynchronous form of the default cost model."""
        groups, minibatches, none = model.groups, problem.num_microbatches, np.zeros(len(model.groups))
        latencies = replace(model, rates=(groups.shares > 0).astype(float), weight_rates=none, fixed=none)
        crossing = np.stack(
            [
                2 * link.latency + (forward + backward) / link.bandwidth
                for link, forward, backward in crossings(problem, model.cuts, groups)
            ]
        )
        if problem.rules.one_minibatch_at_a_time:
            return cls(replace(model, ports=np.zeros_like(model.ports)), latencies, crossing, 1, True)
        works = replace(
            model,
            rates=(-(-minibatches * groups.shares // groups.rounds[:, None])).astype(float),
            weight_rates=model.weight_rates * minibatches,
            fixed=model.fixed * minibatches,
            ports=model.ports * (minibatches - 1),
        )
        return cls(works, latencies, crossing, minibatches)

    def limit(self, group: int | Index, first: int | Index, last: int | Index) -> Array:
        """Return the quantity that a stage limits."""
        works = self.works.seconds(group, first, last)
        return works if self.sequential else works - self.latencies.seconds(group, first, last)

    def limits(self, group: int) -> Array:
        works = self.works.every(group)
        return works if self.sequential else works - self.latencies.every(group)

    def first_weight(self, group: int) -> float:
        """Factor on the sum when this group is the first: sequentially, its replicas share the minibatches."""
        return float(self.works.groups.device_port[group]) if self.sequential else 1.0

    def total(self, added: float, limit: float) -> float:
        """The step time; sequentially the period."""
        return max(added, limit) if self.sequential else added + limit

    def period(self, path: Path) -> float:
        """Seconds per minibatch of a path."""
        return self.total(*sum_and_limit(self, path)) / self.minibatches


def sum_and_limit(model: SumModel, path: Path) -> tuple[float, float]:
    """(sum, largest limit) of a path."""
    between = list(zip(path, path[1:], strict=False))
    added = sum(float(model.latencies.seconds(*stage)) for stage in path)
    added += sum(float(model.crossing[model.works.link(a[0], b[0]), a[2]]) for a, b in between)
    limits = [float(model.limit(*stage)) for stage in path]
    limits += [model.works.boundary(a[0], b[0], a[2]) for a, b in between]
    return added * model.first_weight(path[0][0]), max(limits)


@dataclass(frozen=True, eq=False)
class LeastSum:
    """The least sum below a limit, by dense tables of every stage on every group."""

    model: SumModel
    moves: Moves
    follows: NDArray[np.bool_]  # [S, S]: whether a cut holds all of another and more
    memory: MemoryRule | None = None
    all_devices: bool = False  # none may stay unused

    @cached_property
    def _kept(self) -> list[tuple[Array, Array]]:
        return [self._tables(group) for group in range(len(self.model.works.groups))]

    def _tables(self, group: int) -> tuple[Array, Array]:
        """(what each stage on a group limits, what it adds), each [S, S]; a limit of inf if it is no stage."""
        return np.where(self.follows, self.model.limits(group), inf), self.model.latencies.every(group)

    @cached_property
    def _fits(self) -> NDArray[np.bool_]:
        """Return whether each stage fits into memory, [cases, S, S]."""
        assert self.memory is not None
        examples, cuts = self.memory.cases[0], np.arange(len(self.follows))
        need = self.memory.need(examples[:, None, None], cuts[None, :, None], cuts[None, None, :])
        return need <= self.memory.limit[examples][:, None, None]

    def _stage(self, move: int, seconds: float, kept: dict[tuple[int, int], Array]) -> Array:
        """[S, S]: what the stage of a move adds; inf if it is not below the limit or does not fit.

        `kept`: those at this limit by group, and by case of memory, if they are few enough.
        """
        group, case = int(self.moves.group[move]), 0 if self.memory is None else int(self.memory.cases[1][move])
        if (group, case) in kept:
            return kept[group, case]
        few = len(self.model.works.groups) * self.follows.size <= MOST_KEPT
        limit, added = self._kept[group] if few else self._tables(group)
        allowed = limit < seconds
        if self.memory is not None:
            allowed &= self._fits[case]
        stage_values = np.where(allowed, added, inf)
        if (len(kept) + 1) * stage_values.size <= MOST_KEPT // 2:
            kept[group, case] = stage_values
        return stage_values

    def below(self, seconds: float) -> tuple[Path, float, float] | None:
        """(path, its sum, its largest limit) of the least sum among plans with every limit below `seconds`."""
        works, moves = self.model.works, self.moves
        limit = Limit(works, seconds)
        kind, rows = limit.kinds
        sets, number = limit.sets
        network = len(works.ports) - 1
        links = np.where(
            (rows[:, None, 0] == rows[None, :, 0]), rows[:, None, 0], network
        )  # [sender kind, receiver kind]
        least = np.full((len(moves.used), len(rows), len(self.follows)), inf)
        least[0, :, -1] = 0.0
        best, last_move, kept_values = inf, -1, dict[tuple[int, int], Array]()
        for state in range(len(moves.used)):
            if not np.isfinite(least[state]).any():
                continue
            for move in moves.of_source(state).tolist():
                group, receiver = int(moves.group[move]), kind[moves.receiver[move]]
                reached = (least[state, kind[group]] + self._stage(move, seconds, kept_values)).min(axis=1)
                whole = float(reached[0] * self.model.first_weight(group))
                if self.all_devices and moves.used[moves.target[move]] != moves.used[-1]:
                    whole = inf
                if whole < best * (1 - _ROUNDING):  # the fewest devices among equals
                    best, last_move = whole, move
                for k in range(len(rows)):
                    crossed = np.where(
                        sets[number[k, receiver]], reached + self.model.crossing[links[k, receiver]], inf
                    )
                    target = least[moves.target[move], k]
                    np.minimum(target, crossed, out=target)
        if last_move < 0:
            return None
        path = self._walk(limit, least, last_move, seconds, kept_values)
        return path, *sum_and_limit(self.model, path)

    def _walk(self, limit: Limit, least: Array, move: int, seconds: float, kept: dict[tuple[int, int], Array]) -> Path:
        """The path behind the move that reached the start of the network, in pipeline order."""
        moves, (kind, rows) = self.moves, limit.kinds
        sets, number = limit.sets
        chosen, cuts = list[int](), [0]
        while True:
            sender = kind[moves.group[move]]
            last = int((least[moves.source[move], sender] + self._stage(move, seconds, kept)[cuts[-1]]).argmin())
            chosen.append(move)
            cuts.append(last)
            if moves.source[move] == 0:
                return list(zip(moves.groups(chosen), cuts, cuts[1:], strict=False))
            state, wanted = int(moves.source[move]), least[moves.source[move], sender, last]
            for into in np.flatnonzero(moves.target == state).tolist():
                receiver = kind[moves.receiver[into]]
                if not sets[number[sender, receiver], last]:
                    continue
                before = least[moves.source[into], kind[moves.group[into]]]
                reached = (before + self._stage(into, seconds, kept)[last]).min()
                link = rows[sender, 0] if rows[sender, 0] == rows[receiver, 0] else -1
                if reached + self.model.crossing[link, last] == wanted:
                    move = into
                    break


def minimise_step(model: StepModel, search: LeastSum, watch: Watch) -> float | None:
    """Return a proven lower bound of the step time, where `search` is by `model`; None if there is no plan.

    `watch` gets each path of a shorter step, and the bound that is proven by then.
    """
    total, order = model.total, count()
    step_path = search.below(inf)
    if step_path is None:
        return None
    path, least, limit = step_path
    best, shortest = total(least, limit), path
    watch(shortest, total(least, 0.0))
    # (bound of the best plan inside, order, lowest and highest limit inside, least sum that a plan inside can have)
    open_ = [(total(least, 0.0), next(order), 0.0, limit, least)]
    evaluations, size = 1, len(search.moves.source) * len(model.works.cuts) ** 2
    most = min(max(MIN_EVALUATIONS, BUDGET // size), MAX_EVALUATIONS)
    while open_ and open_[0][0] < best * (1 - 1e-12) and evaluations < most:
        _, _, low, high, least = heapq.heappop(open_)
        middle = (low + high) / 2
        middle = middle if low < middle < high and high - low > 1e-6 * high else high
        step_path = search.below(middle)
        evaluations += 1
        if middle < high:
            heapq.heappush(open_, (total(least, middle), next(order), middle, high, least))
        if step_path is not None:
            path, added, limit = step_path
            if total(added, limit) < best:
                best, shortest = total(added, limit), path
            if low < limit:
                heapq.heappush(open_, (total(added, low), next(order), low, limit, added))
        watch(shortest, min([best, *(entry[0] for entry in open_[:1])]))
    return min([best, *(entry[0] for entry in open_[:1])])
