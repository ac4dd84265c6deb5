"""The search space: all cuts and device groups if they are few enough, else some of them."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

import numpy as np

from ...values.cluster import Cluster, Link, Node
from ...values.costs import Array
from ..base import Problem
from ..cuts import Cuts, Index, least_payload_order
from ..device_groups import DeviceClass, DeviceGroups, device_classes
from .chain_search import Moves, Path, all_moves, slice_moves
from .frontier_cuts import FrontierCuts, ListedCuts
from .like_nodes import like_nodes, num_moves, symmetric_moves
from .memory_limits import MemoryRule, memory_rule
from .stage_cost_tables import StageModel, default_model, published_model

MAX_CUTS = 3000  # beyond, cuts are those along topological orders
LISTED = (3000, 1000, 300)  # cuts that are searched of those that are listed: as many as fit
FRONTIER = (1000, 300)  # the same where cuts cannot be listed
_REACH = 0.01  # of all work, around the cuts of a plan that was found
MAX_SERVERS = 8  # of the published model, where any set of them may form a stage
# How much one step of a search may look at: a second or so.
CHAIN_BUDGET = 400_000  # moves
MANY_COUNTS = 30_000_000  # counts of devices of each class in the groups of all moves
FEW_MOVES = 33_000  # where groups are multiples of some devices: 256 of these
SWAPPED_GROUPS = 50_000  # groups, where of like nodes each is told by itself
SWAPPED_MOVES = 50_000
SETS_BUDGET = 40_000_000  # moves × cuts × chains
COUNTED_CUTS = 4000  # of identical devices on one node
STEP_BUDGET = 30_000_000  # moves × cuts²
LATENCY_BUDGET = 100_000_000  # the same, searched once
_FEW = 5000  # cuts²: with fewer a move takes no less time


@dataclass(frozen=True, slots=True)
class Rules:
    """Cost model, and permission to leave devices unused."""

    published: bool = False
    ratio: float | None = None  # activation compression, of the published cost model
    all_devices: bool = False


@dataclass(frozen=True, eq=False)
class Space:
    """Cuts, groups and moves of one search. `complete`: nothing is left out."""

    model: StageModel
    moves: Moves
    memory: MemoryRule | None  # None where every stage fits
    complete: bool

    @classmethod
    def of(
        cls, problem: Problem, rules: Rules, cuts: Cuts, groups: DeviceGroups, moves: Moves, *, complete: bool
    ) -> "Space":
        if rules.published:
            model = published_model(problem, cuts, groups, rules.ratio)
        else:
            model = default_model(problem, cuts, groups)
        limited = any(c.type.memory_bytes < float("inf") for c in groups.classes)
        memory = memory_rule(problem, model, moves) if limited else None
        return cls(model, moves, memory if memory is not None and memory.binds else None, complete)

    def at_most(self, problem: Problem, stages: int) -> "Space":
        """The plans of at most so many stages."""
        moves = self.moves.at_most(stages)
        memory = memory_rule(problem, self.model, moves) if self.memory is not None else None
        return replace(self, moves=moves, memory=memory)

    def masks(self, path: Path) -> list[int]:
        """The cut behind each stage of a path."""
        return [self.model.cuts.masks[last] for _, _, last in path]

    def boundaries(self, path: Path) -> list[float]:
        """The share of all work before each boundary of a path, on the first device type."""
        times = self.model.times[0]
        return [float(times[last] / times[-1]) for _, _, last in path[:-1]]


def spaces(problem: Problem, rules: Rules) -> Iterator[Space]:
    """The complete space if it can be searched in seconds; else several restricted ones, each within the budget."""
    classes = device_classes(problem.cluster)
    prices = class_prices(problem, classes)
    cuts = Cuts.of(problem.table, problem.layers, limit=MAX_CUTS)
    sizes = [len(c.ranks) for c in classes]
    count = _num_moves(sizes)
    if cuts.complete and count <= 4 * CHAIN_BUDGET and fits(problem, rules, cuts, count):
        counts, moves = all_moves(sizes, prices)
        groups = DeviceGroups.of(problem, classes, counts, even=rules.published)
        if rules.published and 1 < len(groups.nodes) <= MAX_SERVERS:
            more, like = groups.with_servers()
            moves, groups = moves.doubled(like, len(groups)), more
        yield Space.of(problem, rules, cuts, groups, moves, complete=True)
        return
    swapped = _swapped_moves(problem, rules, classes)
    if swapped and cuts.complete:
        counts, moves = swapped
        if fits(problem, rules, cuts, len(moves.source)):
            groups = DeviceGroups.of(problem, classes, counts)
            yield Space.of(problem, rules, cuts, groups, moves, complete=True)
            return
    candidates = [cuts, *(Cuts.along(problem.table, order) for order in _orders(problem))]
    some_cuts = {one.masks: one for one in reversed(candidates)}.values()
    is_row = cuts.complete and cuts.is_chain and len(problem.cluster.nodes) == 1
    step = _step(len(problem.cluster.devices), len(classes)) if is_row else 1
    move_tables = [slice_moves(order, prices, step) for order in _device_orders(problem, classes)]
    every = swapped or (all_moves(sizes, prices) if count <= 4 * CHAIN_BUDGET else None)
    if every:
        move_tables.insert(0, every)
    done: set[tuple[int, ...]] = set()  # cuts that were searched with every move, of which other tables have some
    for table in move_tables:
        counts, moves = table
        groups = DeviceGroups.of(problem, classes, counts, even=rules.published)
        for candidate in some_cuts:
            if candidate.masks in done:
                continue
            fitting = candidate
            while not fits(problem, rules, fitting, len(moves.source)) and len(fitting) > 50 and fitting.is_chain:
                fitting = fitting.thinned(problem.table, len(fitting) // 2)
            if fits(problem, rules, fitting, len(moves.source)):
                if table is every and fitting is candidate:
                    done.add(candidate.masks)
                yield Space.of(problem, rules, fitting, groups, moves, complete=False)


def _step(devices: int, classes: int) -> int:
    """Return 1 if groups may be of any number of consecutive devices, else what these are multiples of."""
    moves, step = devices * (devices + 1) // 2, 1
    most = moves if moves <= min(CHAIN_BUDGET, MANY_COUNTS // classes) else min(FEW_MOVES, MANY_COUNTS // classes)
    while (blocks := -(-devices // step)) * (blocks + 1) // 2 > most:
        step += 1
    return step


def every_move(problem: Problem, most: int) -> tuple[DeviceGroups, Moves] | None:
    """All groups of devices, and all moves by them; None if there are more than `most` moves."""
    classes = device_classes(problem.cluster)
    sizes = [len(c.ranks) for c in classes]
    if _num_moves(sizes) > most:
        return None
    counts, moves = all_moves(sizes, class_prices(problem, classes))
    return DeviceGroups.of(problem, classes, counts), moves


def _num_moves(sizes: Sequence[int]) -> int:
    """Return how many moves there are among classes of so many devices."""
    return prod((n + 1) * (n + 2) // 2 for n in sizes)


def branching_space(problem: Problem, rules: Rules, searched: Space, listed: ListedCuts) -> Space | None:
    """The moves of `searched`, with the best of all cuts instead of those along an order; None if too many fit."""
    along = [Cuts.along(problem.table, order).masks for order in _orders(problem)]
    for count in LISTED:
        if space := _fitting(problem, rules, searched, listed.cheapest(count, *along)):
            return space
    return None


def frontier_space(
    problem: Problem,
    rules: Rules,
    searched: Space,
    frontier: FrontierCuts,
    masks: Iterable[int],
    around: Sequence[float] = (),
) -> Space | None:
    """The moves of `searched`, cuts of these `masks`, and the cheapest for each amount of work, more near `around`.

    `around` are shares of all work. None if too many cuts fit.
    """
    for count in FRONTIER:
        if space := _fitting(problem, rules, searched, frontier.cheapest(count, masks, around, _REACH)):
            return space
    return None


def symmetric_space(problem: Problem, cuts: Cuts) -> Space | None:
    """All moves on nodes of which several are identical; None if searching a chain by them takes more than seconds."""
    classes = device_classes(problem.cluster)
    if not (swapped := _swapped_moves(problem, Rules(), classes, most=CHAIN_BUDGET)):
        return None
    counts, moves = swapped
    groups = DeviceGroups.of(problem, classes, counts)
    return Space.of(problem, Rules(), cuts, groups, moves, complete=True)


def _swapped_moves(
    problem: Problem, rules: Rules, classes: Sequence[DeviceClass], *, most: int = SWAPPED_MOVES
) -> tuple[Index, Moves] | None:
    """`symmetric_moves`; None if no nodes are identical, there are too many, or what is asked knows no swaps."""
    limited = any(device_class.type.memory_bytes < float("inf") for device_class in classes)
    if limited or rules.published or rules.all_devices or problem.forward_only:
        return None
    alike = any(len(nodes) > 1 for nodes in like_nodes(classes))
    if (
        not alike
        or prod(len(device_class.ranks) + 1 for device_class in classes) > SWAPPED_GROUPS
        or num_moves(classes) > most
    ):
        return None
    return symmetric_moves(classes, class_prices(problem, classes))


def orders_on_like_nodes(problem: Problem, cuts: Cuts) -> tuple[Space, list[Index]] | None:
    """`symmetric_space` of all cuts, or those along orders of the layers where `cuts` has not all; and these orders."""
    along = [Cuts.along(problem.table, order).masks for order in _orders(problem)]
    every = cuts if cuts.complete else Cuts.chosen(cuts.layers, cuts.inputs, {mask for one in along for mask in one})
    if not (space := symmetric_space(problem, every)):
        return None
    cut_of = {mask: cut for cut, mask in enumerate(every.masks)}
    return space, [np.array([cut_of[mask] for mask in one]) for one in along]


def order_space(problem: Problem, rules: Rules, cuts: Cuts, order: Sequence[int]) -> Space | None:
    """Groups of consecutive devices of one order, by class, the end of the pipeline first; None if too many fit."""
    classes = device_classes(problem.cluster)
    counts, moves = slice_moves(order, class_prices(problem, classes))
    if not fits(problem, rules, cuts, len(moves.source)):
        return None
    groups = DeviceGroups.of(problem, classes, counts, even=rules.published)
    return Space.of(problem, rules, cuts, groups, moves, complete=False)


def order_moves(problem: Problem, order: Sequence[int]) -> tuple[DeviceGroups, Moves]:
    """Groups of consecutive devices of one order, by class, the end of the pipeline first; and moves by them."""
    classes = device_classes(problem.cluster)
    counts, moves = slice_moves(order, class_prices(problem, classes))
    return DeviceGroups.of(problem, classes, counts), moves


def moves_in_orders(problem: Problem) -> Iterator[tuple[DeviceGroups, Moves]]:
    """Yield `order_moves` of each order by node and type."""
    for order in _device_orders(problem, device_classes(problem.cluster)):
        yield order_moves(problem, order)


def cuts_along_orders(problem: Problem) -> list[Cuts]:
    """The cuts along each of some topological orders of the layers."""
    return [Cuts.along(problem.table, order) for order in _orders(problem)]


def _fitting(problem: Problem, rules: Rules, searched: Space, cuts: Cuts) -> Space | None:
    """`with_cuts`, None if that is too much to search."""
    return with_cuts(problem, rules, searched, cuts) if fits(problem, rules, cuts, len(searched.moves.source)) else None


def with_cuts(problem: Problem, rules: Rules, searched: Space, cuts: Cuts) -> Space:
    """The moves of `searched` with other cuts."""
    return Space.of(problem, rules, cuts, searched.model.groups, searched.moves, complete=False)


def fits(problem: Problem, rules: Rules, cuts: Cuts, num_moves: int) -> bool:
    """Return whether a search of this size takes seconds only."""
    if problem.forward_only:
        return num_moves * max(len(cuts) ** 2, _FEW) <= LATENCY_BUDGET
    if problem.synchronous and not rules.published:
        return num_moves * len(cuts) ** 2 <= STEP_BUDGET
    limited = any(kind.memory_bytes < float("inf") for kind in problem.cluster.device_types)
    if are_counted(problem, rules) and len(cuts) <= COUNTED_CUTS:
        return True
    if cuts.is_chain and not limited and not rules.all_devices:
        return num_moves <= CHAIN_BUDGET
    return num_moves * len(cuts) * len(cuts.chains) <= SETS_BUDGET


def are_counted(problem: Problem, rules: Rules) -> bool:
    """Return whether devices are identical and on one node, so that plans are paths over cuts (fewest_devices.py)."""
    kinds = problem.cluster.device_types
    alike = len(problem.cluster.nodes) == 1 and len({kind.name for kind in kinds}) == 1
    free = not (problem.synchronous or rules.all_devices or rules.published)
    return alike and free and kinds[0].memory_bytes == float("inf")


def class_prices(problem: Problem, classes: Sequence[DeviceClass]) -> Array:
    """The price of a second on each class: in proportion to its speed over the whole network."""
    totals = np.array([max(problem.total_seconds(c.type.name), 1e-300) for c in classes])
    return totals.min() / totals


def _orders(problem: Problem) -> list[tuple[int, ...]]:
    """Topological orders to cut along: as given, and one that keeps little alive."""
    return list(dict.fromkeys([problem.layers, least_payload_order(problem.table, problem.layers)]))


def _device_orders(problem: Problem, classes: Sequence[DeviceClass]) -> list[tuple[int, ...]]:
    """Orders of all devices by class, from the end of the pipeline: node by node and type by type, either way round."""
    class_order = range(len(classes))
    nodes = list(dict.fromkeys(c.node.name for c in classes))
    speed = [problem.total_seconds(c.type.name) for c in classes]
    by_node = sorted(class_order, key=lambda k: (nodes.index(classes[k].node.name), speed[k]))
    by_speed = sorted(class_order, key=lambda k: (speed[k], nodes.index(classes[k].node.name)))
    orders = {_shape(classes, order): order for order in (by_speed[::-1], by_speed, by_node[::-1], by_node)}
    return [tuple(k for k in order for _ in classes[k].ranks) for order in reversed(orders.values())]


def _shape(classes: Sequence[DeviceClass], order: Sequence[int]) -> Hashable:
    """A key that is equal for orders that differ only in which of several like nodes comes first."""
    seen: dict[str, int] = {}
    rows = [(classes[k].node, classes[k].type, len(classes[k].ranks)) for k in order]
    return tuple((seen.setdefault(node.name, len(seen)), node.link, kind, count) for node, kind, count in rows)


def unlimited(cluster: Cluster) -> Cluster:
    """The cluster without memory limits."""
    nodes = [(node, (replace(kind, memory_bytes=inf) for kind in node.device_types)) for node in cluster.nodes]
    return replace(cluster, nodes=tuple(replace(node, device_types=tuple(kinds)) for node, kinds in nodes))


def merged(problem: Problem) -> Problem:
    """The same devices on one node with the best of all links that join two of them: no plan does worse there.

    A message takes no time of its own where averaging host by host needs fewer of them than a ring over all does.
    """
    nodes = problem.cluster.nodes
    several = [node.link for node in nodes if len(node.device_types) > 1]
    links = [problem.cluster.network, *several]
    latency = 0.0 if several and len(nodes) > 1 else min(link.latency for link in links)
    best = Link(max(link.bandwidth for link in links), latency)
    kinds = tuple(device.type for device in problem.cluster.devices)
    return replace(problem, cluster=Cluster((Node("all", kinds, best),), best), easier=len(nodes) > 1)
