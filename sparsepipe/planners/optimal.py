"""The best plan there is: exact search over cuts, teams, orders and shares, with a proof of how good the answer is."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..costs import OPTIMIZER_SLOTS, depth
from ..errors import InputError
from ..plan import Estimate, Plan, StageEstimate
from .base import Problem
from .cuts import Cuts
from .estimate import estimate
from .model import StageModel, default_model, published_model
from .search import MemoryRule, Moves, Path, all_moves, along_chain, over_sets
from .teams import Teams, device_classes

COST_MODELS = ("default", "published")
MAX_CUTS = 2000  # beyond, cuts are those along topological orders
PRECISION = 1e-7  # of the bisection; the exact step that follows needs none


@dataclass(frozen=True)
class Optimal:
    """Minimise the period (asynchronous schedules) or the step time (those that flush).

    Searched: every cut of the graph, replication by any devices, types in any order along the pipeline, mixed types in one
    stage with shares in proportion to their speeds, devices left unused (unless `all_devices`), within each device's memory.
    `cost_model="published"` minimises what SparsePipe's planner means to minimise (model.py).
    """

    cost_model: str = "default"
    all_devices: bool = False
    activation_compression_ratio: float | None = None  # of the published cost model; None: transfers are free
    name = "optimal"

    def __post_init__(self) -> None:
        if self.cost_model not in COST_MODELS:
            raise InputError(f"cost model {self.cost_model!r} is unknown, expected one of {', '.join(COST_MODELS)}")

    def plan(self, problem: Problem) -> Plan:
        """Raises InputError where no plan fits into memory."""
        classes = device_classes(problem.cluster)
        totals = np.array([max(problem.total_seconds(c.type.name), 1e-300) for c in classes])
        counts, moves = all_moves([len(c.ranks) for c in classes], totals.min() / totals)
        published = self.cost_model == "published"
        teams = Teams.of(problem, classes, counts, even=published)
        cuts = Cuts.of(problem.table, problem.layers, limit=MAX_CUTS)
        if published:
            model = published_model(problem, cuts, teams, self.activation_compression_ratio)
        else:
            model = default_model(problem, cuts, teams)
        memory = memory_rule(problem, model, moves)
        if memory.binds and over_sets(model, moves, float("inf"), memory=memory, all_devices=self.all_devices) is None:
            raise InputError(nothing_fits(model, moves, memory, self.all_devices))
        path, bound = self._minimise(model, moves, memory if memory.binds else None)
        return self._finish(problem, model, path, bound)

    def _minimise(self, model: StageModel, moves: Moves, memory: MemoryRule | None) -> tuple[Path, float]:
        """The best path and a proven lower bound of the period."""

        def exact(seconds: float) -> Path | None:
            return over_sets(model, moves, seconds, memory=memory, all_devices=self.all_devices)

        if not model.cuts.is_chain or memory is not None or self.all_devices:
            return bisect(model, moves, exact, exact)

        def quick(seconds: float) -> Path | None:
            found = along_chain(model, moves, seconds)
            return found if isinstance(found, list) else None

        def certain(seconds: float) -> Path | None:
            return exact(seconds) if along_chain(model, moves, seconds, relaxed=True) else None

        return bisect(model, moves, quick, certain)

    def _finish(self, problem: Problem, model: StageModel, path: Path, bound: float) -> Plan:
        taken: set[int] = set()
        stages = []
        for team, first, last in path:
            ranks, shares = model.teams.ranks(team, taken)
            taken.update(ranks)
            stages.append(problem.stage(model.cuts.between(first, last), ranks, shares))
        unused = len(problem.cluster.devices) - len(taken)
        warnings = [f"{unused} of {len(problem.cluster.devices)} devices stay unused: the plan is no faster with them"]
        plan = problem.plan(stages, self.name, warnings if unused else [])
        expected = estimate(plan, problem)
        if self.cost_model == "published":
            expected = published_estimate(model, path, expected)
        gap_closed = bound >= expected.period_seconds * (1 - 1e-12)
        lower = expected.period_seconds if gap_closed else bound
        return replace(plan, estimate=replace(expected, lower_bound_seconds=lower))


def bisect(
    model: StageModel, moves: Moves, quick: Callable[[float], Path | None], certain: Callable[[float], Path | None]
) -> tuple[Path, float]:
    """The best path and its value, from searches for a path below a limit; where `certain` finds none, there is none."""
    lower = float(model.work[-1] / moves.spare[0])
    best = quick(float("inf")) or certain(float("inf"))
    if best is None:
        raise InputError("no plan uses all devices: there are more than the network has places for; allow unused ones")
    value, step = model.period(best), 0.01
    while True:
        limit = lower * (1 + step) if step else (lower + value) / 2
        if not lower < limit < value or value - lower <= PRECISION * value:
            found = quick(value) or certain(value)
            if found is None:
                return best, value
        elif (found := quick(limit)) is None:
            lower, step = limit, step * 2
        if found is not None:
            best, value, step = found, model.period(found), 0


def nothing_fits(model: StageModel, moves: Moves, memory: MemoryRule, all_devices: bool) -> str:
    """Say what would do: the least memory of every device for which there is a plan."""
    low, high = 0.0, float(memory.need(np.arange(len(moves.source)), 0, len(model.cuts) - 1).max())
    while high - low > max(1.0, 1e-6 * high):
        middle = (low + high) / 2
        rule = replace(memory, limit=np.full_like(memory.limit, middle))
        if over_sets(model, moves, float("inf"), memory=rule, all_devices=all_devices) is None:
            low = middle
        else:
            high = middle
    largest = max(c.type.memory_bytes for c in model.teams.classes)
    return (
        f"no plan fits into the memory of {moves.used[-1]} devices (at most {largest:.0f} bytes): "
        f"{np.ceil(high):.0f} bytes on each would do; use devices with more memory, more of them, or recomputation"
    )


def memory_rule(problem: Problem, model: StageModel, moves: Moves) -> MemoryRule:
    """The memory need of each move's team with the devices used behind it."""
    teams, table = model.teams, problem.table
    behind = moves.used[moves.source]
    pairs, which = np.unique(np.stack([moves.team, behind], axis=1), axis=0, return_inverse=True)
    depths = np.empty((len(pairs), 2))
    for row, (team, later) in enumerate(pairs.tolist()):
        shares = tuple(np.repeat(teams.class_shares[team], teams.counts[team]).tolist())
        depths[row] = depth(problem.schedule, problem.num_microbatches, shares, later)
    versions, minibatches = depths[which.ravel()].T
    limits = np.array([c.type.memory_bytes for c in teams.classes])
    limit = np.where(teams.counts > 0, limits, np.inf).min(axis=1)
    forward, _ = model.cuts.payloads(table)
    return MemoryRule(
        versions + 1 + OPTIMIZER_SLOTS,
        minibatches,
        np.ones_like(minibatches) if problem.recompute else minibatches,
        limit[moves.team],
        model.cuts.total(table.parameter_bytes),
        model.cuts.total(table.saved_bytes[:, 1] + table.coordinate_bytes[:, 1]),
        forward[:, 1],
    )


def published_estimate(model: StageModel, path: Path, expected: Estimate) -> Estimate:
    """The estimate in the published cost model's terms."""
    stages = []
    for stage, own in zip(expected.stages, path, strict=True):
        seconds = float(model.seconds(*own))
        stages.append(StageEstimate(seconds, stage.memory_bytes))
    return replace(expected, period_seconds=model.period(path), stages=tuple(stages))
