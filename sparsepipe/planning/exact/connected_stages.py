"""What a type of device can do of a branching network in one stage: no layers that it is good at without those between.

A stage is what is between two cuts of which one holds the other. What a device of type t does of the network in a
period is then at most, measured in seconds of another type, the reference,

    most of Σ reference seconds of the layers between D₁ and D₂,    D₁ ⊂ D₂ cuts, Σ of their seconds on t ≤ period

and not what it could do of single layers. At any price λ of a second on t that is λ × period + h(λ) at most, where h(λ)
is the most of reference seconds − λ × seconds on t between any two such cuts: a maximal closure of the graph with each
layer twice, once for either cut. The price at which the best stage takes about the period proves the most.

The most that layers are worth together where each brings along what it needs: a minimum cut.

Picard, "Maximal closure of a graph and applications to combinatorial problems", 1976: what is worth more than nothing
is fed by the source, what costs feeds the sink, and no flow limits what a layer needs.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, prod

import numpy as np
from numpy.typing import NDArray

from ...values.costs import Array
from ..base import Problem
from ..cuts import Cuts, least_payload_order
from ..device_groups import DeviceGroups, device_classes
from .chain_search import Moves, Path, all_moves, along_chain
from .frontier_cuts import layer_seconds
from .halving import largest_refused
from .narrow_cut_bound import classes_of_cuts
from .order_search import order_of
from .search_space import Rules, Space, every_move, merged, order_space
from .stage_cost_tables import StageModel, default_model

_ENOUGH = 1 << 30  # more than all that can flow: sums of it and of what flows are below 2³¹

_PRICES = 4  # that are tried for each class of cuts and type
_ALIKE = 1e-9  # of ratios
_WORTH = 0.5  # of the budget, that a stage which is kept takes at least

Layers = NDArray[np.bool_]  # [L], by their places among those of a problem
Line = tuple[float, float]  # a price λ and h(λ): of a budget of seconds λ × budget + h(λ) may be done


@dataclass(frozen=True, eq=False)
class Connected:
    """Layers that a type is good at, and what must be before them."""

    kind: int  # of type
    before: Layers
    layers: Layers
    spared: float  # seconds on the type, as against layers of which it is as good as on average


@dataclass(frozen=True, eq=False)
class ConnectedStages:
    """Of each type what bounds its stages, and the best of them; where they begin is identified by classes of cuts."""

    first: Array  # [K]: reference seconds before cuts of each class, at least
    last: Array  # [K]: at most
    whole: float
    ratio: Array  # [T]: the least of a layer's seconds on each type to the reference's
    anywhere: list[list[Line]]  # of each type
    alone: list[list[list[Line]]]  # of each type and class, of stages that take at most `budget` seconds
    budget: float
    best: list[Connected]  # what spares the most comes first

    @classmethod
    def of(cls, problem: Problem, budget: float, until: float) -> "ConnectedStages":
        """`budget`: the longest period in question. What is not known at `until` of the processor is left out."""
        counts: dict[str, int] = {}
        for device in problem.cluster.devices:
            counts[device.type.name] = counts.get(device.type.name, 0) + 1
        seconds = np.stack([layer_seconds(problem, problem.layers, kind) for kind in counts])
        able = np.array([*counts.values()]) / np.maximum(seconds.sum(axis=1), 1e-300)
        graph = _Twice.of(problem, seconds[able.argmax()])
        works = graph.work > 0
        ratios = (
            [class_seconds[works] / graph.work[works] for class_seconds in seconds]
            if works.any()
            else [np.ones(1) for _ in counts]
        )
        anywhere, best = [list[Line]() for _ in counts], list[Connected]()
        alone = [[list[Line]() for _ in graph.before] for _ in counts]
        for kind, (class_seconds, count) in enumerate(zip(seconds, counts.values(), strict=True)):
            if np.ptp(ratios[kind]) <= _ALIKE * ratios[kind].max():
                continue  # no layer is better on it than another
            mean = float(class_seconds.sum() / graph.work.sum())
            price = 1 / mean
            for several in range(1, count + 1):
                anywhere[kind] += [line for line, _, _ in graph.lines(class_seconds, several * budget, price)]
            for start, lines in enumerate(alone[kind]):
                if time.process_time() > until:
                    break
                connected: Connected | None = None
                for line, before, layers in graph.lines(class_seconds, budget, price, start, budget):
                    lines.append(line)
                    taken, spared = (
                        float(class_seconds[layers].sum()),
                        float((mean * graph.work - class_seconds)[layers].sum()),
                    )
                    if _WORTH * budget < taken <= budget and (connected is None or spared > connected.spared):
                        connected = Connected(kind, before, layers, spared)
                price = min(lines, key=lambda line: line[0] * budget + line[1])[0]
                best += [connected] if connected else []
        best.sort(key=lambda one: -one.spared)
        first, last = graph.before @ graph.work, graph.work.sum() - graph.after @ graph.work
        least = np.array([one.min() for one in ratios])
        return cls(first, last, float(graph.work.sum()), least, anywhere, alone, budget, best)

    def done(self, kind: int, seconds: Array) -> Array:
        """The most that stages of so many seconds on a type do where they begin at each class, [N, K]."""
        anywhere = seconds / max(float(self.ratio[kind]), 1e-300)
        for price, more in self.anywhere[kind]:
            anywhere = np.minimum(anywhere, price * seconds + more)
        repeated = np.repeat(anywhere[:, None], len(self.first), axis=1)
        within = seconds <= self.budget
        for start, lines in enumerate(self.alone[kind]):
            for price, more in lines:
                repeated[within, start] = np.minimum(repeated[within, start], price * seconds[within] + more)
        return repeated


@dataclass(frozen=True, eq=False)
class _Twice:
    """The graph with each layer twice: whether it is before the cut where a stage begins, and where it ends."""

    edges: NDArray[np.intp]  # [E, 2]: (input, consumer)
    needs: NDArray[np.bool_]  # [L, L]: of each layer what must run before it, and itself
    before: NDArray[np.bool_]  # [K, L]: layers before all cuts of each class
    after: NDArray[np.bool_]  # [K, L]
    work: Array  # [L]: reference seconds

    @classmethod
    def of(cls, problem: Problem, work: Array) -> "_Twice":
        return cls(*classes_of_cuts(problem), work)

    def most(
        self, seconds: Array, price: float, start: int | None = None, budget: float = inf
    ) -> tuple[float, Layers, Layers]:
        """(the most of reference seconds − price × seconds of a stage, what is before one that has it, its layers).

        `start`: of those that begin at a cut of this class and take at most `budget` seconds.
        """
        count = len(self.work)
        held, barred, far = (np.zeros(count, dtype=bool) for _ in range(3))
        if start is not None:
            held, barred = self.before[start], self.after[start]
            far = barred & ((self.needs & barred) @ seconds > budget)
        free = np.concatenate([~held & ~barred, ~held & ~far])  # of the first cut, and of the last
        number = np.where(free, np.cumsum(free) - 1, -1)
        each = np.arange(count)
        pairs = number[np.concatenate([self.edges, self.edges + count, np.stack([each + count, each], axis=1)])]
        worth = self.work - price * seconds
        value, chosen = maximal_closure(np.concatenate([-worth, worth])[free], pairs[(pairs >= 0).all(axis=1)])
        inside = np.concatenate([held, held])
        inside[free] = chosen
        return value, inside[:count], inside[count:] & ~inside[:count]

    def lines(
        self, seconds: Array, budget: float, price: float, start: int | None = None, most: float = inf
    ) -> Iterator[tuple[Line, Layers, Layers]]:
        """Prices from `price` on at which ever less may be done in a budget of seconds, each with `most` of it."""
        long, short = (float(seconds.sum()), float(self.work.sum())), (0.0, 0.0)
        for _ in range(_PRICES):
            value, before, layers = self.most(seconds, price, start, most)
            yield (price, value), before, layers
            taken, done = float(seconds[layers].sum()), float(self.work[layers].sum())
            if taken > budget:
                long = taken, done
            else:
                short = taken, done
            following = (long[1] - short[1]) / max(long[0] - short[0], 1e-300)
            if following <= 0 or abs(following - price) <= _ALIKE * price:
                return
            price = following


def maximal_closure(worth: Array, needs: NDArray[np.intp]) -> tuple[float, NDArray[np.bool_]]:
    """Return (the most that any closure is worth, the members of one that is worth about that, [N]).

    `needs` has a row (needed, by whom) for each pair, [E, 2]. Each worth is rounded up, to a share of all that is
    smaller than any that matters, so that the first answer is never too small.
    """
    from scipy.sparse import coo_array  # here, as few plans ask for it
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    count = len(worth)
    unit = max(float(np.abs(worth).sum()), 1e-300) / (_ENOUGH // 4)
    units = np.ceil(worth / unit).astype(np.int64)
    source, sink = count, count + 1
    gives, costs = np.flatnonzero(units > 0), np.flatnonzero(units < 0)
    tails = np.concatenate([np.full(len(gives), source), costs, needs[:, 1]])
    heads = np.concatenate([gives, np.full(len(costs), sink), needs[:, 0]])
    capacity = np.concatenate([units[gives], -units[costs], np.full(len(needs), _ENOUGH)])
    graph = coo_array((capacity, (tails, heads)), shape=(count + 2, count + 2)).tocsr()
    graph.data = np.minimum(graph.data, _ENOUGH)
    graph = graph.astype(np.int32)
    flow = maximum_flow(graph, source, sink)
    left = graph - flow.flow
    left.eliminate_zeros()
    chosen = np.zeros(count + 2, dtype=bool)
    chosen[breadth_first_order(left, source, return_predecessors=False)] = True
    return float(units[gives].sum() - flow.flow_value) * unit, chosen[:count]


SECONDS = 2.0  # of the processor
_USUAL = 12  # of the best stages, that are drawn from
_MOST_ORDER_MOVES = 20_000  # of all devices; where there are more, those along an order of them are tried
_SAME = 1e-9


def paths_along_connected_stages(
    problem: Problem,
    rules: Rules,
    stages: ConnectedStages,
    near: tuple[Space, Path],
    *,
    low: float,
    high: float,
    seconds: float = SECONDS,
) -> list[tuple[Space, Path]]:
    """Return paths of periods that fall from `high`, that of a path `near` them, to `low` at best.

    No device's memory is looked at.
    """
    kinds = list(dict.fromkeys(device.type.name for device in problem.cluster.devices))
    names = [device.type.name for device in problem.cluster.devices]
    best = [[best_stage for best_stage in stages.best if best_stage.kind == kind] for kind in range(len(kinds))]
    if not stages.best:
        return []
    orders = problem.layers, least_payload_order(problem.table, problem.layers)
    every, devices = every_move(problem, _MOST_ORDER_MOVES), order_of(*near)
    rng, until, found = random.Random(0), time.process_time() + seconds, list[tuple[Space, Path]]()
    while high > low * (1 + _SAME) and time.process_time() < until:
        drawn = [
            class_best[min(int(rng.expovariate(1 / _USUAL)), len(class_best) - 1)]
            for kind, class_best in zip(kinds, best, strict=True)
            for _ in range(names.count(kind))
            if class_best
        ]
        order = _order(problem.layers, drawn, rng.choice(orders))
        if not order:
            continue
        cuts = Cuts.along(problem.table, order)
        if every:
            space: Space | None = Space.of(problem, rules, cuts, *every, complete=False)
        else:
            space = order_space(problem, rules, cuts, devices)
        while space and isinstance(path := along_chain(space.model, space.moves, high * (1 - _SAME)), list):
            found.append((space, path))
            high, devices = space.model.period(path), order_of(space, path)
    return found


def _order(layers: tuple[int, ...], drawn: list[Connected], usual: tuple[int, ...]) -> tuple[int, ...]:
    """The layers as they `usually` are, but for those of stages that follow one another; none where two share some."""
    region, placed = np.zeros(len(layers), dtype=np.intp), np.zeros(len(layers), dtype=bool)
    for number, one in enumerate(sorted(drawn, key=lambda one: int(one.before.sum()))):
        if (one.layers & placed).any():
            return ()
        region[one.before & ~placed] = 2 * number
        region[one.layers] = 2 * number + 1
        placed |= one.before | one.layers
    region[~placed] = 2 * len(drawn)
    index_of = {layer: k for k, layer in enumerate(usual)}
    return tuple(layers[k] for k in sorted(range(len(layers)), key=lambda k: (region[k], index_of[layers[k]])))


_TOLERANCE = 5e-4
_MOST_MOVES = 50_000
_ROUNDING = 1e-9  # of all work


@dataclass(frozen=True, eq=False)
class ConnectedWalks:
    """Walks over the numbers of devices of each type."""

    stages: ConnectedStages
    model: StageModel  # of groups by type alone
    moves: Moves

    @classmethod
    def of(cls, problem: Problem, stages: ConnectedStages) -> "ConnectedWalks | None":
        """None if there are too many ways to use the devices."""
        easier, layers = merged(problem), tuple(problem.layers)
        classes = device_classes(easier.cluster)
        sizes = [len(device_class.ranks) for device_class in classes]
        if prod((n + 1) * (n + 2) // 2 for n in sizes) > _MOST_MOVES:
            return None
        counts, moves = all_moves(sizes, np.ones(len(classes)))
        ends = Cuts.chosen(layers, problem.table.graph.input_layers, (0, (1 << len(layers)) - 1))
        return cls(stages, default_model(easier, ends, DeviceGroups.of(easier, classes, counts)), moves)

    def exist(self, period: float) -> bool:
        """Return whether stages that each take no longer than a period may do the whole work."""
        stages, moves = self.stages, self.moves
        slack, most = _ROUNDING * stages.whole, np.full(len(moves.used), -inf)
        most[0], done = 0.0, self._done(period)
        for level in moves.levels:
            before = most[moves.source[level], None]
            begins = np.where(stages.first <= before + slack, np.minimum(before, stages.last), -inf)
            reached = (begins + done[moves.group[level]]).max(axis=1)
            np.maximum.at(most, moves.target[level], reached)
        return bool(most.max() >= stages.whole - slack)

    def _done(self, period: float) -> Array:
        """The most that a stage on each group does where it begins at each class, [G, K]."""
        done_work = np.full((len(self.model.groups), len(self.stages.first)), inf)
        room = np.maximum(period - self.model.fixed, 0.0)
        for kind, rates in enumerate(self.model.rates.T):
            classes_with_work = np.flatnonzero(rates > 0)
            done_work[classes_with_work] = np.minimum(
                done_work[classes_with_work], self.stages.done(kind, room[classes_with_work] / rates[classes_with_work])
            )
        return done_work


def connected_stages_bound(
    problem: Problem, stages: ConnectedStages, *, low: float, high: float, seconds: float = SECONDS
) -> float:
    """Return a bound of the period of all plans: at least `low`, which is one, at most `high`."""
    until, walks = time.process_time() + seconds, ConnectedWalks.of(problem, stages)
    if walks is None:
        return low
    return largest_refused(lambda one: not walks.exist(one), low, high, tolerance=_TOLERANCE, until=until)
