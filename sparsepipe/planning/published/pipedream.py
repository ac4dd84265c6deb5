"""PipeDream's planner as published, as a baseline: one type of device, in one level or several.

Source: Narayanan et al., SOSP 2019, section 3.1, and the optimizer published with it. The cost model is theirs, with
its faults, so that its answers can be compared:

* transfers between stages cost nothing unless an activation compression ratio is given (1 charges them in full);
* gradient averaging is charged 4(m−1)/m of the weights (SparsePipe's copy: 2), one after the other with computation;
* the first stage's own transfer at its own replication is never charged;
* the memory rule (activations and weights × ⌈machines behind / replicas⌉) never binds for the last stage or for pure
  data parallelism, and knows no optimizer state; all devices are used unless `use_fewer_machines`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...util.io.fields import shown
from ...util.io.settings import Choice, Flag, Settings, row, setting
from ...util.text.numbers import number_of
from ...values.costs import Array
from ...values.plan import Estimate, Plan, StageEstimate
from ..base import COMPRESSION_RATIO, Problem
from ..estimate import with_sizes
from .pipedream_states import States

STRAIGHT_PIPELINE = row(Flag(), "no replication")
USE_MEMORY_CONSTRAINT = row(Flag(), "memory of each device as a limit", words="if a device type has a limit")


@dataclass(frozen=True)
class PublishedOptions:
    """The options of the published planner."""

    activation_compression_ratio: float | None = None
    memory_bytes: float | None = None  # limit of one device; None: not looked at
    straight_pipeline: bool = False  # no replication
    use_fewer_machines: bool = False


@dataclass(frozen=True, eq=False)
class Level:
    """One level of the recurrence: `num_devices` like devices with `bandwidth` between them."""

    states: States
    seconds: Array  # T[i, j], of states i..j on one device of this level
    parameters: Array  # P[i, j]
    activations: Array
    num_devices: int
    bandwidth: float
    below: int  # devices of the level below in each of this one
    factor: float  # 4 in PipeDream, 2 in SparsePipe's copy
    settings: PublishedOptions

    def replicated(self, count: int, *, share: int = 1) -> Array:
        """Seconds per minibatch of one stage on `count` devices, [i, j]; `share` divides its averaging."""
        averaging = self.factor * (count - 1) * self.parameters / (self.bandwidth * count) / share
        return (self.seconds + averaging) / count

    def fits(self, behind: int, count: int) -> NDArray[np.bool_] | bool:
        """Return whether states i..j fit on `count` devices with `behind` devices after them, [i, j]."""
        if self.settings.memory_bytes is None:
            return True
        copies = -(-behind // count)
        return copies * (self.activations + self.parameters) <= self.settings.memory_bytes

    def transfer(self, count: int) -> Array:
        """Seconds that the output of each state takes to `count` receiving devices, [S]."""
        ratio = self.settings.activation_compression_ratio
        assert ratio is not None
        return 2 * self.states.out / (self.bandwidth * count) / ratio

    def last_stage(self, count: int, behind: int) -> Array:
        """[k, j]: what a last stage of states k+1..j on `count` devices adds; inf if k does not precede j."""
        seconds = np.where(self.fits(behind, count), self.replicated(count), np.inf)[1:]
        if self.settings.activation_compression_ratio is not None:
            leaving = self.transfer(count)
            entering, leaving[-1] = leaving.copy(), 0.0
            seconds = np.maximum(np.maximum(seconds, entering[:, None]), leaving)
        return np.where(self.states.precedes, seconds, np.inf)

    @cached_property
    def best(self) -> Array:
        """A[i, j, m]: seconds per minibatch of states i..j on m + 1 devices, in as many stages as is best."""
        return self._solve(self.seconds.shape[0])

    @cached_property
    def best_from_start(self) -> Array:
        """A[0, j, m], all that the outermost level needs, [1, S, N]."""
        return self._solve(1)

    def _solve(self, num_starts: int) -> Array:
        n = self.num_devices
        answer = np.full((num_starts, len(self.states), n), np.inf)
        for m in range(1, 2 if self.settings.straight_pipeline else n + 1):
            replicated_seconds = self.replicated(m, share=self.below)[:num_starts]
            answer[:, :, m - 1] = np.where(
                np.broadcast_to(self.fits(n - m, m), self.seconds.shape)[:num_starts], replicated_seconds, np.inf
            )
        for m in range(2, n + 1):
            best = answer[:, :, m - 1]
            if self.settings.use_fewer_machines:
                best = np.minimum(best, answer[:, :, m - 2])
            for last in self._last_counts(m):
                step = self._step(last, n - m)
                for i in range(num_starts):
                    best[i] = np.minimum(best[i], np.maximum(answer[i, :, m - last - 1, None], step).min(axis=0))
            answer[:, :, m - 1] = best
        return answer

    def _last_counts(self, m: int) -> range:
        return range(1, 2 if self.settings.straight_pipeline else m)

    def _step(self, count: int, behind: int) -> Array:
        key = (count, behind if self.settings.memory_bytes is not None else 0)
        if key not in self._steps:
            self._steps[key] = self.last_stage(count, behind)
        return self._steps[key]

    @cached_property
    def _steps(self) -> dict[tuple[int, int], Array]:
        return {}

    def split(self, i: int, j: int, m: int, answer: Array) -> list[tuple[int, int, int]]:
        """The stages (first state, last state, devices) behind A[i, j, m devices]: one stage wins ties."""
        stages = []
        while True:
            value = answer[i, j, m - 1]
            fits_row = np.broadcast_to(self.fits(self.num_devices - m, m), self.seconds.shape)[i, j]
            if (m == 1 or not self.settings.straight_pipeline) and fits_row:
                if self.replicated(m, share=self.below)[i, j] <= value:
                    break
            if m > 1 and self.settings.use_fewer_machines and answer[i, j, m - 2] <= value:
                m -= 1
                continue
            path = self._find(i, j, m, answer)
            stages.append((path[0] + 1, j, path[1]))
            j, m = path[0], m - path[1]
        return [(i, j, m), *reversed(stages)]

    def _find(self, i: int, j: int, m: int, answer: Array) -> tuple[int, int]:
        """(k, replicas) of the last stage that gives A[i, j, m]."""
        candidates = [
            np.maximum(answer[i, :, m - last - 1], self._step(last, self.num_devices - m)[:, j])
            for last in self._last_counts(m)
        ]
        best = np.array(candidates)  # [replicas, k]
        k, last = min(np.argwhere(best.min() == best.T).tolist())
        return k, last + 1


@dataclass(frozen=True, repr=False)
class PipeDream(Settings):
    """PipeDream's hierarchical planner, for identical devices and nodes with equal numbers of devices.

    On a mixed cluster it is as blind as the original: it plans for the slowest type, and the plan says so.
    """

    activation_compression_ratio: float | None = field(default=None, metadata=COMPRESSION_RATIO)
    use_memory_constraint: bool | None = field(default=None, metadata=USE_MEMORY_CONSTRAINT)
    straight_pipeline: bool = field(default=False, metadata=STRAIGHT_PIPELINE)
    use_fewer_machines: bool = setting(False, Flag(), "use of fewer machines, if that is faster")
    factor: float = setting(
        4.0, Choice((2.0, 4.0)), "cost factor of gradient synchronization; SparsePipe (2020) used 2"
    )
    name = "pipedream"

    def plan(self, problem: Problem) -> Plan:
        """Raises InputError for nodes of unequal size, networks with too many states, and if nothing is feasible."""
        kind, warnings = slowest_type(problem, "pipedream")
        counts = {len(node.device_types) for node in problem.cluster.nodes}
        if len(counts) > 1:
            unequal = ", ".join(f"{shown(node.name)} has {len(node.device_types)}" for node in problem.cluster.nodes)
            raise InputError(
                "planner.nodes_unequal",
                f"planner pipedream needs the same number of devices on every node, but {unequal}; use {{planner}}",
                setting={"planner": "optimal"},
            )
        nodes = problem.cluster.nodes
        sizes = [(len(nodes[0].device_types), min(node.link.bandwidth for node in nodes))]
        if len(nodes) > 1:
            sizes.append((len(nodes), problem.cluster.network.bandwidth))
        return self.plan_levels(problem, sizes, kind, warnings)

    def plan_levels(
        self, problem: Problem, sizes: Sequence[tuple[int, float]], kind: str, warnings: Sequence[str] = ()
    ) -> Plan:
        """Plan for levels of (devices, bandwidth), innermost first; rank = position in the innermost-fastest order."""
        memory = memory_limit(problem, self.use_memory_constraint)
        settings = PublishedOptions(
            self.activation_compression_ratio, memory, self.straight_pipeline, self.use_fewer_machines
        )
        states = States.of(problem, kind)
        levels = build_levels(states, kind, sizes, self.factor, settings)
        top = levels[-1]
        period = float(top.best_from_start[0, -1, -1])
        if not np.isfinite(period):
            raise InputError(
                "planner.no_plan",
                "pipedream finds no plan: "
                + (
                    "the memory limit leaves none"
                    if memory is not None
                    else f"{number_of(top.num_devices, 'device')} cannot all be used"
                )
                + "; allow more memory, replication or {use_fewer_machines}",
                setting={"use_fewer_machines": True},
            )
        ranges = _expand(levels, len(levels) - 1, 0, len(states) - 1, [0])
        layers = states.stages([last for _, last, _ in ranges])
        placed = [(own, ranks) for own, (_, _, ranks) in zip(layers, ranges, strict=True) if own]
        stages = [problem.stage(own, sorted(ranks)) for own, ranks in placed]
        seconds = problem.profile.cost
        total = sum(sum((seconds(k, kind).forward, seconds(k, kind).backward)) for k in problem.layers)
        estimates = tuple(
            StageEstimate(sum(sum(_times(problem, k, kind)) for k in own) / len(ranks)) for own, ranks in placed
        )
        weights = float(sum(problem.graph.layers[k].parameter_bytes for k in states.layers))
        estimate = Estimate(
            period, estimates, None, 0.0, total, data_parallel(total, weights, sizes, self.factor), problem.size
        )
        return with_sizes(problem.plan(stages, self.name, warnings), estimate, problem)


def _times(problem: Problem, layer: int, kind: str) -> tuple[float, float]:
    cost = problem.profile.cost(layer, kind, problem.size)
    return cost.forward, cost.backward


def total_seconds_between(states: States, kind: str) -> Array:
    """T[i, j]: forward and backward of states i..j on one device; inf if j comes before i."""
    return states.between(states.total(lambda k: sum(_times(states.problem, k, kind))), absent=np.inf)


def build_levels(
    states: States, kind: str, sizes: Sequence[tuple[int, float]], factor: float, settings: PublishedOptions
) -> list[Level]:
    """Chain the levels: one level's best plan on all its devices is one device of the next."""
    problem = states.problem
    parameters = states.between(states.total(lambda k: problem.graph.layers[k].parameter_bytes))
    activations = states.between(states.total(lambda k: problem.profile.cost(k, kind, problem.size).output_bytes))
    seconds = total_seconds_between(states, kind)
    levels: list[Level] = []
    below = 1
    for count, bandwidth in sizes:
        if levels:
            seconds = levels[-1].best[:, :, -1]
        levels.append(Level(states, seconds, parameters, activations, count, bandwidth, below, factor, settings))
        below = count
    return levels


def _expand(levels: Sequence[Level], depth: int, i: int, j: int, bases: list[int]) -> list[tuple[int, int, list[int]]]:
    """The innermost stages (first state, last state, ranks) of states i..j on a device of a level at each base."""
    level = levels[depth]
    answer = level.best_from_start if depth == len(levels) - 1 else level.best
    width = int(np.prod([lower.num_devices for lower in levels[:depth]]))  # ranks in one device of this level
    stages, used = [], 0
    for first, last, count in level.split(i, j, level.num_devices, answer):
        starts = [base + (used + r) * width for base in bases for r in range(count)]
        used += count
        stages += [(first, last, starts)] if depth == 0 else _expand(levels, depth - 1, first, last, starts)
    return stages


def data_parallel(total: float, weights: float, sizes: Sequence[tuple[int, float]], factor: float) -> float:
    """Seconds per minibatch of data parallelism in the same cost model."""
    seconds, below = total, 1
    for count, bandwidth in sizes:
        seconds = (seconds + factor * (count - 1) * weights / (bandwidth * count) / below) / count
        below = count
    return seconds


def memory_limit(problem: Problem, wanted: bool | None) -> float | None:
    """Memory of the smallest device in bytes; None if the limit is not `wanted`."""
    least = min(kind.memory_bytes for kind in problem.cluster.device_types)
    return least if wanted or (wanted is None and least < float("inf")) else None


def slowest_type(problem: Problem, planner: str) -> tuple[str, list[str]]:
    """The slowest device type, which is planned for, and a warning if there are several types."""
    kinds = [kind.name for kind in problem.cluster.device_types]
    slowest = max(kinds, key=problem.total_seconds)
    others = (
        f"{planner} supports only one device type: it plans as if all devices were {slowest!r}, the slowest of "
        f"{', '.join(kinds)}"
    )
    return slowest, [others] if len(kinds) > 1 else []
