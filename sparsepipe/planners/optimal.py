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
from .makespan import LeastSum, StepModel, minimise_step
from .model import StageModel, default_model, published_model
from .search import MemoryRule, Moves, Path, StageEnds, all_moves, along_chain, over_sets, useful_moves
from .teams import Teams, device_classes

COST_MODELS = ("default", "published")
MAX_CUTS = 2000  # beyond, cuts are those along topological orders
CLOSE = 0.005  # bounds as close as this may hold so few plans that the next better one found is the best
MAX_ASKED = 4  # after as many better ones, halve again
WORTH_PRUNING = 500  # moves, and bounds that are close enough to rule most of them out
PRUNABLE = 0.03


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
        limited = any(c.type.memory_bytes < float("inf") for c in classes)
        memory = memory_rule(problem, model, moves) if limited else None
        memory = memory if memory and memory.binds else None
        ends = StageEnds(model)
        if memory and over_sets(ends, moves, float("inf"), memory=memory, all_devices=self.all_devices) is None:
            raise InputError(nothing_fits(model, moves, memory, self.all_devices))
        if problem.synchronous and not published:
            path, bound = self._minimise_step(problem, model, moves, memory)
        else:
            path, bound = self._minimise(ends, moves, memory)
        return self._finish(problem, model, path, bound)

    def _minimise_step(
        self, problem: Problem, model: StageModel, moves: Moves, memory: MemoryRule | None
    ) -> tuple[Path, float]:
        """The best path of a schedule that flushes, and a proven lower bound of the period."""
        found = minimise_step(LeastSum(StepModel.of(problem, model), moves, model.cuts.follows, memory))
        assert found is not None
        path, _, bound = found
        return path, bound if problem.schedule == "sequential" else bound / problem.num_microbatches

    def _minimise(self, ends: StageEnds, moves: Moves, memory: MemoryRule | None) -> tuple[Path, float]:
        """The best path and a proven lower bound of the period."""
        model = ends.model

        def exact(moves: Moves, seconds: float) -> Path | None:
            return over_sets(ends, moves, seconds, memory=memory, all_devices=self.all_devices)

        if not model.cuts.is_chain or memory is not None or self.all_devices:
            anything = memory is not None or self.all_devices
            return bisect(model, moves, exact, None if anything else alone(model))

        def quick(moves: Moves, seconds: float) -> Path | None:
            found = along_chain(model, moves, seconds)
            return found if isinstance(found, list) else None

        def certain(moves: Moves, seconds: float) -> Path | None:
            return exact(moves, seconds) if along_chain(model, moves, seconds, relaxed=True) else None

        return bisect(model, moves, quick, alone(model), certain, useful_moves)

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


def alone(model: StageModel) -> Path:
    """The best plan of one stage."""
    end = len(model.cuts) - 1
    return [(int(model.seconds(np.arange(len(model.teams)), 0, end).argmin()), 0, end)]


Search = Callable[[Moves, float], Path | None]


def bisect(
    model: StageModel,
    moves: Moves,
    quick: Search,
    first: Path | None,
    certain: Search | None = None,
    prune: Callable[[StageModel, Moves, float], Moves] | None = None,
) -> tuple[Path, float]:
    """The best path and its period, from searches for a path below a limit; where `certain` finds none, there is none.

    `first`: any path to begin with; it is searched for when not given.
    """
    lower = float(model.work[-1] / moves.spare[0])
    best = first or quick(moves, float("inf"))
    if best is None:
        raise InputError("no plan uses all devices: there are more than the network has places for; allow unused ones")
    value, step, asked = model.period(best), 0.01, 0
    while True:
        limit = lower * (1 + step) if step else (lower + value) / 2
        ask = asked < MAX_ASKED and value - lower <= CLOSE * value or not lower < limit < value
        # Where few plans are left below the best, ask at once for any better one; else halve what is between the bounds.
        found = quick(moves, value if ask else limit)
        if found is None and ask:
            found = certain(moves, value) if certain else None
            if found is None:
                return best, value
        if found is None:
            lower, step, asked = limit, step * 2, 0
            continue
        best, value, step, asked = found, model.period(found), 0, asked + 1 if ask else 0
        if prune and len(moves.source) > WORTH_PRUNING and value - lower < PRUNABLE * value:
            moves = prune(model, moves, value)


def nothing_fits(model: StageModel, moves: Moves, memory: MemoryRule, all_devices: bool) -> str:
    """Say what would do: the least memory of every device for which there is a plan."""
    low, high = 0.0, float(memory.need(np.arange(len(moves.source)), 0, len(model.cuts) - 1).max())
    while high - low > max(1.0, 1e-6 * high):
        middle = (low + high) / 2
        rule = replace(memory, limit=np.full_like(memory.limit, middle))
        if over_sets(StageEnds(model), moves, float("inf"), memory=rule, all_devices=all_devices) is None:
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
