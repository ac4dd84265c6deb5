"""Orders of one step, the same for all replicas: repeated step after step, each with an update of every stage."""

from collections.abc import Callable, Sequence

from ..plan import Plan
from .actions import Action, Op
from .one_forward_one_backward import num_rounds, round_minibatches, turns_of

Part = tuple[str, int, int]  # the letter of an operation, stage, which of the rank's minibatches in the step
# (minibatches of a step, the rank's position in the pipeline, its stages) → its parts of the step
StepOrder = Callable[[int, int, Sequence[int]], list[Part]]


def step_by_step(plan: Plan, num_minibatches: int, step: StepOrder) -> dict[int, tuple[Action, ...]]:
    """Each rank's actions. A step that is not whole has the order of one that is, without what does not exist.

    That makes no deadlock, as what is left waits for less, and needs no more memory.
    """
    lists = {}
    for position, own_position in enumerate(plan.positions):
        stage = plan.stages[own_position[0]]
        for rank, share in zip(stage.ranks, stage.rank_turns, strict=True):
            done: list[Action] = []
            whole = -(-plan.num_microbatches * share // stage.round)
            for k in range(num_rounds(plan, own_position[0], num_minibatches)):
                mine = turns_of(stage, rank, round_minibatches(plan, own_position[0], k, num_minibatches))
                parts = step(max(whole, len(mine)), position, own_position) if mine else []
                done += [Action(s, Op(op), mine[m]) for op, s, m in parts if m < len(mine)]
                done += [Action(s, Op.UPDATE, k) for s in own_position]
            lists[rank] = tuple(done)
    return lists


class LocalStage:
    """One of a rank's stages within a step: how many minibatches have gone through each of its operations."""

    def __init__(self, stage: int) -> None:
        self.stage = stage
        self.done = dict.fromkeys("FIW", 0)

    def run(self, letters: str) -> list[Part]:
        """Run these operations, each on its next minibatch; a B is an I and a W at once."""
        parts = []
        for letter in letters:
            counted = "IW" if letter == "B" else letter
            parts.append((letter, self.stage, self.done[counted[0]]))
            for counted_item in counted:
                self.done[counted_item] += 1
        return parts
