"""SparsePipe's heterogeneous planner as published, with its faults, as a baseline.

Devices of a server form a fixed list, the most numerous type first, and a stage gets a consecutive slice of it. A stage
runs at the pace of its slowest type (judged on the whole network), replicas share evenly, averaging is charged 2(m−1)/m
of the weights, transfers 2 × bytes / bandwidth whatever the replication. Sizes come from the first type listed. Its
faults:

* a last stage on m devices is accepted only where m is 1 or even and the devices before it are more than m, so two
  devices, or two servers, can never form a pipeline;
* `exchange_gpu` swaps devices after the search and the period is not computed again;
* with several servers, each server is one device of an upper level, and only the slowest server of an upper stage gets
  its layers: the others are left without any, which the plan's warnings say;
* with `straight_pipeline`, if nothing was feasible before, the first split found is accepted as it is;
* the data-parallel time it compares with divides by the number of servers and takes the first type's times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...util.io.settings import Settings
from ...util.text.numbers import duration
from ...values.costs import Array
from ...values.plan import Estimate, Plan, StageEstimate
from ..base import COMPRESSION_RATIO, Problem
from ..estimate import with_sizes
from .pipedream import (
    STRAIGHT_PIPELINE,
    USE_MEMORY_CONSTRAINT,
    PublishedOptions,
    _times,
    memory_limit,
    total_seconds_between,
)
from .pipedream_states import States

Assignment = list[tuple[int, int, list[str]]]  # (first state, last state, names of the devices)


@dataclass(frozen=True, eq=False)
class Slices:
    """The recurrence over prefixes of one list of devices that are not identical."""

    states: States
    devices: tuple[str, ...]  # names, in the list's order; like devices share a name
    seconds: dict[str, Array]  # name → T[i, j]
    inside: dict[str, int]  # name → GPUs in one of them
    parameters: Array
    activations: Array
    bandwidth: float
    settings: PublishedOptions

    @cached_property
    def slow_to_fast(self) -> list[str]:
        """Names by the time that the whole network takes on them."""
        return sorted(dict.fromkeys(self.devices), key=lambda name: -self.seconds[name][0, -1])

    def slowest(self, names: Sequence[str]) -> str:
        return next(name for name in self.slow_to_fast if name in names)

    def one_stage(self, m: int) -> Array:
        """One stage on the first m devices, [i, j]."""
        names = self.devices[:m]
        gpus = sum(self.inside[name] for name in names)
        averaging = 2 * (gpus - 1) * self.parameters / (self.bandwidth * gpus)
        seconds = (self.seconds[self.slowest(names)] + averaging) / m
        return np.where(self._fits(len(self.devices) - m, m), seconds, np.inf)

    def last_stage(self, m: int, last: int) -> Array:
        """[k, j]: a last stage of states k+1..j on the `last` devices that end the first m."""
        averaging = 2 * (last - 1) * self.parameters / (self.bandwidth * last)
        seconds = (self.seconds[self.slowest(self.devices[m - last : m])] + averaging) / last
        seconds = np.where(self._fits(len(self.devices) - m, last), seconds, np.inf)[1:]
        if self.settings.activation_compression_ratio is not None:
            entering = 2 * self.states.out / self.bandwidth / self.settings.activation_compression_ratio
            leaving = entering.copy()
            leaving[-1] = 0.0
            seconds = np.maximum(np.maximum(seconds, entering[:, None]), leaving)
        return np.where(self.states.precedes, seconds, np.inf)

    def _fits(self, behind: int, count: int) -> NDArray[np.bool_] | bool:
        if self.settings.memory_bytes is None:
            return True
        return -(-behind // count) * (self.activations + self.parameters) <= self.settings.memory_bytes

    def last_counts(self, m: int) -> list[int]:
        """Sizes that a last stage may have among the first m devices."""
        if self.settings.straight_pipeline:
            return [1] if m > 1 else []
        return [last for last in range(1, m) if (last == 1 or last % 2 == 0) and m - last > last]

    @cached_property
    def best(self) -> Array:
        """A[i, j, m]: seconds per minibatch of states i..j on the first m + 1 devices."""
        answer = np.full((*self.parameters.shape, len(self.devices)), np.inf)
        for m in range(1, len(self.devices) + 1):
            straight = self.settings.straight_pipeline and m > 1
            best = np.full(self.parameters.shape, np.inf) if straight else self.one_stage(m)
            for last in self.last_counts(m):
                step = self.last_stage(m, last)
                for i in range(len(answer)):
                    reached = np.maximum(answer[i, :, m - last - 1, None], step)
                    best[i] = (
                        _first(reached)
                        if straight and not m - last > last
                        else np.minimum(best[i], reached.min(axis=0))
                    )
            answer[:, :, m - 1] = best
        return answer

    def assignment(self, i: int, j: int) -> Assignment:
        """The stages behind A[i, j] on all devices."""
        m, stages = len(self.devices), []
        while True:
            value = self.best[i, j, m - 1]
            if (m == 1 or not self.settings.straight_pipeline) and self.one_stage(m)[i, j] <= value:
                break
            k, last = self._split(i, j, m, value)
            stages.append((k + 1, j, list(self.devices[m - last : m])))
            j, m = k, m - last
        return [(i, j, list(self.devices[:m])), *reversed(stages)]

    def _split(self, i: int, j: int, m: int, value: float) -> tuple[int, int]:
        options = []
        for last in self.last_counts(m):
            reached = np.maximum(self.best[i, :, m - last - 1], self.last_stage(m, last)[:, j])
            options += [(int(k), last) for k in np.flatnonzero(reached <= value)]
        return min(options)


def _first(reached: Array) -> Array:
    """For each column the first finite entry: what the original accepts if nothing was feasible before."""
    finite = np.isfinite(reached)
    chosen = reached[finite.argmax(axis=0), np.arange(reached.shape[1])]
    return np.where(finite.any(axis=0), chosen, np.inf)


def exchange_gpu(stages: list[list[str]]) -> list[list[str]]:
    """Swap devices after the search: a stage's only device for the odd one in a larger stage of its type."""
    stages = [list(names) for names in stages]
    for single in stages:
        if len(single) > 1:
            continue
        for other in stages:
            odd = [name for name in other if name != single[0]]
            if len(other) > 1 and len(odd) == 1 and single[0] in other:
                other[:] = [single[0]] * len(other)
                single[:] = odd
                break
    return stages


@dataclass(frozen=True, repr=False)
class SparsePipe(Settings):
    """SparsePipe's planner (2020) for servers (nodes) with devices of several types."""

    activation_compression_ratio: float | None = field(default=None, metadata=COMPRESSION_RATIO)
    use_memory_constraint: bool | None = field(default=None, metadata=USE_MEMORY_CONSTRAINT)
    straight_pipeline: bool = field(default=False, metadata=STRAIGHT_PIPELINE)
    name = "sparsepipe-2020"

    def plan(self, problem: Problem) -> Plan:
        """Raises InputError for networks with too many states and if nothing is feasible."""
        cluster = problem.cluster
        first = cluster.devices[0].type.name
        memory = memory_limit(problem, self.use_memory_constraint)
        settings = PublishedOptions(self.activation_compression_ratio, memory, self.straight_pipeline)
        states = States.of(problem, first)
        parameters = states.between(states.total(lambda k: problem.graph.layers[k].parameter_bytes))
        activations = states.between(states.total(lambda k: problem.profile.cost(k, first, problem.size).output_bytes))
        servers: dict[str, Slices] = {}
        for node in cluster.nodes:
            counts: dict[str, int] = {}
            for kind in node.device_types:
                counts[kind.name] = counts.get(kind.name, 0) + 1
            listed = sorted(counts, key=lambda name: -counts[name])  # ties keep the order of the file
            names = tuple(name for name in listed for _ in range(counts[name]))
            times = {name: total_seconds_between(states, name) for name in listed}
            servers[node.name] = Slices(
                states, names, times, dict.fromkeys(names, 1), parameters, activations, node.link.bandwidth, settings
            )
        if len(servers) == 1:
            top = next(iter(servers.values()))
            used = [
                (server, *piece) for server, piece in self._inside(servers, cluster.nodes[0].name, 0, len(states) - 1)
            ]
        else:
            top = _upper_level(states, servers, parameters, activations, cluster.network.bandwidth, settings)
            used = [
                (server, *piece)
                for a, b, group in top.assignment(0, len(states) - 1)
                for server, piece in self._inside(servers, top.slowest(group), a, b)
            ]
        period = float(top.best[0, -1, -1])
        if not np.isfinite(period):
            raise InputError("planner.no_plan", f"{self.name} finds no feasible plan; allow more memory or replication")
        return self._plan(problem, states, used, period)

    def _inside(
        self, servers: dict[str, Slices], server: str, i: int, j: int
    ) -> list[tuple[str, tuple[int, int, list[str]]]]:
        """Stages of states i..j on one server, devices exchanged."""
        pieces = servers[server].assignment(i, j)
        exchanged = exchange_gpu([names for _, _, names in pieces])
        return [(server, (a, b, names)) for (a, b, _), names in zip(pieces, exchanged, strict=True)]

    def _plan(
        self, problem: Problem, states: States, used: list[tuple[str, int, int, list[str]]], period: float
    ) -> Plan:
        cluster = problem.cluster
        free = [(device.node.name, device.type.name, device.rank) for device in cluster.devices]
        layers = states.stages([b for _, _, b, _ in used])
        stages, estimates = [], []
        for stage_layers, (server, _, _, names) in zip(layers, used, strict=True):
            ranks = []
            for name in names:
                free_slot = next(entry for entry in free if entry[:2] == (server, name))
                free.remove(free_slot)
                ranks.append(free_slot[2])
            stages.append(problem.stage(stage_layers, ranks))
            slowest = max(set(names), key=problem.total_seconds)
            estimates.append(StageEstimate(sum(sum(_times(problem, k, slowest)) for k in stage_layers) / len(names)))
        idle = sorted({node.name for node in cluster.nodes} - {server for server, *_ in used})
        warnings = [
            f"the published planner gives {', '.join(idle)} no layers but assumes them in its predicted period "
            f"({duration(period)}), which this plan cannot reach"
        ]
        first = cluster.devices[0].type.name
        single = sum(sum(_times(problem, k, first)) for k in problem.layers)
        weights = sum(layer.parameter_bytes for layer in problem.graph.layers)
        estimate = Estimate(
            period, tuple(estimates), None, 0.0, single, _data_parallel(problem, single, weights), problem.size
        )
        return with_sizes(problem.plan(stages, self.name, warnings if idle else []), estimate, problem)


def _upper_level(
    states: States,
    servers: dict[str, Slices],
    parameters: Array,
    activations: Array,
    bandwidth: float,
    settings: PublishedOptions,
) -> Slices:
    """Servers as devices, the fastest first."""
    seconds = {name: level.best[:, :, -1] for name, level in servers.items()}
    names = tuple(sorted(servers, key=lambda name: seconds[name][0, -1]))
    inside = {name: len(level.devices) for name, level in servers.items()}
    return Slices(states, names, seconds, inside, parameters, activations, bandwidth, settings)


def _data_parallel(problem: Problem, single: float, weights: float) -> float:
    """Its data-parallel time: the first type's, divided by the GPUs of one server or by the number of servers."""
    nodes = problem.cluster.nodes
    count = len(nodes) if len(nodes) > 1 else len(nodes[0].device_types)
    bandwidth = problem.cluster.network.bandwidth if len(nodes) > 1 else nodes[0].link.bandwidth
    return (single + 2 * (count - 1) * weights / (bandwidth * count)) / count
