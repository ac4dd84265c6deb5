"""Several pipelines for unlike devices: split them so that together they train most minibatches per second.

Each part of a split is planned by itself. A part that has not been planned yet is worth at most what its devices could
do with no second of theirs lost; the split that may be worth most has its parts planned, until the best one is of
planned parts alone: no other can be better then.

Splits of devices into parts, one for each pipeline: which there are, and which is worth most.

Interchangeable units of devices form a kind; a part is a count of each kind. So few splits are distinguished that the
best one can be found by dynamic programming over counts, whatever each part is worth.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from ..errors import InputError
from ..util.text.numbers import number_of
from ..values.cluster import Cluster, Node
from ..values.costs import Array
from ..values.plan import Plan
from .base import Problem
from .device_groups import device_classes

MOST_PARTS = 1024  # that a search looks at
Part = tuple[int, ...]


@dataclass(frozen=True)
class Units:
    """The units of each kind, each a tuple of ranks. `complete`: of single devices, so that no split is left out."""

    kinds: tuple[tuple[tuple[int, ...], ...], ...]
    complete: bool = True

    @classmethod
    def of(cls, cluster: Cluster, num_parts: int) -> "Units":
        """Single devices if there are few enough; else whole nodes, or blocks of like devices of a node.

        Devices of one type on one node are of a kind. Raises InputError if even blocks are too many.
        """
        units = cls(tuple(tuple((rank,) for rank in device_class.ranks) for device_class in device_classes(cluster)))
        if units.num_parts > MOST_PARTS:
            whole = len(cluster.nodes) >= num_parts
            units = (cls._whole_nodes(cluster) if whole else units)._joined(num_parts)
        if units.num_parts > 4 * MOST_PARTS:
            raise InputError(
                "planner.too_many_splits",
                f"{number_of(num_parts, 'pipeline')} on {number_of(len(cluster.devices), 'device')} of "
                f"{len(units.kinds)} kinds give too many combinations; use fewer pipelines, or plan parts of the "
                "cluster separately",
            )
        return units

    @classmethod
    def _whole_nodes(cls, cluster: Cluster) -> "Units":
        like: dict[object, list[tuple[int, ...]]] = {}
        first = 0
        for node in cluster.nodes:
            ranks = tuple(range(first, first + len(node.device_types)))
            like.setdefault((node.link, node.device_types), []).append(ranks)
            first += len(ranks)
        return cls(tuple(map(tuple, like.values())), complete=False)

    def _joined(self, num_parts: int) -> "Units":
        """Join units of a kind two by two, or three by three, and then kinds, until parts or units are few enough."""
        kinds = list(self.kinds)
        while Units(tuple(kinds)).num_parts > MOST_PARTS:
            kinds.sort(key=lambda kind: (-len(kind), len(kind[0]), kind))
            largest = kinds[0]
            if len(largest) > 1:
                size = next(size for size in range(2, len(largest) + 1) if len(largest) % size == 0)
                joined = [_together(largest[i : i + size]) for i in range(0, len(largest), size)]
                following = [tuple(joined), *kinds[1:]]
            else:
                following = [(_together([*kinds[0], *kinds[1]]),), *kinds[2:]]
            if sum(map(len, following)) < num_parts:
                break
            kinds = following
        return Units(tuple(kinds), complete=False)

    @property
    def total(self) -> Part:
        """The part of all units."""
        return tuple(map(len, self.kinds))

    @property
    def num_parts(self) -> int:
        """Return how many parts there are, the empty one too."""
        return int(np.prod([len(kind) + 1 for kind in self.kinds], dtype=float))

    def parts(self) -> Iterator[Part]:
        """Every part but the empty one."""
        return (part for part in product(*(range(len(kind) + 1) for kind in self.kinds)) if any(part))

    def ranks(self, split: Sequence[Part]) -> list[tuple[int, ...]]:
        """Ranks for each part of a split, in ascending order."""
        taken, rank_groups = [0] * len(self.kinds), []
        for part in split:
            ranks: list[int] = []
            for k, count in enumerate(part):
                for unit in self.kinds[k][taken[k] : taken[k] + count]:
                    ranks += unit
                taken[k] += count
            rank_groups.append(tuple(sorted(ranks)))
        return rank_groups


def _together(units: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(rank for unit in units for rank in unit)


class Worths:
    """Throughput of each part, in minibatches per second, and the best split by it."""

    def __init__(self, units: Units, num_parts: int) -> None:
        self.units, self.num_parts = units, num_parts
        self._shape = [count + 1 for count in units.total]

    def array(self) -> Array:
        """An array with a place for each part, [units of kind 0 + 1, units of kind 1 + 1, …]; nothing is known yet."""
        return np.full(self._shape, -np.inf)

    @cached_property
    def _options(self) -> list[Part]:
        """Every part, those nearest to an even share of all first: among equals such a split is found."""
        even = [count / self.num_parts for count in self.units.total]
        away = lambda part: sum((part_counts - mean) ** 2 for part_counts, mean in zip(part, even, strict=True))  # noqa: E731
        return sorted(self.units.parts(), key=away)

    def best(self, worth: Array) -> tuple[float, list[Part]]:
        """Return the most that a split of all units into `num_parts` parts is worth, and that split.

        −infinity and no parts where each split has a part that is worth −infinity.
        """
        options = [part for part in self._options if worth[part] > -np.inf]
        best, picks = worth, []
        for left in range(1, self.num_parts):
            best, pick = self._one_more(worth, options, best, last=left == self.num_parts - 1)
            picks.append(pick)
        at = self.units.total
        value = float(best[at])
        if value == -np.inf:
            return value, []
        split = []
        for pick in reversed(picks):
            part = options[pick[at]]
            split.append(part)
            at = tuple(a - b for a, b in zip(at, part, strict=True))
        return value, [*split, at]

    def _one_more(self, worth: Array, options: Sequence[Part], best: Array, *, last: bool) -> tuple[Array, np.ndarray]:
        """Add a part: the most for each count of units used so far, and the option taken. `last`: all units are."""
        counts, pick = self.array(), np.zeros(self._shape, dtype=np.intp)
        total = self.units.total
        for k, part in enumerate(options):
            if last:
                rest = tuple(a - b for a, b in zip(total, part, strict=True))
                if worth[part] + best[rest] > counts[total]:
                    counts[total], pick[total] = worth[part] + best[rest], k
                continue
            before = tuple(slice(0, size - count) for size, count in zip(self._shape, part, strict=True))
            after = tuple(slice(count, None) for count in part)
            candidate = best[before] + worth[part]
            better = candidate > counts[after]
            counts[after] = np.where(better, candidate, counts[after])
            pick[after] = np.where(better, k, pick[after])
        return counts, pick


MOST_PLANS = 256  # parts that are planned; each takes up to a second or so
UNKNOWN = 1e100  # minibatches per second: more than any part is worth
PlanOf = Callable[[Cluster], Plan]


@dataclass(frozen=True)
class Split:
    """A plan for each part, with ranks of the whole cluster, and what is proven of the split."""

    plans: tuple[Plan, ...]
    lower_bound_seconds: float | None  # per minibatch of all together, of any split; None: nothing is proven
    left_out: str = ""  # a sentence, where not every split was looked at


def split(problem: Problem, num_pipelines: int, plan: PlanOf, *, bounded: bool, most_plans: int = MOST_PLANS) -> Split:
    """Split the devices of `problem` into so many parts, each planned by `plan` for a cluster of its own devices.

    `bounded`: the plans' periods keep to the default cost model, by which no device does more than all of its time
    allows. Raises InputError if there are fewer devices than parts, and if no split fits into memory.
    """
    cluster = problem.cluster
    if num_pipelines > len(cluster.devices):
        raise InputError(
            "planner.too_few_devices",
            f"{number_of(num_pipelines, 'pipeline')} on {number_of(len(cluster.devices), 'device')}: expected at "
            "least one device each; use fewer, or more devices",
        )
    units = Units.of(cluster, num_pipelines)
    search = _Search(problem, units, Worths(units, num_pipelines), plan, bounded, most_plans)
    return search.run()


class _Search:
    """The state of one search: what is known of each part."""

    def __init__(
        self, problem: Problem, units: Units, worths: Worths, plan: PlanOf, bounded: bool, most_plans: int
    ) -> None:
        self.problem, self.units, self.worths, self.most_plans = problem, units, worths, most_plans
        self.plan_of, self.bounded = plan, bounded
        self.most = worths.array()  # no plan of a part is worth more
        self.worth = worths.array()  # what the plan of a part is worth; −infinity: not planned, or nothing fits
        self.plans: dict[Part, Plan | None] = {}
        self.alike: dict[object, Plan | None] = {}
        self.refused: InputError | None = None  # of the last part that could not be planned
        for part in units.parts():
            self.most[part] = self._most(part) if bounded else UNKNOWN

    def run(self) -> Split:
        cut_short = False
        while True:
            hoped = np.where(self._planned(), self.worth, self.most)
            value, chosen = self.worths.best(hoped)
            if value == -np.inf:
                raise self.refused or InputError(
                    "planner.no_plan", "the devices cannot be divided among so many pipelines; use fewer pipelines"
                )
            waiting = [part for part in dict.fromkeys(chosen) if part not in self.plans]
            if not waiting:
                break
            if len(self.plans) >= self.most_plans and self.worths.best(self.worth)[1]:
                chosen, cut_short = self.worths.best(self.worth)[1], True
                break
            for part in waiting:
                self._plan(part)
        most = self.worths.best(self.most)[0]
        placed = self._placed(chosen)
        rate = sum(float(self.worth[part]) for part, _ in placed)  # as the plans are added up: to the last bit
        bound = self._bound(most, rate)
        return Split(tuple(plan for _, plan in placed), bound, self._left_out(cut_short))

    def _bound(self, most: float, rate: float) -> float | None:
        """Seconds per minibatch that no split beats."""
        if not self.units.complete:
            most = self._most(self.units.total) if self.bounded else UNKNOWN
        if most >= UNKNOWN or not most > 0:
            return None
        return 1 / rate if most <= rate * (1 + 1e-12) else 1 / most

    def _left_out(self, cut_short: bool) -> str:
        if not self.units.complete:
            return (
                "too many devices to try every split: only splits into whole nodes or blocks of identical devices "
                "were tried"
            )
        return f"{len(self.plans)} parts were planned; some possibly better splits were not tried" if cut_short else ""

    def _planned(self) -> np.ndarray:
        planned_groups = np.zeros(self.worth.shape, dtype=bool)
        for part in self.plans:
            planned_groups[part] = True
        return planned_groups

    def _most(self, part: Part) -> float:
        """Minibatches per second that the devices of a part cannot exceed: each layer on whichever is cheapest.

        Seconds of a device have a price, in proportion to its speed over the whole network: what the devices offer in a
        second, over what a minibatch costs at least.
        """
        (ranks,) = self.units.ranks([part])
        kinds = [self.problem.cluster.devices[rank].type.name for rank in ranks]
        price = {kind: 1 / max(self.problem.total_seconds(kind), 1e-300) for kind in set(kinds)}
        layers = list(self.problem.layers)
        seconds = np.array([p * self.problem.table.seconds[kind][layers, 0] for kind, p in price.items()])
        cost = float(seconds.min(axis=0).sum())
        return min(sum(price[kind] for kind in kinds) / cost, UNKNOWN) if cost else UNKNOWN

    def _plan(self, part: Part) -> None:
        """Plan a part, or take over the plan of one that is identical."""
        (ranks,) = self.units.ranks([part])
        part_cluster, order = sub_cluster(self.problem.cluster, ranks)
        key = tuple((node.link, node.device_types) for node in part_cluster.nodes)
        if key not in self.alike:
            try:
                self.alike[key] = self.plan_of(part_cluster)
            except InputError as error:
                self.alike[key], self.refused = None, error
        cached_plan = self.plans[part] = self.alike[key]
        if cached_plan is None or cached_plan.estimate is None or not cached_plan.estimate.period_seconds:
            self.most[part] = self.worth[part] = -np.inf if cached_plan is None else UNKNOWN
            return
        self.worth[part] = 1 / cached_plan.estimate.period_seconds
        bound = cached_plan.estimate.lower_bound_seconds
        self.most[part] = 1 / bound if bound else min(self.most[part], UNKNOWN)

    def _placed(self, chosen: Sequence[Part]) -> list[tuple[Part, Plan]]:
        """The parts and their plans, on ranks of the whole cluster, in the order of the pipelines."""
        plans = []
        for part, ranks in zip(chosen, self.units.ranks(chosen), strict=True):
            plan = self.plans[part]
            assert plan is not None
            order = sub_cluster(self.problem.cluster, ranks)[1]
            plans.append((part, _with_ranks(plan, self.problem.cluster, order)))
        return sorted(plans, key=lambda one: min(one[1].ranks))


def sub_cluster(cluster: Cluster, ranks: Sequence[int]) -> tuple[Cluster, tuple[int, ...]]:
    """Return a cluster of some of the devices, and which rank of the whole cluster each of its ranks is.

    Nodes and the devices on each come in an order of their own, so that like parts make like clusters.
    """
    ranks_by_node: dict[str, list[int]] = {}
    for rank in ranks:
        ranks_by_node.setdefault(cluster.devices[rank].node.name, []).append(rank)
    nodes = []
    for chosen in ranks_by_node.values():
        chosen.sort(key=lambda rank: (cluster.devices[rank].type.name, rank))
        nodes.append((cluster.devices[chosen[0]].node, chosen))
    nodes.sort(key=lambda pair: (_shape(cluster, *pair), pair[1]))
    made = tuple(
        Node(node.name, tuple(cluster.devices[rank].type for rank in chosen), node.link, node.address)
        for node, chosen in nodes
    )
    return Cluster(made, cluster.network), tuple(rank for _, chosen in nodes for rank in chosen)


def _shape(cluster: Cluster, node: Node, ranks: Sequence[int]) -> tuple[object, ...]:
    kinds = [(cluster.devices[rank].type.name, cluster.devices[rank].type.memory_bytes) for rank in ranks]
    return (len(ranks), kinds, node.link.bandwidth, node.link.latency)


def _with_ranks(plan: Plan, cluster: Cluster, order: Sequence[int]) -> Plan:
    """The plan of a sub-cluster on the ranks of the whole one."""
    stages = []
    for stage in plan.stages:
        pairs = sorted((order[rank], share) for rank, share in zip(stage.ranks, stage.shares, strict=True))
        ranks = tuple(rank for rank, _ in pairs)
        devices = [cluster.devices[rank] for rank in ranks]
        stages.append(
            replace(
                stage,
                ranks=ranks,
                shares=tuple(share for _, share in pairs),
                device_types=tuple(device.type.name for device in devices),
                nodes=tuple(device.node.name for device in devices),
            )
        )
    return replace(plan, stages=tuple(stages))
