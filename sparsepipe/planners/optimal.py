"""The best plan there is: exact search over cuts, teams, orders and shares, with a proof of how good the answer is."""

from dataclasses import dataclass, replace

from ..errors import InputError
from ..plan import Estimate, Plan, StageEstimate
from .base import Problem
from .bottleneck import minimise_period
from .estimate import estimate
from .makespan import LeastSum, StepModel, minimise_step
from .model import StageModel
from .search import Path
from .sets import StageEnds, nothing_fits, over_sets
from .space import Rules, Space, merged, spaces

COST_MODELS = ("default", "published")


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
        space, path, bound = self._best(problem)
        return self._finish(problem, space.model, path, bound)

    def _best(self, problem: Problem) -> tuple[Space, Path, float]:
        """(where the best path was found, the path, a proven lower bound of the period)."""
        best, value, refused = None, float("inf"), ""
        for space in spaces(
            problem, Rules(self.cost_model == "published", self.activation_compression_ratio, self.all_devices)
        ):
            refused = self._refusal(space)
            if refused:
                continue
            path, period, bound = self._minimise(problem, space)
            if period < value:
                best, value = (space, path, bound), period
            if space.complete:
                return space, path, bound
        if best is None:
            raise InputError(refused)
        return best[0], best[1], self._relaxed_bound(problem, best[0])

    def _refusal(self, space: Space) -> str:
        """Why no plan of this space fits; empty where one does."""
        if space.memory is None:
            return ""
        fits = over_sets(
            StageEnds(space.model), space.moves, float("inf"), memory=space.memory, all_devices=self.all_devices
        )
        return "" if fits else nothing_fits(space.model, space.moves, space.memory, self.all_devices)

    def _minimise(self, problem: Problem, space: Space) -> tuple[Path, float, float]:
        """(best path of a space, its period, a lower bound of all periods in this space)."""
        if not problem.synchronous or self.cost_model == "published":
            ends = StageEnds(space.model)
            path, period = minimise_period(ends, space.moves, memory=space.memory, all_devices=self.all_devices)
            return path, period, period
        steps = LeastSum(StepModel.of(problem, space.model), space.moves, space.model.cuts.follows, space.memory)
        found = minimise_step(steps)
        assert found is not None
        path, step, bound = found
        count = 1 if problem.schedule == "sequential" else problem.num_microbatches
        return path, step / count, bound / count

    def _relaxed_bound(self, problem: Problem, space: Space) -> float:
        """A lower bound of every plan's period, where not all could be looked at."""
        easier = merged(problem)
        if len(problem.cluster.nodes) > 1 and self.cost_model == "default":
            for other in spaces(easier, Rules()):
                if other.complete and not other.memory:
                    return self._minimise(easier, other)[2]
        return float(space.model.work[-1] / space.moves.spare[0])

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


def published_estimate(model: StageModel, path: Path, expected: Estimate) -> Estimate:
    """The estimate in the published cost model's terms."""
    stages = []
    for stage, own in zip(expected.stages, path, strict=True):
        seconds = float(model.seconds(*own))
        stages.append(StageEstimate(seconds, stage.memory_bytes))
    return replace(expected, period_seconds=model.period(path), stages=tuple(stages))
