"""The order of interleaved stages: every rank has several, a lap of the ranks apart (Narayanan et al., SC 2021, 2.2).

Shorter stages fill and drain the pipeline faster: with v stages a rank, the bubble is v times smaller, for v times the
transfers. Two ranks, four stages, two minibatches of a step (time runs right):

    rank 0   0F0 0F1 2F0 2F1     2B0     2B1 0B0     0B1 0U0 2U0
    rank 1       1F0 1F1 3F0 3B0 3F1 3B1 1B0     1B1 1U0 3U0

Minibatches go in groups of as many as a lap has stages: a group does one lap before it does the next.
"""

from collections.abc import Sequence


def forwards(minibatches: Sequence[int], stages: Sequence[int], lap: int) -> list[tuple[int, int]]:
    """Return (stage, minibatch) of each forward of a rank with these stages, in order."""
    groups = (minibatches[first : first + lap] for first in range(0, len(minibatches), lap))
    return [(stage, m) for group in groups for stage in stages for m in group]


def step(minibatches: Sequence[int], stages: Sequence[int], lap: int) -> list[tuple[str, int, int]]:
    """Return ("F" or "B", stage, minibatch) of one step of a rank: warm-up, one forward one backward, drain.

    A last group that is not whole gets the order of one that is, without what is not there: nobody then waits for more
    than in an order without deadlock.
    """
    padded = [*minibatches, *[_NONE] * (-len(minibatches) % lap)]
    ahead, behind = forwards(padded, stages, lap), forwards(padded, stages[::-1], lap)
    warmup = min(len(ahead), 2 * (lap - 1 - stages[0]) + (len(stages) - 1) * lap)
    order = [("F", *one) for one in ahead[:warmup]]
    for forward, backward in zip(ahead[warmup:], behind, strict=False):
        order += [("F", *forward), ("B", *backward)]
    order += [("B", *one) for one in behind[len(ahead) - warmup :]]
    return [action for action in order if action[2] != _NONE]


_NONE = -1  # no minibatch
