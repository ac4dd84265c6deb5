"""The best plan there is under the default cost model (first form: chains, ranks in order)."""

from dataclasses import dataclass, replace
from itertools import combinations

from ..plan import Plan
from .base import Problem
from .baselines import _balanced
from .estimate import estimate


@dataclass(frozen=True)
class Optimal:
    name = "optimal"

    def plan(self, problem: Problem) -> Plan:
        count, best = len(problem.cluster.devices), None
        for stages in range(1, min(count, len(problem.layers), 4) + 1):
            for cuts in combinations(range(1, count), stages - 1):
                bounds = list(zip((0, *cuts), (*cuts, count), strict=True))
                rows = []
                for a, b in bounds:
                    kinds = {problem.cluster.devices[rank].type.name for rank in range(a, b)}
                    slow = max(kinds, key=problem.total_seconds)
                    rows.append([float(t) / (b - a) for t in problem.table.seconds[slow][list(problem.layers), 0]])
                runs = _balanced(rows)
                made = [
                    problem.stage(problem.layers[i:j], range(a, b)) for (i, j), (a, b) in zip(runs, bounds, strict=True)
                ]
                plan = problem.plan(made, self.name)
                plan = replace(plan, estimate=estimate(plan, problem))
                if best is None or plan.estimate.period_seconds < best.estimate.period_seconds:
                    best = plan
        return best
