"""The zero-bubble order of interleaved stages: one forward, one input gradient, and W where a rank would wait.

A rank's warm-up is shorter than that of interleaved 1F1B by a forward for each rank after it, since an I is back sooner
than a B would be; its W come as many backwards late as there are ranks before it, where 1F1B would have held as many
more minibatches (Qi et al., ICLR 2024: ZB-H1, their ZB1P). Two ranks, four stages, two minibatches of a step:

    rank 0   0F0 0F1 2F0 2F1 2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1 0U0 2U0
    rank 1   1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1 1U0 3U0

The order is torch's (ScheduleInterleavedZeroBubble), which wants minibatches in whole groups; here others are filled up
and what does not exist is left out.
"""

from collections.abc import Sequence

from ..plan import Plan
from .actions import Action
from .interleaved import forwards
from .steps import Part, step_by_step


def order(plan: Plan, num_minibatches: int) -> dict[int, tuple[Action, ...]]:
    """Each rank's actions, step after step."""
    size = plan.pipeline_size

    def step(count: int, position: int, stages: Sequence[int]) -> list[Part]:
        return _step(count, size, position, stages)

    return step_by_step(plan, num_minibatches, step)


def group_length(count: int, size: int) -> int:
    """Minibatches that go through one of a rank's stages before any goes through its next: `size` or a few more.

    They come in equal groups where they can, in as many as there are whole sizes in them.
    """
    groups = max(1, count // size)
    return size if count % groups else count // groups


def _step(count: int, size: int, position: int, stages: Sequence[int]) -> list[Part]:
    group = group_length(count, size)
    whole = range(-(-count // group) * group)
    ahead, behind = forwards(whole, stages, group), forwards(whole, stages[::-1], group)
    warmup = min(len(ahead), (len(stages) - 1) * group + size - 1 - position)
    parts = [("F", *item) for item in ahead[:warmup]]
    for k, item in enumerate(behind):
        parts += [("F", *other) for other in ahead[warmup + k : warmup + k + 1]]
        parts.append(("I", *item))
        parts += [("W", *other) for other in behind[k - position : k - position + 1] if k >= position]
    return parts + [("W", *item) for item in behind[max(0, len(behind) - position) :]]
