"""Ranks that a plan leaves out: their processes stay in the job, and a later plan can take them back.

    rank 0   F0 F1 B0 F2 B1 B2                            ▐ an epoch's end, or a command ▌
    rank 2   waits, looks at what is proposed, prepares   ▐                              ▌

They hold no layers and record no spans, but are timed now and then (probe.py). Where the others meet between two parts
of an epoch, and after a validation, they wait as long as it takes: a rank that is lost meanwhile is told by those who
need it.
"""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from .context import WorkerContext
from .control import Control
from .weight_update import WeightUpdate

_LOOK_SECONDS = 0.005  # between two looks of a rank that waits


def rejoin(context: WorkerContext, control: Control, weight_update: WeightUpdate, *, look: Callable[[], None]) -> None:
    """Let ranks that are left out know where a part of an epoch ended, and what its updates made of the loss scale.

    All ranks come here at the part's end, `look` as in `meet`. Raises DeadlinePassed or PeerLost.
    """
    scale = weight_update.loss_scale
    known = torch.zeros(2, dtype=torch.float64)
    if context.rank == min(context.plan.ranks):
        known[:] = torch.tensor([scale.factor, scale.good_steps])
    meet(context, known, look=look)
    if context.is_left_out:
        control.catch_up()
        scale.factor, scale.good_steps = float(known[0]), int(known[1])


def meet(context: WorkerContext, values: Tensor, *, look: Callable[[], None]) -> None:
    """Sum `values` over all ranks, in place, where the plan leaves any out: those `look` until the others are here.

    Nobody meets where it leaves out none. Raises DeadlinePassed, on ranks at work alone, or PeerLost.
    """
    process, what = context.process, "the ranks that are left out"
    if not context.leaves_out:
        return
    if context.is_left_out:
        work = dist.all_reduce(values, async_op=True)
        if process.heartbeats:
            process.heartbeats.tell("meet")
        while not work.is_completed():
            look()
            time.sleep(_LOOK_SECONDS)
        process.finish(work, what=what)
    else:
        process.sum(values, what=what)
