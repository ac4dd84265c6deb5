"""The V-shaped zero-bubble order: each rank has two stages, there and back, and its W fill the waiting for both.

The last rank has the two stages in the middle; the first has the first and the last, so its backwards begin as soon as
a minibatch is back. No rank holds more than another (Qi et al., ICLR 2024, section 6: ZB-V). Two ranks, stages 0 and 3
on the first, four minibatches (time runs right; F, I and W as long as each other):

    rank 0   0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 …
    rank 1       1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 …

It waits for nothing if F, I and W take equally long. The order is torch's (ScheduleZBVZeroBubble).
"""

from collections.abc import Sequence

from ..plan import Plan
from .actions import Action
from .steps import LocalStage, Part, step_by_step


def order(plan: Plan, num_minibatches: int) -> dict[int, tuple[Action, ...]]:
    """Each rank's actions, step after step."""
    size = plan.pipeline_size

    def step(count: int, position: int, stages: Sequence[int]) -> list[Part]:
        return _step(max(count, 2 * size - 1), size - position, position, stages)

    return step_by_step(plan, num_minibatches, step)


def _step(count: int, to_go: int, gone: int, stages: Sequence[int]) -> list[Part]:
    """One step of at least 2 · ranks − 1 minibatches. There are `to_go` ranks from this one on, `gone` before it."""
    there, back = map(LocalStage, stages)
    parts = there.run("F" * (2 * to_go - 1))
    for _ in range(gone):
        parts += back.run("F") + there.run("F")
    for _ in range(to_go):
        parts += back.run("FIW")
    while back.done["F"] < count:
        parts += there.run("FIW" if there.done["F"] < count else "IW") + back.run("FIW")
    for _ in range(gone):
        parts += there.run("I") + back.run("I")
    for _ in range(to_go):
        parts += there.run("IW")
    return parts + back.run("W" * (count - back.done["W"])) + there.run("W" * (count - there.done["W"]))
