"""Plans whose devices share scenes, cut in space: one stage, or the best of several stages of any kind.

A stage has consecutive devices, of one of three kinds: one device, replicas with equal shares, or devices that share
each scene. A chain of cuts, taken from the back, has for each stage and each first cut the best value of what follows:

    best[group, later, a] = min over b of max(busy[group, a, b], behind[group, later, b]).

    behind[group, later, b] = min over the next devices' groups of max(port[b], best[next, later, b]).

`later` is the number of minibatches that later stages compute at once: it decides how many minibatches a stage holds,
and so its memory. A synchronous schedule adds latencies up, so there sums take the place of the outer
maxima. Stages then stay below a limit of time, of which several are tried.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, inf
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..util.io.settings import Flag, Settings, setting
from ..util.text.numbers import duration
from ..values.costs import OPTIMIZER_SLOTS, Array, averaging_time, boundary_link, copies, depth, port_loads
from ..values.plan import Plan, Stage
from ..values.plan_parts import SPACE
from .base import Problem
from .cuts import Cuts, least_payload_order
from .estimate import baseline_data_parallel, between_hosts, beyond_memory, estimate

_MOST_DEVICES = 32
_MOST_CUTS = 128
_LIMITS = 24  # of time, tried for a synchronous schedule


@dataclass(frozen=True, repr=False)
class SpaceParallel(Settings):
    """One stage over all devices, which share each scene, cut in space: faster devices get larger parts.

    `weigh_stages`: plan pipelines too, in which some stages share scenes, some have replicas and others one device.
    The plan with the smallest estimated period within memory is chosen; a warning lists the others. Stages have
    consecutive devices, from the first on. Time that devices take to send, and samples that later stages read again,
    count in estimates only.
    """

    weigh_stages: bool = setting(
        False, Flag(), "weigh pipelines of several stages, with and without shared scenes, and choose the fastest"
    )
    name = "space"

    def plan(self, problem: Problem) -> Plan:
        devices = range(len(problem.cluster.devices))
        whole = _estimated([shared_stage(problem, problem.layers, devices)], problem)
        if not self.weigh_stages:
            return whole
        if len(devices) > _MOST_DEVICES:
            raise InputError(
                "planner.too_many_devices",
                f"{{weigh_stages}} plans at most {_MOST_DEVICES} devices, the cluster has {len(devices)}; omit it",
                setting="weigh_stages",
            )
        replicas = _estimated(baseline_data_parallel(problem).stages, problem)
        tried = {"one shared stage": [whole], "replicas of the network": [replicas]}
        tried["stages without shared scenes"] = [*_Search(problem, shared=False).plans()]
        tried["stages of any kind"] = [*_Search(problem, shared=True).plans()]
        best = {
            name: min(plans, key=_period)
            for name, every in tried.items()
            if (plans := [plan for plan in every if not beyond_memory(plan, problem.cluster)])
        }
        if not best:
            return whole
        fastest = min(best, key=lambda name: _period(best[name]))
        period = _period(best[fastest])
        others = [
            f"{name} {duration(_period(best[name]))} ({_period(best[name]) / period:.2f} ×)"
            if name in best
            else f"{name} not within memory"
            for name in tried
            if name != fastest
        ]
        warning = f"chosen: {fastest}, {duration(period)} per minibatch (estimated); {', '.join(others)}"
        return replace(best[fastest], warnings=(warning, *best[fastest].warnings))


def shared_stage(problem: Problem, layers: Sequence[int], devices: Sequence[int]) -> Stage:
    """Return a stage whose devices share each scene, with parts by their speeds. One device has whole scenes."""
    seconds = [problem.total_seconds(problem.cluster.devices[device].type.name) for device in devices]
    slowest = max(seconds)
    # In quarters of the slowest device's part: borders are not placed more exactly than that.
    shares = [max(1, round(4 * slowest / each)) if each else 4 for each in seconds]
    whole = problem.stage(layers, devices, [share // gcd(*shares) for share in shares])
    return replace(whole, sharding=SPACE) if len(devices) > 1 else whole


def _estimated(stages: Sequence[Stage], problem: Problem) -> Plan:
    plan = problem.plan(stages, SpaceParallel.name)
    return replace(plan, estimate=estimate(plan, problem))


def _period(plan: Plan) -> float:
    assert plan.estimate is not None
    return plan.estimate.period_seconds


class DeviceRun(NamedTuple):
    """Consecutive devices that have a stage."""

    start: int
    size: int
    shared: bool

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def num_replicas(self) -> int:
        """Number of minibatches that the devices compute at once."""
        return 1 if self.shared else self.size


class _Costs(NamedTuple):
    """Seconds of some devices in the stages between cuts, [S, S] each."""

    latency: Array  # of a minibatch
    busy: Array  # per minibatch
    work: Array  # of the busiest device in a step, but for its first minibatch


class _Boundaries(NamedTuple):
    """Seconds between some devices and each group of the next ones, at each cut: [groups, S] each."""

    groups: list[DeviceRun]
    ports: Array  # of the busiest port, per minibatch
    crossing: Array  # of a minibatch, there and back


Path = list[tuple[DeviceRun, int, int]]  # (devices, first cut, last cut) of each stage


@dataclass(frozen=True, eq=False)
class _Search:
    """Stages along one chain of cuts, on devices in the cluster's order."""

    problem: Problem
    shared: bool  # whether stages may share scenes

    @cached_property
    def cuts(self) -> Cuts:
        """The cuts of the chain."""
        table = self.problem.table
        cuts = Cuts.along(table, least_payload_order(table, self.problem.layers))
        return cuts if len(cuts) <= _MOST_CUTS else cuts.thinned(table, _MOST_CUTS)

    def groups(self, start: int) -> list[DeviceRun]:
        """Return the groups that begin with a device."""
        counts = range(1, len(self.problem.cluster.devices) - start + 1)
        kinds = [DeviceRun(start, count, False) for count in counts]
        return kinds + [DeviceRun(start, count, True) for count in counts if self.shared and count > 1]

    def plans(self) -> Iterator[Plan]:
        """Yield plans of the best stages: one, or for a synchronous schedule one for each limit that leaves any."""
        limits = [inf]
        if self.problem.synchronous:
            longest = max(float(self.costs[group].work[0, -1]) for group in self.groups(0))
            limits = np.geomspace(longest / 4 / len(self.problem.cluster.devices), longest, _LIMITS).tolist()
        known: Path = []
        for limit in limits:
            path = self.best(limit)
            if path and path != known:
                known = path
                yield _estimated([self.stage(*own) for own in path], self.problem)

    def stage(self, group: DeviceRun, first: int, last: int) -> Stage:
        """Return the stage of some devices between two cuts."""
        layers, devices = self.cuts.between(first, last), range(group.start, group.end)
        return shared_stage(self.problem, layers, devices) if group.shared else self.problem.stage(layers, devices)

    @cached_property
    def models(self) -> dict[DeviceRun, Stage]:
        """Return for each group a stage of all layers, which stands for all of its stages."""
        every = [group for start in range(len(self.problem.cluster.devices)) for group in self.groups(start)]
        return {group: self.stage(group, 0, len(self.cuts) - 1) for group in every}

    @cached_property
    def costs(self) -> dict[DeviceRun, _Costs]:
        """The costs of each group."""
        return {group: self._costs(group, model) for group, model in self.models.items()}

    def _costs(self, group: DeviceRun, model: Stage) -> _Costs:
        problem, table = self.problem, self.problem.table
        latency = np.zeros((len(self.cuts), len(self.cuts)))
        for kind, part in zip(model.device_types, model.parts_of_work(), strict=True):
            passes = table.seconds[kind][:, 0] + (table.forward[kind][:, 0] if model.recompute else 0.0)
            latency = np.maximum(latency, part * self._between(passes))
        if group.shared:
            layers = range(len(problem.graph.layers))
            halos = np.array([table.halo_seconds(problem.cluster, model, [k])[0] for k in layers])
            sizes = (size[:, 0] for size in self.cuts.payloads(table))
            forward, backward = (table.gathering_seconds(problem.cluster, model, size) for size in sizes)
            forward[-1] = backward[0] = 0.0
            latency = latency + 2 * self._between(halos) + forward[None, :] + backward[:, None]
        start = averaging_time(problem.cluster, model.ranks, 0.0)
        slope = averaging_time(problem.cluster, model.ranks, 1.0) - start
        rate = max(table.update_rates[kind] for kind in model.device_types)
        once = start + (slope + rate) * self._between(table.parameter_bytes)
        of_round = problem.num_microbatches if problem.synchronous else group.num_replicas
        turns = -(-problem.num_microbatches // group.num_replicas)
        return _Costs(latency, latency / group.num_replicas + once / of_round, (turns - 1) * latency + once)

    def _between(self, of_layers: Array) -> Array:
        """Sum a quantity of layers over those between cuts, [S, S]."""
        before = self.cuts.total(of_layers)
        sums: Array = before[None, :] - before[:, None]
        return sums

    def fits(self, group: DeviceRun, later: int) -> NDArray[np.bool_]:
        """Return whether stages fit into memory, with so many minibatches at once in later ones: bool [S, S]."""
        problem, model = self.problem, self.models[group]
        limit = problem.memory_limit(model)
        if limit == inf:
            return np.ones((len(self.cuts), len(self.cuts)), dtype=bool)
        shares = (1,) if group.shared else model.shares
        versions, minibatches = depth(problem.schedule, problem.num_microbatches, shares, later)
        saved, working, incoming = self._memory
        weights = self._between(problem.table.parameter_bytes)
        gradients = np.minimum(weights, working)  # as weights, whole on each device
        waiting = minibatches * incoming + (0.0 if model.recompute else (minibatches - 1) * saved)
        of_minibatches = max(model.parts_of_work()) * (waiting + working - gradients)
        enough: NDArray[np.bool_] = weights * (versions + OPTIMIZER_SLOTS) + gradients + of_minibatches <= limit
        return enough

    @cached_property
    def _memory(self) -> tuple[Array, Array, Array]:
        """Bytes of a minibatch in the stages between cuts: kept [S, S], at work [S, S], received [S, 1]."""
        table, count = self.problem.table, len(self.cuts)
        saved, working = np.zeros((count, count)), np.zeros((count, count))
        first, last = np.triu_indices(count, 1)
        saved[first, last], working[first, last], _ = self.cuts.stage_bytes(table)(first, last)
        return saved, working, self.cuts.payloads(table, held=True)[0][:, 1:2]

    @cached_property
    def boundaries(self) -> dict[DeviceRun, _Boundaries]:
        """The links between each group and those behind it."""
        return {group: self._boundaries(group) for group in self.models}

    def _boundaries(self, group: DeviceRun) -> _Boundaries:
        problem, behind = self.problem, self.groups(group.end)
        ports, crossing = np.zeros((len(behind), len(self.cuts))), np.zeros((len(behind), len(self.cuts)))
        for k, following in enumerate(behind):
            pair = self.models[group], self.models[following]
            apart = between_hosts(problem, pair)
            link = boundary_link(problem.cluster, (*pair[0].ranks, *pair[1].ranks))
            sizes = self.cuts.payloads(problem.table, between_hosts=problem.easier or apart)
            forward, backward = (link.latency + size[:, 0] / link.bandwidth for size in sizes)
            loads, packets = port_loads(problem.cluster, pair, network=apart), copies(pair)
            ports[k] = np.maximum(loads[0] * forward, loads[1] * backward)
            crossing[k] = packets[0] * forward + packets[1] * backward
        return _Boundaries(behind, ports, crossing)

    def best(self, limit: float) -> Path:
        """Return the best stages of which none takes longer in a step than a limit; no stages if there are none."""
        problem, size, count = self.problem, len(self.problem.cluster.devices), len(self.cuts)
        combined = np.add if problem.synchronous else np.maximum
        below: NDArray[np.bool_] = np.triu(np.ones((count, count), dtype=bool), 1)
        # (first device, minibatches at once from it on) → value of each group from each cut on, [groups, S]
        values: dict[tuple[int, int], Array] = {}
        choices: dict[tuple[DeviceRun, int], tuple[Array, list[DeviceRun | None]]] = {}
        for start in reversed(range(size)):
            for number, group in enumerate(self.groups(start)):
                costs, boundaries = self.costs[group], self.boundaries[group]
                cost, crossing, allowed = costs.busy, boundaries.ports, below
                if problem.synchronous:
                    cost, allowed = costs.latency, below & (costs.work <= limit)
                    over = (problem.num_microbatches - 1) * boundaries.ports > limit
                    crossing = np.where(over, inf, boundaries.crossing)
                for later in range(size - group.end + 1):
                    behind, following = np.full(count, inf), list[DeviceRun | None]([None] * count)
                    if (known := values.get((group.end, later))) is not None:
                        totals = combined(crossing, known)
                        behind, following = totals.min(axis=0), [boundaries.groups[k] for k in totals.argmin(axis=0)]
                    if not later:
                        behind[-1] = 0.0
                    if np.isinf(behind).all():
                        continue
                    whole = np.where(allowed & self.fits(group, later), combined(cost, behind[None, :]), inf)
                    choices[group, later] = whole.argmin(axis=1), following
                    place = start, later + group.num_replicas
                    values.setdefault(place, np.full((len(self.groups(start)), count), inf))
                    values[place][number] = whole.min(axis=1)
        firsts = [
            (float(known[number, 0]), group, replicas - group.num_replicas)
            for (start, replicas), known in values.items()
            for number, group in enumerate(self.groups(start))
            if not start
        ]
        least, group, later = min(firsts, key=itemgetter(0))
        path, first, following_group = Path(), 0, None if least == inf else group
        while following_group is not None:
            ends, following = choices[following_group, later]
            path.append((following_group, first, int(ends[first])))
            first = path[-1][2]
            following_group = following[first]
            later -= following_group.num_replicas if following_group is not None else 0
        return path
