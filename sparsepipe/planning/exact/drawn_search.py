"""The best plan of each of many draws of the costs, searched for all draws at once.

A dynamic program over all plans of a small asynchronous problem. A state is what later stages use of each device class,
the kind of the group that receives (where it sits, and what share of the traffic its busiest port carries) and the cut
where it begins; its value is the least period of the later stages, for each draw. A move puts one more group in front:

    value(state + group, a) = min over cuts b of max(seconds of the group from a to b, boundary at b, value(state, b))

Numbers are only compared, so the answer is that of chain_search.py. The stages' seconds are tables [cuts, cuts, draws],
which need not be sums over layers: with quantiles over the draws, the least period bounds the quantile of every plan,
because the quantile of a maximum is no less than the maximum of quantiles.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...values.costs import Array
from ...values.plan import Plan
from ..base import Problem
from ..cost_draws import CostDraws
from ..cuts import Cuts, Index
from ..device_groups import DeviceGroups, shares_by_speed
from .chain_search import Moves, Path
from .improvement import deepened
from .memory_limits import memory_rule
from .search_space import every_move
from .stage_cost_tables import StageModel, default_model

_MOST_CUTS = 250
_MOST_MOVES = 20_000
_BUDGET = 1e9  # numbers that are compared: a few seconds
_TOGETHER = 100_000  # numbers of a stage table that stay in the processor's cache
Tables = Callable[[int], Array]  # of a group: seconds from each cut to each cut in each draw, [S, S, D]


@dataclass(frozen=True, eq=False)
class DrawnSearch:
    """The plans of a problem that are few enough to search for each draw of its costs."""

    draws: CostDraws
    model: StageModel  # by the profile's costs
    moves: Moves
    impossible: tuple[Index, Array]  # (case of each move, [cases, S, S]: inf where no stage is or fits into memory)

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
        search = cls(draws, default_model(problem, cuts, groups), moves, _impossible(problem, cuts, groups, moves))
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

    def best(self, *, paths: int = 0) -> tuple[Array, list[Path]]:
        """Return the least period in each draw, [draws], and the plans of the first `paths` draws.

        In each draw devices of mixed types share by their speeds in it, as the planner shares by a profile of it.
        """
        values, found = np.empty(self.draws.count), list[Path]()
        for model, chosen in self._models():
            together = max(1, _TOGETHER // len(model.cuts) ** 2)
            for some in np.split(chosen, range(together, len(chosen), together)):
                wanted = np.flatnonzero(some < paths)
                tables = _tables(model, self._times[:, :, some])
                values[some], own = self._least(model, tables, self._ports[:, :, some], wanted)
                found += own
        return values, found

    def least_quantile(self, quantile: Callable[[Array], Array]) -> tuple[float, Path]:
        """Return a bound of this quantile of every plan's periods, and the plan that reaches it in each single stage.

        `quantile`: over the last axis. Shares are those by the profile's speeds.
        """
        tables, ports = _tables(self.model, self._times), quantile(self._ports)[..., None]
        values, paths = self._least(self.model, lambda group: quantile(tables(group))[..., None], ports, np.arange(1))
        return float(values[0]), paths[0]

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
        return [(default_model(problem, cuts, one), np.array(chosen)) for one, chosen in by_shares.values()]

    def _least(self, model: StageModel, tables: Tables, ports: Array, wanted: Index) -> tuple[Array, list[Path]]:
        """(the least period in each draw, the path of each `wanted` draw)."""
        kind, example = _kinds_of(model, ports)
        cases, impossible = self.impossible
        moves, (links, shares) = self.moves, _boundaries(model, example)
        cuts, count = len(model.cuts), ports.shape[-1]
        crossing = [[ports[links[a, b]] * shares[a, b] for b in range(len(example))] for a in range(len(example))]
        nothing = np.full((cuts, count), np.inf)
        ended = nothing.copy()
        ended[-1] = 0.0
        reached: dict[tuple[int, int], Array] = {}  # (state, kind of the group in front) → [S, D]
        ahead: dict[tuple[int, int], Array] = {}  # (state, kind of the next group) → [S, D]
        known: dict[tuple[int, int], Array] = {}

        def stage(group: int, case: int) -> Array:
            if (group, case) not in known:
                known[group, case] = tables(group) + impossible[case][..., None]
            return known[group, case]

        for state in np.argsort(moves.used, kind="stable").tolist():
            for move in moves.of_source(state).tolist():
                group, target = int(moves.group[move]), int(moves.target[move])
                sender = int(kind[group])
                if (state, sender) not in ahead:
                    receivers = [k for k in range(len(example)) if (state, k) in reached]
                    through = [np.maximum(reached[state, k], crossing[sender][k]) for k in receivers]
                    ahead[state, sender] = np.minimum.reduce(through) if through else ended if not state else nothing
                value = np.maximum(stage(group, int(cases[move])), ahead[state, sender]).min(axis=1)
                before = reached.get((target, sender))
                reached[target, sender] = value if before is None else np.minimum(before, value)
        firsts = {place: values[0] for place, values in reached.items()}
        best = np.minimum.reduce(list(firsts.values()))
        paths = []
        for draw in wanted.tolist():
            place = next(place for place, values in firsts.items() if values[draw] == best[draw])
            path, cut = list[tuple[int, int, int]](), 0
            while place[0]:
                value, (state, sender) = reached[place][cut, draw], place
                for move in np.flatnonzero((moves.target == state) & (kind[moves.group] == sender)).tolist():
                    source, group = int(moves.source[move]), int(moves.group[move])
                    later = ahead[source, sender][:, draw]
                    places = np.flatnonzero(np.maximum(stage(group, int(cases[move]))[cut, :, draw], later) == value)
                    if len(places):
                        break
                last = int(places[0])
                path.append((group, cut, last))
                receivers = [k for k in range(len(example)) if (source, k) in reached]
                place = (source, 0)
                for k in receivers:
                    if max(reached[source, k][last, draw], crossing[sender][k][last, draw]) == later[last]:
                        place = (source, k)
                cut = last
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


def _tables(model: StageModel, times: Array) -> Tables:
    """Seconds of stages where the layers before each cut take `times` [types, S, D]."""

    def of(group: int) -> Array:
        spans = [rate * (own[None] - own[:, None]) for rate, own in zip(model.rates[group], times, strict=True) if rate]
        weights = model.weight_rates[group] * (model.weights[None] - model.weights[:, None]) + model.fixed[group]
        seconds: Array = np.maximum.reduce(spans) + weights[..., None]
        return seconds

    return of


def _impossible(problem: Problem, cuts: Cuts, groups: DeviceGroups, moves: Moves) -> tuple[Index, Array]:
    """(case of each move, [cases, S, S]: inf where one cut does not hold another, or memory is too small; else 0)."""
    none = np.where(cuts.follows, 0.0, np.inf)
    if all(kind.memory_bytes == np.inf for kind in problem.cluster.device_types):
        return np.zeros(len(moves.source), dtype=np.intp), none[None]
    rule = memory_rule(problem, default_model(problem, cuts, groups), moves)
    example, case = rule.cases
    first, last = np.nonzero(cuts.follows)
    tables = np.repeat(none[None], len(example), axis=0)
    for k, move in enumerate(example.tolist()):
        tables[k, first, last] = np.where(rule.need(move, first, last) > rule.limit[move], np.inf, 0.0)
    return case, tables
