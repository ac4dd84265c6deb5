"""Actions, of which a rank's schedule is a list; and which stage feeds which, decided in this one place.

The letters are torch.distributed.pipelining's: F is the forward of a minibatch and B its whole backward. A backward
that is split has I, the gradients of the stage's input, and later W, those of its weights. U, ours, averages the
gradients of one round over a stage's replicas and updates the weights.
"""

import re
from enum import StrEnum
from typing import NamedTuple

from ...errors import InputError


class Op(StrEnum):
    """Enumerate the operations of a schedule, with the letters of torch.distributed.pipelining.

    Attributes:
        FORWARD: "F", forward of a minibatch.
        BACKWARD: "B", full backward of a minibatch.
        BACKWARD_INPUT: "I", backward for the gradient of the stage's input.
        BACKWARD_WEIGHT: "W", backward for the gradients of the weights.
        UPDATE: "U", gradient all-reduce over the replicas of a stage and update of its weights.

    Example:
        >>> sp.Op("F") is sp.Op.FORWARD
        True

    See also:
        background/schedules, `Action`
    """

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    UPDATE = "U"


class Action(NamedTuple):
    """Represent one operation of one stage on one minibatch, written "1F3".

    A minibatch passes through the pipeline as a unit. Under a synchronous schedule, torch calls this unit a microbatch;
    one optimizer step has `Plan.num_microbatches` of them.

    Attributes:
        stage: Number of the stage.
        op: The operation.
        minibatch: Number of the minibatch. For an update: number of the round of the replicas.

    Example:
        >>> action = sp.Action.parse("1F3")
        >>> action.stage, action.op.name, action.minibatch
        (1, 'FORWARD', 3)

    See also:
        background/schedules, `actions`
    """

    stage: int
    op: Op
    minibatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.op}{self.minibatch}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        match = re.fullmatch(r"(\d+)([FBIWU])(\d+)", text)
        if not match:
            raise InputError(
                "schedule.action_malformed",
                f"{text!r} is not an action, expected a stage, one of F, B, I, W and U, and a minibatch, such as 1F3",
            )
        return cls(int(match[1]), Op(match[2]), int(match[3]))


def feeds(stage: int, op: Op, num_stages: int) -> int | None:
    """The other stage that needs the result of `op` in `stage` for the same operation; None if no other does.

    A forward's features go to the next stage, a backward's gradients to the one before.
    """
    target = stage + _DIRECTION.get(op, 0)
    return target if target != stage and 0 <= target < num_stages else None


def fed_by(stage: int, op: Op, num_stages: int) -> int | None:
    """The other stage whose result `op` in `stage` needs: `feeds` the other way round."""
    source = stage - _DIRECTION.get(op, 0)
    return source if source != stage and 0 <= source < num_stages else None


# Along the pipeline; all else stays in its stage.
_DIRECTION = {Op.FORWARD: 1, Op.BACKWARD: -1, Op.BACKWARD_INPUT: -1}
