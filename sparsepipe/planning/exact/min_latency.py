"""The plan for inference of least latency at a required pace: forwards alone, the least sum below a limit of time.

An input goes through every stage, on one of its replicas, and over every boundary: its latency is the sum of the
stages' forwards, each on the stage's slowest type, and of the transfers. The pace asks that no stage, with its shares,
and no busiest port of a boundary takes longer than the period. So the best plan is a shortest path over (devices used,
cut), as for schedules that flush with one limit (min_step_time.py). If cuts or devices are too many for that, those
that few bytes cross are searched too (frontier_cuts.py), and the sums of all bound the latency (latency_walks.py).

A lower bound of the latency of every plan at a pace, whatever its cuts: each layer's inputs spread over the types.

Let x[k, t] be the share of inputs for which layer k runs on type t. In one period the devices of a type do at most
count × period seconds of work, and the latency is at least the mean over inputs, Σ x[k, t] × seconds[t, k]. That is a
linear program. For any prices p ≥ 0 of a type's seconds

    Σ over layers of min over t of (1 + p[t]) × seconds[t, k]  −  period × Σ p[t] × count[t]

is at most its value, so the prices need not be exact: they are the program's own, and the sum here is the bound.
"""

from dataclasses import dataclass, replace
from math import inf, isinf, nextafter

import numpy as np

from ...errors import InputError
from ...values.costs import Array
from ...values.plan import Plan
from ..base import Problem
from ..cuts import Index
from ..estimate import forward_estimate
from .chain_search import Path
from .frontier_cuts import FrontierCuts, ListedCuts
from .graph_search import StageEnds, nothing_fits, over_sets
from .latency_walks import crossing_bytes, walk_latency_bound
from .min_period import minimise_period
from .min_step_time import LeastSum, sum_and_limit
from .network_time import least_period, network_spaces
from .relaxed_bound import is_close
from .search_space import Rules, Space, branching_space, fits, frontier_space, spaces
from .share_ratios import ShareRatios
from .stage_cost_tables import StageModel, crossings

_ROUNDS = 3  # of searches over the cheapest cuts
_ROUNDING = 1e-12  # of a pace that is the period of a plan, added up in another order


@dataclass(frozen=True, eq=False)
class LatencyModel:
    """Contributions of stages and boundaries to the latency; they limit the period."""

    works: StageModel
    latencies: StageModel
    crossing: Array  # [links, S]: a transfer forwards
    below: float  # the period asked for
    ratios: ShareRatios | None  # to choose among, whatever is chosen elsewhere; None: the groups' own

    @classmethod
    def of(cls, problem: Problem, model: StageModel, below: float, ratios: ShareRatios | None = None) -> "LatencyModel":
        """Derive it from the model of a problem that is `forward_only`."""
        groups, none = model.groups, np.zeros(len(model.groups))
        latencies = replace(model, rates=(groups.shares > 0).astype(float), weight_rates=none, fixed=none)
        crossing = np.stack(
            [link.latency + forward / link.bandwidth for link, forward, _ in crossings(problem, model.cuts, groups)]
        )
        return cls(ratios.easiest_ports() if ratios else model, latencies, crossing, below, ratios)

    def limit(self, group: int | Index, first: int | Index, last: int | Index) -> Array:
        return self.works.seconds(group, first, last)

    def limits(self, group: int) -> Array:
        return self.ratios.limits(group, self.below) if self.ratios else self.works.every(group)

    def first_weight(self, group: int) -> float:
        return 1.0


@dataclass(frozen=True, eq=False)
class _Found:
    """A path of a space, and its latency. `shares`: of each stage's types, if they are not its group's own."""

    space: Space
    path: Path
    latency: float
    shares: list[Index] | None = None


def least_latency(problem: Problem, period_at_most: float | None, planner: str) -> Plan:
    """Return the plan of least latency whose period, forwards alone, is at most `period_at_most` seconds.

    Its estimate is that of inference. Raises InputError if no plan keeps that pace, or none fits into memory.
    """
    if problem.recompute:
        raise InputError(
            "objective.no_recompute",
            "recompute applies only to training, because inference has no backward passes; omit it",
        )
    problem = replace(problem, forward_only=True)
    pace = inf if period_at_most is None else period_at_most
    below = nextafter(pace * (1 + _ROUNDING), inf)  # what is asked for is below it
    bound, best, first, refused, proven = latency_bound(problem, pace), None, None, "", False
    some = network_spaces if problem.cluster.sending_costs else spaces
    for space in some(problem, Rules()):
        if reason := _refusal(space):
            refused = reason
            continue
        first = first or space
        found, least = _search(problem, space, below)
        best = _better(best, found)
        if space.complete:
            bound, proven = max(bound, least), True
        if not proven and not _is_least(best, bound) and space is first:
            best, bound = _by_other_cuts(problem, first, below, best, bound)
        if proven or best and is_close(bound, best.latency):
            break
    if best is None:
        raise InputError(
            "planner.no_plan", _too_slow(first, pace) if first else refused or _TOO_LARGE, setting="period_at_most"
        )
    return _plan(problem, best, bound, planner)


_TOO_LARGE = "the network and the cluster are too large to plan; use fewer devices"


def _by_other_cuts(
    problem: Problem, searched: Space, below: float, best: _Found | None, bound: float
) -> tuple[_Found | None, float]:
    """(the best path, over cuts too that are not along an order; a bound), where not all was searched."""
    listed = None if searched.model.cuts.complete else ListedCuts.of(problem)
    if listed and (space := branching_space(problem, Rules(), searched, listed)):
        best = _better(best, _searched(problem, space, below))
    best = _over_frontier(problem, searched, below, best, bound)
    return best, walk_latency_bound(problem, listed, below, low=bound, high=best.latency if best else inf)


def _over_frontier(problem: Problem, searched: Space, below: float, best: _Found | None, bound: float) -> _Found | None:
    """The best path over cuts that few bytes cross, for each amount of work, then more of them near its own."""
    most_bytes = crossing_bytes(problem, below, best.latency - bound if best else inf)
    frontier, around = FrontierCuts.of(problem, most_bytes=most_bytes), list[float]()
    if not frontier:
        return best
    for _ in range(_ROUNDS):
        masks = best.space.masks(best.path) if best else ()
        space = frontier_space(problem, Rules(), searched, frontier, masks, around)
        better = _better(best, _searched(problem, space, below) if space else None)
        if better is None or better is best and around:
            break
        best, around = better, better.space.boundaries(better.path)
    return best


def _searched(problem: Problem, space: Space, below: float) -> _Found | None:
    """The best path of a space; None if none is below the limit, or none fits into memory."""
    return None if _refusal(space) else _search(problem, space, below)[0]


def _better(a: _Found | None, b: _Found | None) -> _Found | None:
    """The one of less latency, the first among equals."""
    return b if a is None or b is not None and b.latency < a.latency else a


def _is_least(found: _Found | None, bound: float) -> bool:
    return found is not None and found.latency <= bound * (1 + _ROUNDING)


def _refusal(space: Space) -> str:
    """Return why no plan of a space fits into memory; empty if one does."""
    if space.memory is None:
        return ""
    ends = StageEnds(space.model)
    fitting = over_sets(ends, space.moves, inf, memory=space.memory)
    return "" if fitting else nothing_fits(ends, space.moves, space.memory, False)


def _search(problem: Problem, space: Space, below: float) -> tuple[_Found | None, float]:
    """(the path of least latency whose period is below a limit, None without one; a bound of all paths of a space)."""
    ratios = ShareRatios.of(space.model)
    easiest = _below(problem, space, below, ratios)
    if easiest is None or ratios is None:
        return easiest, easiest.latency if easiest and len(space.model.groups.types) == 1 else 0.0
    if shares := ratios.fitting(easiest.path, below):
        return replace(easiest, shares=shares), easiest.latency
    if wider := _with_every_ratio(problem, space, ratios):
        found = _below(problem, wider, below)
        return found, found.latency if found else inf
    return _below(problem, space, below), easiest.latency


def _with_every_ratio(problem: Problem, space: Space, ratios: ShareRatios) -> Space | None:
    """The space with each group once for every ratio; None if that is too much to search."""
    model, moves = space.model, space.moves
    like = ratios.group[len(model.groups) :]
    num_moves = len(moves.source) + int(np.bincount(moves.group)[like].sum())
    if not fits(problem, Rules(), model.cuts, num_moves):
        return None
    wider = moves.doubled(like, len(model.groups))
    return Space.of(problem, Rules(), model.cuts, ratios.rows, wider, complete=space.complete)


def _below(problem: Problem, space: Space, limit: float, ratios: ShareRatios | None = None) -> _Found | None:
    """The path of least latency whose period is below a limit; with `ratios` it may have none for all that it does."""
    model = LatencyModel.of(problem, space.model, limit, ratios)
    least_sums = LeastSum(model, space.moves, space.model.cuts.follows, space.memory).below(limit)
    return _Found(space, least_sums[0], sum_and_limit(model, least_sums[0])[0]) if least_sums else None


def _too_slow(space: Space, pace: float) -> str:
    if space.model.network is None:
        paths = minimise_period(StageEnds(space.model), space.moves, memory=space.memory)
    else:
        paths = least_period(space)
    shortest = min(space.model.period(path) for path in paths)
    return (
        f"no plan has a forward period of {pace * 1e3:g} ms or less: the shortest is {shortest * 1e3:.6g} ms on "
        f"these devices; raise {{period_at_most}}, or use more devices"
    )


def _plan(problem: Problem, found: _Found, bound: float, planner: str) -> Plan:
    groups, taken, stages = found.space.model.groups, set[int](), []
    for stage_index, (group, first, last) in enumerate(found.path):
        ranks, shares = groups.ranks(group, taken)
        if found.shares:
            kinds = [problem.cluster.devices[rank].type.name for rank in ranks]
            shares = [int(found.shares[stage_index][groups.types.index(kind)]) for kind in kinds]
        taken.update(ranks)
        stages.append(problem.stage(found.space.model.cuts.between(first, last), ranks, shares))
    total = len(problem.cluster.devices)
    unused = f"{total - len(taken)} of {total} devices stay unused: they do not reduce the latency"
    plan = problem.plan(stages, planner, [unused] if len(taken) < total else [])
    expected = forward_estimate(plan, problem)
    assert expected.latency_seconds is not None
    proven = bound >= expected.latency_seconds * (1 - 1e-9)
    lower = expected.latency_seconds if proven else bound
    return replace(plan, estimate=replace(expected, latency_lower_bound_seconds=lower))


def latency_bound(problem: Problem, pace: float) -> float:
    """Return a bound for plans of period `pace` at most; infinity for one that no plan can keep is not looked for."""
    kinds = tuple(dict.fromkeys(device.type.name for device in problem.cluster.devices))
    seconds = np.stack([problem.table.forward[kind][list(problem.layers), 0] for kind in kinds])
    counts = np.array([sum(device.type.name == kind for device in problem.cluster.devices) for kind in kinds])
    prices = np.zeros(len(kinds)) if isinf(pace) else _prices(seconds, counts, pace)
    bounds = [_value(seconds, counts, pace, p) for p in (np.zeros(len(kinds)), prices)]
    return max(bounds)


def _value(seconds: Array, counts: Array, pace: float, prices: Array) -> float:
    paid = float(pace * (prices @ counts)) if prices.any() else 0.0
    return float(((1 + prices)[:, None] * seconds).min(axis=0).sum()) - paid


def _prices(seconds: Array, counts: Array, pace: float) -> Array:
    """The prices of the linear program; none if it has no answer."""
    from scipy.optimize import linprog  # here, as few plans ask for it

    num_types, num_layers = seconds.shape
    work = np.zeros((num_types, num_types * num_layers))
    whole = np.zeros((num_layers, num_types * num_layers))
    for t in range(num_types):
        column_slice = slice(t * num_layers, (t + 1) * num_layers)
        work[t, column_slice] = seconds[t]
        whole[:, column_slice] = np.eye(num_layers)
    answer = linprog(
        seconds.ravel(), A_ub=work, b_ub=pace * counts, A_eq=whole, b_eq=np.ones(num_layers), method="highs"
    )
    if answer.status != 0:
        return np.zeros(num_types)
    return np.maximum(-answer.ineqlin.marginals, 0.0)
