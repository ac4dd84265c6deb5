"""The breadth-first order of interleaved stages: all of a step's minibatches in one stage before any in the next.

Fewer, longer transfers than minibatch by minibatch, and weights are needed once for all minibatches; a step's
minibatches are all in flight at once (Lamy-Poirier, "Breadth-First Pipeline Parallelism", MLSys 2023). Backwards come
last minibatch first. Two ranks, four stages, two minibatches of a step (time runs right):

    rank 0   0F0 0F1 2F0 2F1     2B1     2B0 0B1 0B0 0U0 2U0
    rank 1       1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0 1U0 3U0

With one stage a rank it is GPipe's but for the order of backwards. The order is torch's (ScheduleLoopedBFS).
"""

from collections.abc import Sequence

from ..plan import Plan
from .actions import Action
from .steps import Part, step_by_step


def order(plan: Plan, num_minibatches: int) -> dict[int, tuple[Action, ...]]:
    """Each rank's actions, step after step."""
    return step_by_step(plan, num_minibatches, _step)


def _step(count: int, position: int, stages: Sequence[int]) -> list[Part]:
    forwards = [("F", stage, m) for stage in stages for m in range(count)]
    return forwards + [("B", stage, m) for stage in reversed(stages) for m in reversed(range(count))]
