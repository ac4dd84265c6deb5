"""How much of each place an attention takes: a softmax that leaves out padding."""

from torch import Tensor

# A score so low that its weight is exactly 0, in half precision too; infinity would make a row of padding alone NaN.
_LEFT_OUT = -1e4


def attention_weights(scores: Tensor, mask: Tensor) -> Tensor:
    """Return weights that add up to 1 along the last axis of `scores`.

    `mask`, of a shape that broadcasts to theirs, is false (or 0) for padding: the weight there is 0.
    """
    return scores.masked_fill(mask == 0, _LEFT_OUT).softmax(-1)
