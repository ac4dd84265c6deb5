"""What the last stage judges each minibatch by: its targets, and what they weigh in the mean over a step."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...values.replication.handing_out import READ_AHEAD
from ..workloads.base import Samples, Workload


class Targets(NamedTuple):
    """The targets of one minibatch, or of one part of it if it is split to fit into memory."""

    labels: Any  # as the loss takes them
    weights: tuple[float, ...] | None  # of each mean of the loss among the step's minibatches; None: 1
    samples: int


class TargetReader:
    """Reads the targets of minibatches in their order, those of a whole step where they say what each weighs.

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
