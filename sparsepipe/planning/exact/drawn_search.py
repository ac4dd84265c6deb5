"""The best plan of each of many draws of the costs, searched for all draws at once.

A dynamic program over all plans of a small asynchronous problem. A state has three parts: the devices of each class
that later stages use, the kind of the group that receives, and the cut at which it begins. The kind is the group's
node, and the share of the traffic on its busiest port. The value of a state is the least period of the later stages,
for each draw. A move puts one more group in front:

    value(state + group, a) = min over cuts b of max(seconds of the group from a to b, boundary at b, value(state, b))

Numbers are only compared, so the answer is that of chain_search.py. The stages' seconds are tables [cuts, cuts, draws],
which need not be sums over layers: with quantiles over the draws, the least period bounds the quantile of every plan,
because the quantile of a maximum is no less than the maximum of quantiles.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...values.costs import Array
from ...values.plan import Plan
from ..base import Problem
from ..cost_draws import CostDraws
from ..cuts import Cuts, Index
from ..device_groups import DeviceGroups, shares_by_speed
from .chain_search import Moves, Path
from .improvement import deepened
from .memory_limits import memory_rule
from .optimal import Optimal
from .search_space import every_move, unlimited
from .stage_cost_tables import StageModel, default_model

_PLANS = 48  # draws whose best plans are candidates of robust plans
_MOST_CUTS = 250
_MOST_MOVES = 20_000
_BUDGET = 1e9  # numbers that are compared before any is left out: a few seconds
_TOGETHER = 200_000  # numbers of a stage table that stay in the processor's cache
_BLOCK = 2_000_000  # numbers of all draws that are there at once
_ROUNDING = 1e-9  # of periods
Reduce = Callable[[Array], Array]  # over the last axis, of draws: [..., draws] → [..., columns]


@dataclass(frozen=True, eq=False)
class DrawnSearch:
    """The plans of a problem that are few enough to search for each draw of its costs."""

    draws: CostDraws
    model: StageModel  # by the profile's costs
    moves: Moves
    cases: Index  # [moves]: of memory
    impossible: NDArray[np.bool_]  # [cases, S, S]: no stage, or too large for memory

    @classmethod
    def of(cls, draws: CostDraws) -> "DrawnSearch | None":
        """Return None for problems with another objective than the slowest stage, and for those that are too large."""
        problem = draws.problem
        if problem.synchronous or problem.rules.one_minibatch_at_a_time or problem.forward_only:
            return None
        if problem.cluster.sending_costs or problem.table.is_read_again:
            return None
        cuts = Cuts.of(problem.table, problem.layers, limit=_MOST_CUTS)
        known = every_move(problem, _MOST_MOVES)
        if known is None or not cuts.complete or len(cuts) > _MOST_CUTS:
            return None
        groups, moves = known
        model = default_model(problem, cuts, groups)
        search = cls(draws, model, moves, *_impossible(problem, model, moves))
        return search if search._size <= _BUDGET else None

    @property
    def _size(self) -> float:
        cuts, states, kinds = len(self.model.cuts), len(self.moves.used), len(_kinds_of(self.model, self._ports)[1])
        return float(len(self.moves.source) * cuts + states * kinds**2) * cuts * self.draws.count

    @cached_property
    def _ports(self) -> Array:
        """Seconds of each link at each cut in each draw, [links, S, D]."""
        problem, cuts = self.draws.problem, self.model.cuts
        links = [*((node.link, False) for node in self.model.groups.nodes), (problem.cluster.network, True)]
        busiest = [np.maximum(*cuts.payloads(self.draws.table, between_hosts=between)) for _, between in links]
        return np.stack([link.latency + size / link.bandwidth for (link, _), size in zip(links, busiest, strict=True)])

    @cached_property
    def _seconds(self) -> Array:
        """Seconds of each layer on each type, forward and backward: [types, draws, layers]."""
        table = self.draws.table
        forwards = 2 if self.draws.problem.recompute else 1
        seconds = [forwards * table.forward[name] + table.backward[name] for name in self.model.groups.types]
        return np.moveaxis(np.stack(seconds), 1, 2)

    @cached_property
    def _times(self) -> Array:
        """Seconds of the layers before each cut, [types, S, draws]."""
        return np.ascontiguousarray(np.moveaxis(self.model.cuts.total(self._seconds), 1, 2))

    def best_in_parts(self, at_most: Array, *, paths: int = 0) -> Iterator[tuple[Index, Array, list[Path]]]:
        """Yield some of the draws at a time: (which, the least period in each, the plans of the first `paths` draws).

        `at_most`: periods of some plan, [draws]; slower plans are left out. In each draw devices of mixed types share
        by their speeds in it, as the planner shares by a profile of it.
        """
        for model, chosen in self._models():
            together = max(1, _TOGETHER // len(model.cuts) ** 2)
            for some in np.split(chosen, range(together, len(chosen), together)):
                stages = _StageTables(model, self._times[:, :, some], self.impossible, at_most[some])
                least, more = _least(
                    stages, self.moves, self.cases, self._ports[:, :, some], np.flatnonzero(some < paths)
                )
                yield some, np.minimum(at_most[some], least), more

    def least_quantiles(self, quantiles: Reduce, at_most: Array) -> tuple[Array, list[Path]]:
        """Return bounds of these quantiles of every plan's periods, and the plans whose single stages reach them.

        `quantiles`: over the last axis, [..., levels]; `at_most`: those of the periods of some plan, [levels]. Shares
        are those by the profile's speeds.
        """
        stages = _StageTables(self.model, self._times, self.impossible, at_most, quantiles)
        values, paths = _least(stages, self.moves, self.cases, quantiles(self._ports), np.arange(len(at_most)))
        return np.minimum(values, at_most), paths

    def plan(self, path: Path) -> Plan:
        """Return the plan of a path, without an estimate."""
        problem, groups, taken, stages = self.draws.problem, self.model.groups, set[int](), []
        for group, first, last in path:
            ranks, shares = groups.ranks(group, taken)
            taken.update(ranks)
            stages.append(problem.stage(self.model.cuts.between(first, last), ranks, shares))
        return deepened(problem.plan(stages, "optimal"), problem)

    def _models(self) -> list[tuple[StageModel, Index]]:
        """The cost models with the shares of some draws, and these draws."""
        groups = self.model.groups
        if len(groups.types) == 1:
            return [(self.model, np.arange(self.draws.count))]
        table, by_shares = self.draws.table, dict[bytes, tuple[DeviceGroups, list[int]]]()
        totals = np.stack([table.seconds[name].sum(axis=0) for name in groups.types], axis=1)
        for draw, speeds in enumerate(totals):
            shares = shares_by_speed(groups.of_type, speeds)
            by_shares.setdefault(shares.tobytes(), (replace(groups, shares=shares), []))[1].append(draw)
        problem, cuts = self.draws.problem, self.model.cuts
        return [(default_model(problem, cuts, sharing), np.array(chosen)) for sharing, chosen in by_shares.values()]


@dataclass(frozen=True, eq=False)
class _StageTables:
    """Seconds of the stages of groups, by draw, or by what is made of all draws."""

    model: StageModel
    times: Array  # [types, S, draws]
    impossible: NDArray[np.bool_]  # [cases, S, S]: no stage, or too large for memory
    at_most: Array  # [columns]: slower stages are left out
    reduce: Reduce | None = None  # of seconds in each draw [stages, draws] → [stages, columns]
    known: dict[tuple[int, int], tuple[Index, Index, Array]] = field(default_factory=dict)

    def of(self, group: int, case: int) -> tuple[Index, Index, Array]:
        """(first cuts, last cuts, seconds [stages, columns]) of stages that may be in a plan, by their first cut."""
        if (group, case) not in self.known:
            every = np.nonzero(~self.impossible[case])
            blocks = -(-len(every[0]) * self.times.shape[-1] // _BLOCK)
            pairs = zip(*(np.array_split(ends, max(blocks, 1)) for ends in every), strict=True)
            parts = [self._fast(group, first, last) for first, last in pairs]
            firsts, lasts, tables = zip(*parts, strict=True)
            self.known[group, case] = np.concatenate(firsts), np.concatenate(lasts), np.concatenate(tables)
        return self.known[group, case]

    def _fast(self, group: int, first: Index, last: Index) -> tuple[Index, Index, Array]:
        """The stages that are no slower than some plan."""
        model = self.model
        fixed = model.weight_rates[group] * (model.weights[last] - model.weights[first]) + model.fixed[group]
        spans = [
            rate * (times[last] - times[first])
            for rate, times in zip(model.rates[group], self.times, strict=True)
            if rate
        ]
        seconds: Array = np.maximum.reduce(spans) + fixed[:, None]
        if self.reduce is not None:
            near = seconds.min(axis=1) <= self.at_most.max() * (1 + _ROUNDING)
            first, last, seconds = first[near], last[near], self.reduce(seconds[near])
        near = (seconds <= self.at_most * (1 + _ROUNDING)).any(axis=1)
        return first[near], last[near], seconds[near]


def _least(stages: _StageTables, moves: Moves, cases: Index, ports: Array, wanted: Index) -> tuple[Array, list[Path]]:
    """(the least period of each column, inf if it is more than `at_most`; the path of each `wanted` column)."""
    model = stages.model
    kind, example = _kinds_of(model, ports)
    links, shares = _boundaries(model, example)
    cuts, count = len(model.cuts), ports.shape[-1]
    crossing = [[ports[links[a, b]] * shares[a, b] for b in range(len(example))] for a in range(len(example))]
    nothing = np.full((cuts, count), np.inf)
    ended = nothing.copy()
    ended[-1] = 0.0
    limits = stages.at_most * (1 + _ROUNDING)
    reached: dict[tuple[int, int], Array] = {}  # (state, kind of the group in front) → [S, columns]
    ahead: dict[tuple[int, int], Array] = {}  # (state, kind of the next group) → [S, columns]
    for state in np.argsort(moves.used, kind="stable").tolist():
        for move in moves.of_source(state).tolist():
            group, front = int(moves.group[move]), (int(moves.target[move]), int(kind[moves.group[move]]))
            if (later := (state, front[1])) not in ahead:
                receivers = [k for k in range(len(example)) if (state, k) in reached]
                through = [np.maximum(reached[state, k], crossing[front[1]][k]) for k in receivers]
                ahead[later] = np.minimum.reduce(through) if through else nothing if state else ended
            first, last, seconds = stages.of(group, int(cases[move]))
            worthwhile: NDArray[np.bool_] = np.any(ahead[later] <= limits, axis=1)
            chosen = np.flatnonzero(worthwhile[last])
            if not len(chosen):
                continue
            values = np.maximum(seconds[chosen], ahead[later][last[chosen]])
            starts = np.flatnonzero(np.diff(first[chosen], prepend=-1))
            before = reached.setdefault(front, nothing.copy())
            rows = first[chosen][starts]
            before[rows] = np.minimum(before[rows], np.minimum.reduceat(values, starts, axis=0))
    firsts = {front: values[0] for front, values in reached.items()}
    best = np.minimum.reduce([np.full(count, np.inf), *firsts.values()])
    paths = []
    for column in wanted[best[wanted] <= limits[wanted]].tolist():
        front, path, cut = next(front for front, values in firsts.items() if values[column] == best[column]), [], 0
        while front[0]:
            value = reached[front][cut, column]
            for move in np.flatnonzero((moves.target == front[0]) & (kind[moves.group] == front[1])).tolist():
                source, group = int(moves.source[move]), int(moves.group[move])
                first, last, seconds = stages.of(group, int(cases[move]))
                rows_of_cut = slice(*np.searchsorted(first, [cut, cut + 1]))
                later_values = ahead[source, front[1]][last[rows_of_cut], column]
                if len(same := np.flatnonzero(np.maximum(seconds[rows_of_cut, column], later_values) == value)):
                    break
            end = int(last[rows_of_cut][same[0]])
            path.append((group, cut, end))
            receivers = [k for k in range(len(example)) if (source, k) in reached]
            through = [max(reached[source, k][end, column], crossing[front[1]][k][end, column]) for k in receivers]
            front, cut = (source, receivers[int(np.argmin(through))] if through else 0), end
        paths.append(path)
    return best, paths


def _kinds_of(model: StageModel, ports: Array) -> tuple[Index, Index]:
    """(kind of each group, a group of each kind): groups of a kind share links and ports."""
    if not ports.any():
        return np.zeros(len(model.groups), dtype=np.intp), np.zeros(1, dtype=np.intp)
    columns = np.stack([model.groups.placement, model.device_port, model.network_port])
    _, example, kind = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    return kind.ravel(), example


def _boundaries(model: StageModel, groups: Index) -> tuple[Index, Array]:
    """(link between each two of some groups, share of all minibatches that the busier of both ports carries)."""
    network, placement = len(model.ports) - 1, model.groups.placement[groups]
    links = np.where(placement[:, None] == placement, placement, network)
    device, of_node = (
        np.maximum(port[groups][:, None], port[groups]) for port in (model.device_port, model.network_port)
    )
    return links, np.where(links == network, of_node, device)


def _impossible(problem: Problem, model: StageModel, moves: Moves) -> tuple[Index, NDArray[np.bool_]]:
    """(case of each move, [cases, S, S]: whether one cut does not hold another, or memory is too small)."""
    none = ~model.cuts.follows
    if all(kind.memory_bytes == np.inf for kind in problem.cluster.device_types):
        return np.zeros(len(moves.source), dtype=np.intp), none[None]
    rule = memory_rule(problem, model, moves)
    example, case = rule.cases
    first, last = np.nonzero(model.cuts.follows)
    tables = np.repeat(none[None], len(example), axis=0)
    for k, move in enumerate(example.tolist()):
        tables[k, first, last] = rule.need(move, first, last) > rule.limit[move]
    return case, tables


def best_plans_in_parts(draws: CostDraws) -> Iterator[tuple[Index, Array, bool, list[Plan]]]:
    """Yield some draws at a time: (which, least period of any plan in each, whether these are exact, best plans)."""
    if search := DrawnSearch.of(draws):
        at_most = draws.periods(Optimal(quick=True, segments=False).plan(draws.problem))
        for some, least, paths in search.best_in_parts(at_most, paths=_PLANS):
            plans = {tuple(path): search.plan(path) for path in paths}
            yield some, least, True, [plans[tuple(path)] for path in paths]
        return
    for k in range(draws.count):
        problem, plans_of_draw, fits = replace(draws.problem, profile=draws.profile(k)), list[Plan](), True
        try:
            plan = Optimal(quick=True, segments=False).plan(problem)
            plans_of_draw += [plan] if k < _PLANS else []
        except InputError:  # large minibatches of this draw do not fit into memory: a bound without limits
            plan, fits = (
                Optimal(quick=True, segments=False).plan(replace(problem, cluster=unlimited(problem.cluster))),
                False,
            )
        assert plan.estimate is not None
        bound = plan.estimate.lower_bound_seconds or 0.0
        yield np.array([k]), np.array([bound]), fits and bound == plan.estimate.period_seconds, plans_of_draw
