"""DualPipeV: each rank has two stages, there and back, and runs a forward of one alongside a backward of the other.

    fill       F of the first stage; F of both; I, W and F of the second, whose backwards begin first
    steady     F there, B back, F back, B there, as long as there are new minibatches
    drain      B back, F back, B there; then B, from half way on I alone, of both stages; last what W are left

DeepSeek's DualPipe (arXiv 2412.19437) sends two streams of minibatches through a pipeline from both ends, with two
copies of the weights; bent into a V one copy does. Its pairs of an F and a B of different minibatches are meant to
overlap, one's transfers under the other's work; here they come one after the other, and transfers run alongside either.

The order is torch's (ScheduleDualPipeV), which wants as many minibatches as stages; fewer are filled up here, and what
does not exist is left out.
"""

from collections.abc import Sequence

from ..plan import Plan
from .actions import Action
from .steps import LocalStage, Part, step_by_step


def order(plan: Plan, num_minibatches: int) -> dict[int, tuple[Action, ...]]:
    """Each rank's actions, step after step."""
    size = plan.pipeline_size

    def step(count: int, position: int, stages: Sequence[int]) -> list[Part]:
        return _step(max(count, 2 * size), size, position, stages)

    return step_by_step(plan, num_minibatches, step)


def _step(count: int, size: int, gone: int, stages: Sequence[int]) -> list[Part]:
    """One step of at least 2 · `size` minibatches. `gone` ranks come before this one."""
    there, back = map(LocalStage, stages)
    behind = size - 1 - gone  # ranks after this one
    parts = there.run("F" * (2 * behind))
    for _ in range(gone + 1):
        parts += there.run("F") + back.run("F")
    parts += back.run("IWF" * behind)
    for _ in range(count - 2 * size + gone + 1):
        parts += there.run("F") + back.run("BF") + there.run("B")
    for _ in range(behind):
        parts += back.run("BF") + there.run("B")
    late: list[LocalStage] = []  # whose W are to come
    for k in range(2 * (gone + 1)):
        stage, whole = (there if k % 2 else back), k <= gone
        parts += stage.run("B" if whole else "I")
        late += [] if whole else [stage]
    for _ in range(behind):
        parts += late.pop(0).run("W") + there.run("I")
        late.append(there)
    for stage in late:
        parts += stage.run("W")
    return parts
