"""Baselines that leave nothing to choose in devices: data parallelism, one device a stage."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import comb, isqrt

import numpy as np

from ..errors import InputError
from ..util.io.settings import Settings, WholeNumber, setting
from ..util.text.numbers import number_of
from ..values.costs import Array
from ..values.plan import Plan
from .base import Problem, check_interleaves
from .cuts import Cuts, Index
from .estimate import baseline_data_parallel, estimate

Bounds = tuple[int, ...]  # 0, where each stage but the first begins, the number of layers
_FEW = 50_000  # cuts of which all are tried; of pairs of moved cuts so many at once, about
_ALIKE = 1.005  # most loaded devices that count as equally loaded


def lap_bounds(
    start: Bounds, seconds: Sequence[Sequence[float]], size: int, *, crossing: Sequence[float], kept: Sequence[float]
) -> Bounds:
    """Cut where the most loaded device has least to do; among cuts that are equally good, where fewest bytes move.

    `seconds[k]` are those of every layer on the device of stage k, which is that of stage k + `size` too. Bytes move
    across cuts, `crossing` at each place, and in the update of every stage but the last: `kept` of each layer, whose
    older versions stay. All cuts are tried if there are few; else those of `start` are moved, two at a time, until
    no pair helps: anywhere between their neighbours, of many layers only so far that few pairs are tried at once.
    """
    before = [np.concatenate([[0.0], np.cumsum(row)]) for row in seconds]
    crosses, weights = np.asarray(crossing), np.concatenate([[0.0], np.cumsum(kept)])

    def loads(bounds: Index) -> Array:
        """Seconds of the most loaded device, for each row of bounds."""
        stages = [row[b] - row[a] for row, a, b in zip(before, bounds.T, bounds.T[1:], strict=False)]
        return np.max([sum(stages[k::size]) for k in range(size)], axis=0)

    num_layers, num_cuts = start[-1], len(seconds) - 1
    if comb(num_layers - 1, num_cuts) <= _FEW:
        every = combinations(range(1, num_layers), num_cuts)
        tried = np.array([(0, *cuts, num_layers) for cuts in every], dtype=np.intp)
        most = loads(tried)
    else:
        tried = np.array([start], dtype=np.intp)
        most = loads(tried)
        best, least = tried[0], most[0]
        reach = max(1, isqrt(_FEW // comb(num_cuts, 2)) // 2)
        while True:
            around = _moved(best, reach)
            path_loads = loads(around)
            tried, most = np.concatenate([tried, around]), np.concatenate([most, path_loads])
            if path_loads.min() >= least:
                break
            best, least = around[path_loads.argmin()], path_loads.min()
    alike = tried[most <= _ALIKE * most.min()]
    moved = sum(crosses[alike[:, 1:-1]].T) + weights[alike[:, -2]]
    return tuple(alike[moved.argmin()].tolist())


def _moved(bounds: Index, reach: int) -> Index:
    """The bounds with two cuts between their neighbours, each moved by at most `reach` layers, a row each."""
    moved_cuts = []
    for i, j in combinations(range(1, len(bounds) - 1), 2):
        neighbours = i + 1 == j
        ends = bounds[j + 1 if neighbours else i + 1], bounds[j + 1]
        begins = bounds[i - 1] + 1, bounds[i - 1 if neighbours else j - 1] + 1
        first, second = (
            np.arange(max(begin, bounds[cut] - reach), min(end, bounds[cut] + reach + 1))
            for cut, begin, end in zip((i, j), begins, ends, strict=True)
        )
        rows, columns = np.nonzero(first[:, None] < second)
        moved = np.repeat(bounds[None], len(rows), axis=0)
        moved[:, i], moved[:, j] = first[rows], second[columns]
        moved_cuts.append(moved)
    return np.concatenate(moved_cuts)


@dataclass(frozen=True)
class DataParallel:
    """One stage, replicated on all devices with equal shares."""

    name = "data-parallel"

    def plan(self, problem: Problem) -> Plan:
        plan = baseline_data_parallel(problem)
        return replace(plan, estimate=estimate(plan, problem))


@dataclass(frozen=True, repr=False)
class ModelParallel(Settings):
    """One device per stage, in rank order, with the smallest time of the slowest stage; transfers are ignored.

    `stages_per_device`: so many on each, interleaved (Narayanan et al., SC 2021), placed as the schedule says; as few
    as it allows when not given. Without flushes the busiest device is then least busy with all its stages
    (see `lap_bounds`); with them, small stages make a small bubble. Devices beyond the number of layers stay unused,
    which a warning says; several stages per device that no longer leave a layer for each of all devices' stages are
    refused.
    """

    stages_per_device: int | None = setting(
        None, WholeNumber(1), "number of interleaved stages per device", unit="V", words="minimum of the schedule"
    )
    name = "model-parallel"

    def plan(self, problem: Problem) -> Plan:
        rules = problem.rules
        several = rules.stages_per_rank[0] if self.stages_per_device is None else self.stages_per_device
        check_interleaves(problem.schedule, several)
        layers, num_devices = problem.layers, len(problem.cluster.devices)
        if several > len(layers):
            raise InputError(
                "planner.too_many_stages",
                f"{number_of(several, 'stage')} for {number_of(len(layers), 'layer')}: expected at least one layer "
                "per stage",
            )
        if several > 1 and several * num_devices > len(layers):
            raise InputError(
                "planner.too_many_stages",
                f"{number_of(several, 'stage')} on each of {number_of(num_devices, 'device')}, but the network has "
                f"only {number_of(len(layers), 'layer')}; use at most "
                f"{number_of(max(1, len(layers) // num_devices), 'stage')} stages per device",
            )
        used = min(num_devices, len(layers))
        kinds = [device.type.name for device in problem.cluster.devices[:used]]
        of_device = [problem.alone(kind)[list(layers)].tolist() for kind in kinds]
        devices = [rules.position(k, used) for k in range(several * used)]
        seconds = [of_device[device] for device in devices]
        bounds = _balanced(seconds)
        if several > 1 and not problem.synchronous:
            sizes = Cuts.along(problem.table, layers).payloads(problem.table)
            crossing = (sizes[0] + sizes[1])[:, 0].tolist() if used > 1 else [0.0] * (len(layers) + 1)
            weight_bytes = problem.table.parameter_bytes[list(layers)].tolist()
            bounds = lap_bounds(bounds, seconds, used, crossing=crossing, kept=weight_bytes)
        runs = zip(devices, pairwise(bounds), strict=True)
        stages = [problem.stage(layers[a:b], (device,)) for device, (a, b) in runs]
        unused = (
            f"{num_devices - used} of {num_devices} devices stay unused: the network has "
            f"{number_of(len(layers), 'layer')}"
        )
        plan = problem.plan(stages, self.name, [unused] if used < num_devices else [])
        return replace(plan, estimate=estimate(plan, problem))


def _balanced(seconds: list[list[float]]) -> Bounds:
    """Cut layers into a consecutive, non-empty run for each row of `seconds`, so that the slowest run is fastest."""
    num_layers, num_stages = len(seconds[0]), len(seconds)
    if num_layers < num_stages:
        raise InputError(
            "planner.too_many_stages",
            f"{number_of(num_stages, 'stage')} for {number_of(num_layers, 'layer')}: expected at least one layer per "
            "stage",
        )
    best, came_from = np.array([0.0] + [np.inf] * num_layers), []
    for row in map(np.asarray, seconds):
        reached, start = np.full(num_layers + 1, np.inf), np.zeros(num_layers + 1, dtype=np.intp)
        run = np.zeros(num_layers + 1)  # seconds of the layers before each place, as many as `length`
        for length in range(1, num_layers + 1):
            run[length:] += row[: num_layers + 1 - length]
            slowest = np.maximum(best[: num_layers + 1 - length], run[length:])
            faster = np.flatnonzero(slowest < reached[length:])  # where a run begins that ends `length` layers later
            reached[faster + length], start[faster + length] = slowest[faster], faster
            if (run[length:] >= reached[length:]).all():
                break  # longer runs are slower still
        best = reached
        came_from.append(start)
    bounds = [num_layers]
    for start in reversed(came_from):
        bounds.append(int(start[bounds[-1]]))
    return tuple(bounds[::-1])
