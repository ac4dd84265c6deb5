"""Stages that come back: owner maps in which every device has two intervals of the layers, in a V.

The first device has the first and the last interval, the next one those inside, so what remains is an interval again:

    device 0   |--------|                                |-------|
    device 1            |-------|               |--------|
    device 2                    |-------|-------|
                        a       a'              b'       b

A skip connection of a U-Net whose ends are on one device is kept there and crosses no boundary (values/graph.py).
What crosses the two boundaries around an interval then depends on its ends (a, b) alone. So a dynamic program over
intervals, from the inside outwards, has the least time of the busiest device, or of its busiest port, over all cuts:

    least[k](a, b) = min over a', b' of max(work(a, a') + work(b', b), ports(a, b, a', b'), least[k + 1](a', b'))

Asynchronously ("1f1b-v") that is the period if no device ever waits, which the order of interleaved.py nearly reaches.
A step that flushes takes at least as long as the busiest device works, after the forwards before its first one. The
plans that are compared are estimated as all are; the least of all owner maps is the lower bound.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from math import inf

import numpy as np

from ...errors import InputError
from ...util.text.numbers import number_of
from ...values.costs import Array, Flags, boundary_link
from ...values.plan import Plan
from ..base import Problem
from ..baselines import ModelParallel
from ..cuts import Cuts, Index
from ..estimate import beyond_memory, estimate
from .known_plans import INTERRUPTED, PlanProgress
from .relaxed_bound import work_bound

_MOST_CUTS = (0, 400, 400, 300, 300)  # by number of devices: the program looks at pairs of intervals
_MORE_DEVICES_CUTS = 64  # if there are more
_FEW_DEVICES = 4  # of which every order and every choice is tried
_ALIKE = 1.001  # periods that count as equal: of such plans the one that sends least is chosen
# Times the least: of plans within each, the one that sends fewest bytes. A step takes longer than its busiest device.
_WITHIN, _WITHIN_A_STEP = (1.0, _ALIKE), (1.0, _ALIKE, 1.01, 1.04)
_SECONDS = 2.0  # of the processor, for moving cuts of the best plan
_ASKED = 64  # intervals from one look at the clock to the next
_STEPS = (1, 2, 4, 8, 16)  # layers that a cut is moved by
_SEARCH_SECONDS = 120.0  # of the processor, for all orders of the devices; the plans of few cuts count after that
Interval = tuple[int, int]  # two cuts: what lies between is inside
Around = tuple[Array, Array, Array, Array]  # `bytes_around`


def returning_stages(
    problem: Problem,
    planner: str,
    *,
    all_devices: bool = False,
    quick: bool = False,
    progress: Callable[[PlanProgress], object] | None = None,
) -> Plan:
    """Return the plan of least period in which each device has two stages, with a lower bound of all such plans.

    The bound holds for plans with one device in each place of the V. If cuts or orders of devices are too many to
    search, it is that of the work. In a loop instead of a V the cuts are those of `model-parallel`.

    `progress` is called with each better plan. With it, KeyboardInterrupt ends the search: the bound is then that of
    the work.

    Raises InputError if no plan is possible or fits into memory.
    """
    kinds = [kind.name for kind in problem.cluster.device_types]
    total = float(np.minimum.reduce([_seconds(problem, kind) for kind in kinds]).sum())
    bound = max(work_bound(problem), total / len(problem.cluster.devices))
    fitting, searched, warnings, start = list[Plan](), False, tuple[str, ...](), time.perf_counter()

    def add(plans: Iterable[Plan]) -> None:
        nonlocal searched
        for plan in plans:
            searched = True
            if beyond_memory(plan, problem.cluster):
                continue
            period, better = _period(plan), _period(plan) < min(map(_period, fitting), default=inf)
            fitting.append(plan)
            if progress and better and bound > 0:
                progress(PlanProgress(time.perf_counter() - start, period, min(bound, period)))

    balanced: Plan | None = None
    if problem.rules.placement != "v" or 2 * len(problem.cluster.devices) <= len(problem.layers):
        balanced = replace(ModelParallel().plan(problem), planner=planner)
        if problem.rules.placement != "v":
            return _with_bound(balanced, bound)
    try:
        add([balanced] if balanced else [])
        bound = max(bound, _search(problem, planner, add, total, all_devices=all_devices, quick=quick))
        if fitting and not quick:
            add([with_cuts_moved(min(fitting, key=_period), problem, low=bound)])
    except KeyboardInterrupt:
        if progress is None or not fitting:
            raise
        warnings = (INTERRUPTED,)
    if not fitting:
        layers = number_of(len(problem.layers), "layer") if not searched else ""
        raise InputError(
            "planner.no_plan",
            f"no plan with two stages per device was found: {layers or 'none of those searched fits into memory'}; "
            "use fewer or larger devices, or recompute activations",
        )
    least = min(map(_period, fitting))
    alike = [plan for plan in fitting if _period(plan) <= _ALIKE * least]
    best = min(alike, key=lambda plan: (_sent_bytes(plan), _period(plan)))
    return _with_bound(replace(best, warnings=(*warnings, *best.warnings)), bound)


def _search(
    problem: Problem,
    planner: str,
    add: Callable[[Iterable[Plan]], None],
    total: float,
    *,
    all_devices: bool,
    quick: bool,
) -> float:
    """Add plans of each order of the devices; return the least period of all owner maps, 0 if it is not proven.

    `total`: seconds of all layers, each on its fastest device.
    """
    complete, least, count, until = True, inf, 0, time.process_time() + _SEARCH_SECONDS
    around: dict[tuple[Cuts, bool], Around] = {}
    for devices in device_orders(problem, all_devices=all_devices, quick=quick):
        search, count = IntervalSearch.of(problem, devices, around, quick=True), max(count, len(devices))
        low = search.least(below=least * _ALIKE)  # few cuts: soon searched, and with all cuts no less will do
        if not (quick or search.complete):
            every = IntervalSearch.of(problem, devices, around)
            try:
                better = every.least(below=min(low, least * _ALIKE) * (1 + 1e-9), until=until)
            except TimeoutError:
                complete, better = False, inf
            if better < inf:
                search, low = every, better
            complete &= every.complete
        else:
            complete &= search.complete
        least = min(least, low)
        if low < inf:
            add(search.plans(low, planner))
    if len(problem.cluster.devices) > _FEW_DEVICES or quick:  # fewer devices, and other orders, were not tried
        least = min(least, total / (count - 1) if count > 1 else inf)
        complete &= _alike(problem)
    return least if complete and least < inf else 0.0


def device_orders(problem: Problem, *, all_devices: bool, quick: bool = False) -> list[tuple[int, ...]]:
    """List the devices of each place of the V, outermost first: all that differ, or those of the cluster."""
    devices = problem.cluster.devices
    everyone, most = tuple(range(len(devices))), min(len(devices), len(problem.layers) // 2)
    if len(devices) > _FEW_DEVICES or quick:
        return [everyone[:most]] if most else []
    orders: dict[tuple[tuple[str, str], ...], tuple[int, ...]] = {}
    for count in range(most, most - 1 if all_devices else 0, -1):
        for order in permutations(everyone, count):
            orders.setdefault(tuple((devices[k].type.name, devices[k].node.name) for k in order), order)
    return [*orders.values()]


@dataclass(eq=False)
class IntervalSearch:
    """The dynamic program over intervals of the layers, for one order of devices."""

    problem: Problem
    devices: tuple[int, ...]
    cuts: Cuts
    work: Array  # seconds before each cut on the device of each place, [places, S]
    head: Array  # seconds per minibatch until a forward reaches each cut at the earliest, [S]
    ports: list[tuple[Array, Array]]  # before each place: seconds at the boundaries where it begins and ends, [S, S]
    sent: list[Array]  # before each place: bytes that cross the two boundaries, both ways, [S, S]
    _tables: list[Array] = field(default_factory=list)  # least[k], of the last limit

    @classmethod
    def of(
        cls,
        problem: Problem,
        devices: tuple[int, ...],
        around: dict[tuple[Cuts, bool], Around],
        *,
        quick: bool = False,
    ) -> "IntervalSearch":
        """`around` keeps `bytes_around` of cuts from one order of the devices to the next."""
        count = len(devices)
        most = _MOST_CUTS[count] if count < len(_MOST_CUTS) else _MORE_DEVICES_CUTS
        most = min(most, _MORE_DEVICES_CUTS) if quick else most
        cuts = Cuts.of(problem.table, problem.layers, limit=most)
        cuts = cuts if len(cuts) <= most else cuts.thinned(problem.table, most)
        kinds = [problem.cluster.devices[device].type.name for device in devices]
        work = np.stack([cuts.total(_seconds(problem, kind)) for kind in kinds])
        head = np.zeros(len(cuts))
        if problem.synchronous:
            fastest = np.minimum.reduce([problem.table.forward[kind][:, 0] for kind in kinds])
            head = cuts.total(fastest) / problem.num_microbatches
        ports, sent = [], []
        for outer, inner in zip(devices, devices[1:], strict=False):
            link = boundary_link(problem.cluster, (outer, inner))
            apart = problem.easier or len({problem.cluster.devices[k].node.name for k in (outer, inner)}) > 1
            if (cuts, apart) not in around:
                around[cuts, apart] = bytes_around(problem, cuts, between_hosts=apart)
            crossing = around[cuts, apart]
            seconds = [link.latency + size / link.bandwidth for size in crossing]
            ports.append((np.maximum(*seconds[:2]), np.maximum(*seconds[2:])))
            sent.append(sum(crossing, np.zeros(1)))
        return cls(problem, devices, cuts, work, head, ports, sent)

    @property
    def complete(self) -> bool:
        """Return whether all cuts of the network are among those searched."""
        return self.cuts.complete

    def least(self, *, below: float = inf, until: float = inf) -> float:
        """Return the least period of all cuts, asynchronously if no device waits; inf if it is not `below`.

        Raises TimeoutError if it is not known at `until` of `time.process_time()`.
        """
        base = float(self.work.min(axis=0)[-1]) / len(self.devices)
        for factor in (1.02, 1.2, inf):
            limit = min(factor * base, below)
            period = self._solve(limit, until)
            if period < inf or limit == below:
                return period
        return inf

    def plans(self, least: float, planner: str) -> Iterator[Plan]:
        """Yield plans near the least period: for each distance from it, the one that sends fewest bytes."""
        seen, within = set[tuple[int, ...]](), _WITHIN_A_STEP if self.problem.synchronous else _WITHIN
        self._solve(least * max(within) * (1 + 1e-12))
        for factor in within:
            path = self._fewest_bytes(least * factor * (1 + 1e-12))
            if path and path not in seen:
                seen.add(path)
                yield self._plan(path, planner)

    def _solve(self, limit: float, until: float = inf) -> float:
        """Fill the tables with what is at most `limit`; return the least of the whole network.

        Raises TimeoutError if that is not done at `until` of `time.process_time()`.
        """
        last = len(self.devices) - 1
        tables = [np.full((len(self.cuts), len(self.cuts)), inf) for _ in self.devices]
        inner = self._innermost()
        tables[last] = np.where(inner <= limit, inner, inf)
        for k in range(last - 1, -1, -1):
            for number, (a, b) in enumerate(self._states(k, limit)):
                if number % _ASKED == 0 and time.process_time() > until:
                    raise TimeoutError
                begins, ends, loads = self._steps(k, a, b, limit)
                if loads.size:
                    least = float(np.maximum(loads, tables[k + 1][begins[:, None], ends]).min())
                    tables[k][a, b] = least if least <= limit else inf
        self._tables = tables
        return float(tables[0][0, -1])

    def _innermost(self) -> Array:
        """Seconds of the innermost device, for each interval, with its ports; inf if no cut divides it in two."""
        work, follows = self.work[-1], self.cuts.follows
        load = work[None, :] - work[:, None] + self.head[:, None]
        if self.ports:
            load = np.maximum.reduce([load, *self.ports[-1]])
        return np.where(follows.astype(float) @ follows.astype(float) > 0, load, inf)

    def _states(self, k: int, limit: float) -> Iterator[Interval]:
        """Yield the intervals that place `k` may begin with: the work inside, and that outside, is not too much."""
        if k == 0:
            yield 0, len(self.cuts) - 1
            return
        fastest = self.work.min(axis=0)
        inside = fastest[None, :] - fastest[:, None]
        room = (len(self.devices) - k) * limit, k * limit
        possible = self.cuts.follows & (inside <= room[0]) & (fastest[-1] - inside <= room[1])
        yield from map(tuple, np.argwhere(possible).tolist())

    def _steps(self, k: int, a: int, b: int, limit: float) -> tuple[Index, Index, Array]:
        """(cuts where the inner interval may begin, and end, seconds of place `k` for each two of them).

        Cuts are left out if the work of place `k` before, or behind, them alone takes longer than `limit`.
        """
        follows, work = self.cuts.follows, self.work[k]
        between = np.flatnonzero(follows[a] & follows[:, b])
        before, behind = work[between] - work[a] + self.head[a], work[b] - work[between]
        early, late = before <= limit, behind <= limit
        begins, ends = between[early], between[late]
        loads = before[early][:, None] + behind[late]
        if not self.problem.synchronous:  # what enters, and what leaves
            first, last = (float(table[a, b]) for table in self.ports[k - 1]) if k else (0.0, 0.0)
            entering, leaving = (table[begins[:, None], ends] for table in self.ports[k])
            loads = np.maximum(loads, np.maximum(first + leaving, last + entering))
        return begins, ends, loads

    def _fewest_bytes(self, limit: float) -> tuple[int, ...]:
        """Return the cuts within a period that the fewest bytes cross, in pipeline order; nothing if there are none."""
        last, size = len(self.devices) - 1, len(self.cuts)
        costs = [np.full((size, size), inf) for _ in self.devices]
        costs[last] = np.where(self._tables[last] <= limit, 0.0, inf)
        picks: list[dict[Interval, Interval]] = [{} for _ in self.devices]
        for k in range(last - 1, -1, -1):
            for a, b in np.argwhere(self._tables[k] <= limit).tolist():
                begins, ends, loads = self._steps(k, a, b, limit)
                if not loads.size:
                    continue
                grid = begins[:, None], ends
                total = np.where(loads <= limit, costs[k + 1][grid] + self.sent[k][grid], inf)
                at = int(total.argmin())
                x, y = np.unravel_index(at, total.shape)
                costs[k][a, b] = total[x, y]
                picks[k][a, b] = int(begins[x]), int(ends[y])
        if costs[0][0, -1] == inf:
            return ()
        path, state = list[Interval](), (0, size - 1)
        for k in range(last):
            state = picks[k][state]
            path.append(state)
        return (*(a for a, _ in path), self._middle(*state), *(b for _, b in reversed(path)))

    def _middle(self, a: int, b: int) -> int:
        """Return the cut that divides the innermost device's layers into two stages of about equal work."""
        follows, work = self.cuts.follows, self.work[-1]
        between = np.flatnonzero(follows[a] & follows[:, b])
        return int(between[np.abs(2 * work[between] - work[a] - work[b]).argmin()])

    def _plan(self, path: Sequence[int], planner: str) -> Plan:
        bounds, count = (0, *path, len(self.cuts) - 1), len(self.devices)
        positions = [self.problem.rules.position(stage, count) for stage in range(2 * count)]
        stages = [
            self.problem.stage(self.cuts.between(a, b), (self.devices[position],))
            for position, a, b in zip(positions, bounds, bounds[1:], strict=False)
        ]
        total = len(self.problem.cluster.devices)
        unused = f"{total - count} of {total} devices stay unused: the plan is no faster with them"
        plan = self.problem.plan(stages, planner, [unused] if count < total else [])
        return replace(plan, estimate=estimate(plan, self.problem))


def bytes_around(problem: Problem, cuts: Cuts, *, between_hosts: bool) -> Around:
    """Bytes at the two boundaries of each interval, [S, S] each: at its beginning forwards and backwards, at its end.

    A tensor enters at the beginning if it comes from before and is read inside. It leaves at the end if it comes from
    inside and is read behind. What comes from before and is read behind stays outside.
    """
    table, graph = problem.table, problem.graph
    bytes_of = table.crossing(between_hosts=between_hosts)
    column = {layer: k for k, layer in enumerate(cuts.layers)}
    members, size = cuts.members.astype(bool), len(cuts)
    crossing = [np.zeros((size, size)) for _ in range(4)]
    owned: list[dict[int, Flags]] = [{}, {}]
    for layer, consumers in enumerate(graph.consumers):
        if not consumers:
            continue
        computed = members[:, column[layer]] if layer in column else np.ones(size, dtype=bool)
        readers = [members[:, column[reader]] for reader in consumers if reader in column]
        inside = np.logical_or.reduce([(reader[None, :] & ~reader[:, None]) for reader in readers])
        behind = np.logical_or.reduce([~reader for reader in readers])
        ways = computed[:, None] & inside, computed[None, :] & ~computed[:, None] & behind[None, :]
        owner = table.coordinate_owner[layer]
        for way, crosses in enumerate(ways):
            crossing[2 * way] += crosses * bytes_of.outputs[layer, 0]
            crossing[2 * way + 1] += crosses * bytes_of.gradients[layer, 0]
            owned[way][owner] = owned[way].get(owner, np.zeros_like(crosses)) | crosses
    for way, owners in enumerate(owned):
        for owner, crosses in owners.items():
            size_of = table.input_coordinates if owner < 0 else bytes_of.coordinates[owner]
            crossing[2 * way] += crosses * float(size_of[0])
    return crossing[0], crossing[1], crossing[2], crossing[3]


def with_cuts_moved(plan: Plan, problem: Problem, *, low: float) -> Plan:
    """Move cuts of a plan in turn by a few layers while that makes it faster, until its period is near `low`."""
    order, until = [id for stage in plan.stages for id in stage.layers], time.process_time() + _SECONDS
    position = {id: k for k, id in enumerate(order)}
    best, improved = plan, True
    while improved and _period(best) > _ALIKE * low:
        improved = False
        ends = [position[stage.layers[-1]] + 1 for stage in best.stages]
        for k in range(len(ends) - 1):
            for step in (sign * distance for distance in _STEPS for sign in (-1, 1)):
                moved = [*ends[:k], ends[k] + step, *ends[k + 1 :]]
                if not (moved[k - 1] if k else 0) < moved[k] < moved[k + 1]:
                    continue
                if time.process_time() > until:
                    return best
                other = _along(best, order, moved, problem)
                if _period(other) < _period(best) and not beyond_memory(other, problem.cluster):
                    best, ends, improved = other, moved, True
    return best


def _along(plan: Plan, order: Sequence[str], ends: Sequence[int], problem: Problem) -> Plan:
    index = problem.graph.index
    runs = zip(plan.stages, (0, *ends), ends, strict=False)
    stages = [problem.stage([index[id] for id in order[a:b]], stage.ranks) for stage, a, b in runs]
    moved = replace(plan, stages=tuple(stages), estimate=None)
    return replace(moved, estimate=estimate(moved, problem))


def _alike(problem: Problem) -> bool:
    return len({device.type.name for device in problem.cluster.devices}) == len(problem.cluster.nodes) == 1


def _seconds(problem: Problem, kind: str) -> Array:
    again = problem.table.forward[kind][:, 0] if problem.recompute else 0.0
    seconds: Array = problem.alone(kind) + again
    return seconds


def _period(plan: Plan) -> float:
    assert plan.estimate is not None
    return plan.estimate.period_seconds


def _sent_bytes(plan: Plan) -> float:
    assert plan.estimate is not None
    return sum(stage.sent_bytes for stage in plan.estimate.stages)


def _with_bound(plan: Plan, bound: float) -> Plan:
    assert plan.estimate is not None
    return replace(plan, estimate=replace(plan.estimate, lower_bound_seconds=min(bound, _period(plan))))
