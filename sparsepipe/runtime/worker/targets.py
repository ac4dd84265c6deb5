"""What the last stage judges each minibatch by: its targets, and what they weigh in the mean over a step."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ...values.replication.base import READ_AHEAD
from ..workloads.base import Samples, Workload
from .control import Control, WorkerContext
from .weight_update import WeightUpdate


class Targets(NamedTuple):
    """The targets of one minibatch, or of one part of it if it is split to fit into memory."""

    labels: Any  # as the loss takes them
    weights: tuple[float, ...] | None  # of each mean of the loss among the step's minibatches; None: 1
    samples: int


class TargetReader:
    """Reads the targets of minibatches in their order, those of a whole step if they say what each weighs.

    The mean over a step is then that over all its samples, words or voxels that count, however the step is shared out:
    with c_m items in minibatch m of N, its mean weighs N c_m / (c_0 + ... + c_{N-1}). So the numbers of a whole step
    are needed before its first backward: a replica reads the targets of the other replicas' minibatches too.

    Of minibatches by a budget, a step weighs by its samples as well: n samples in N minibatches weigh n over N times
    the mean of all minibatches. Gradients of an epoch then add up to those of minibatches of equal numbers of samples.

    The parts of a split minibatch share its weight in the same way: their losses add up to that of the minibatch.
    """

    def __init__(
        self,
        workload: Workload,
        samples: Samples,
        samples_of: Callable[[int], Sequence[int]],
        *,
        epoch: int = 0,
        step_of: Callable[[int], Sequence[int]] | None = None,
    ) -> None:
        """`samples_of`: the samples of a minibatch. `step_of`: the minibatches of the step of one; None: no steps."""
        self._workload, self._samples, self._samples_of, self._epoch = workload, samples, samples_of, epoch
        self._step_of = step_of
        self._items, self._mean_samples = workload.loss.items, workload.mean_samples
        self._read: dict[int, tuple[Any, ...]] = {}  # of this step, labels of each part, until they are asked for
        self._counts: dict[int, tuple[float, ...]] = {}  # of this step, by minibatch

    def ahead(self, own: Sequence[int]) -> int:
        """Return how many of the minibatches `own` to read ahead, so that no one waits where a step begins."""
        if self._items is None or self._step_of is None:
            return READ_AHEAD
        steps = {m: tuple(self._step_of(m)) for m in own}
        return READ_AHEAD + max((sum(k in steps for k in step) for step in set(steps.values())), default=0)

    def read(self, minibatch: int) -> tuple[Targets, ...]:
        """Return the targets of each part of a minibatch, the next in order. Raises what the data set raises."""
        step = () if self._step_of is None else self._step_of(minibatch)
        if len(step) < 2:
            labels = self._labels(minibatch)
            if self._mean_samples is None:
                return self._of_parts(minibatch, labels, None)
            means = 1 if self._items is None else len(self._items(labels[0]))
            return self._of_parts(minibatch, labels, (self._share((minibatch,)),) * means)
        if minibatch not in self._counts:
            self._read.clear()
            for m in step if self._items is not None and self._workload.reading_processes else ():
                for part in self._parts(m):
                    self._workload.begin_batch(self._samples, part, self._epoch)
            self._counts = {m: self._count(m) for m in step}
        counts = self._counts[minibatch]
        totals = [sum(of_mean) for of_mean in zip(*self._counts.values(), strict=True)]
        share = self._share(step)
        weights = tuple(
            share * len(step) * count / total if total else share for count, total in zip(counts, totals, strict=True)
        )
        labels = self._read.pop(minibatch) if minibatch in self._read else self._labels(minibatch)
        return self._of_parts(minibatch, labels, weights)

    def _of_parts(
        self, minibatch: int, labels: Sequence[Any], weights: tuple[float, ...] | None
    ) -> tuple[Targets, ...]:
        """Share the weights of a minibatch among its parts, by the items of each."""
        samples = [len(part) for part in self._parts(minibatch)]
        if len(labels) == 1:
            return (Targets(labels[0], weights, samples[0]),)
        items = [(count,) for count in samples] if self._items is None else list(map(self._items, labels))
        totals = [sum(of_mean) for of_mean in zip(*items, strict=True)]
        whole = weights or (1.0,) * len(totals)
        shares = [
            tuple(w * count / total if total else 0.0 for w, count, total in zip(whole, own, totals, strict=True))
            for own in items
        ]
        return tuple(map(Targets, labels, shares, samples))

    def _parts(self, minibatch: int) -> Sequence[Sequence[int]]:
        return self._workload.parts(self._samples, self._samples_of(minibatch))

    def _share(self, step: Sequence[int]) -> float:
        """Return what the mean over a step weighs among those of other steps."""
        if self._mean_samples is None:
            return 1.0
        return sum(len(self._samples_of(m)) for m in step) / (len(step) * self._mean_samples)

    def _labels(self, minibatch: int) -> tuple[Any, ...]:
        return tuple(self._workload.labels(self._samples, part, self._epoch) for part in self._parts(minibatch))

    def _count(self, minibatch: int) -> tuple[float, ...]:
        if self._items is None:
            return (len(self._samples_of(minibatch)),)
        labels = self._read[minibatch] = self._labels(minibatch)
        return tuple(sum(of_mean) for of_mean in zip(*map(self._items, labels), strict=True))


_LOOK_SECONDS = 0.005  # between two looks of a rank that waits
_EVERY = 0.5  # seconds
_SLEEP = 0.01
_SIDE, _PRODUCTS = 256, 10  # of matrices
_NUMBERS, _PASSES = 2_000_000, 4  # over 8 MB


# Ranks that a plan leaves out: their processes stay in the job, and a later plan can take them back
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
