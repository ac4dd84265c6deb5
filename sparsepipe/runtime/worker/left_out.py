"""Ranks that a plan leaves out: their processes stay in the job, and a later plan can take them back.

    rank 0   F0 F1 B0 F2 B1 B2                            ▐ an epoch's end, or a command ▌
    rank 2   waits, looks at what is proposed, prepares   ▐                              ▌

They hold no layers and record no spans, but are timed now and then (`Probe`). If the others meet between two parts
of an epoch, and after a validation, they wait as long as it takes: a rank that is lost meanwhile is reported by those
who need it.
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
_EVERY = 0.5  # seconds
_SLEEP = 0.01
_SIDE, _PRODUCTS = 256, 10  # of matrices
_NUMBERS, _PASSES = 2_000_000, 4  # over 8 MB


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
    """Sum `values` over all ranks, in place, where the plan leaves any out: those `look` until the others are
    available.

    No one meets if it leaves out none. Raises DeadlinePassed, on ranks at work alone, or PeerLost.
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


class Probe:
    """Slowdown of an unused rank, timed now and then on a fixed piece of work.

    A row of the run's metrics reports each time; whoever follows the run holds it against the first ones
    (monitoring/drift.py), and so finds out when the rank is itself again. The work has some arithmetic and some traffic
    to memory, a hundredth of a second of both on a usual core; if nothing is computed, as in a replay, it is a
    sleep. It gets in no one's way, but for that time.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context, self._due = context, 0.0
        self._computes = context.workload.facts.trains
        if self._computes:
            device = context.process.device
            self._matrix = torch.full((_SIDE, _SIDE), 1 / _SIDE, device=device)
            self._numbers = torch.zeros(_NUMBERS, device=device)

    def look(self, first: int) -> None:
        """Take the time if that is due. `first`: a minibatch that the others have begun, maybe long ago."""
        if time.monotonic() < self._due:
            return
        context, minibatch = self._context, self._minibatch(first)
        start = time.monotonic()
        self._work()
        if context.straggler:
            context.straggler.lag(minibatch, time.monotonic() - start)
        seconds = time.monotonic() - start
        context.recorder.metric("left_out", rank=context.rank, minibatch=minibatch, probe_seconds=round(seconds, 6))
        context.recorder.flush()
        self._due = time.monotonic() + _EVERY

    def _minibatch(self, first: int) -> int:
        """The newest minibatch that another rank says it is at."""
        beats = self._context.process.heartbeats
        return max([first, *(beats.of(rank).minibatch for rank in self._context.plan.ranks if beats)])

    def _work(self) -> None:
        if not self._computes:
            time.sleep(_SLEEP)
            return
        for _ in range(_PRODUCTS):
            self._matrix = self._matrix @ self._matrix  # of all 1 / n: it stays as it is
        for _ in range(_PASSES):
            self._numbers += 1.0
        if self._numbers.is_cuda:
            torch.cuda.synchronize(self._numbers.device)
