"""Averaged gradients become the next weights of a rank's stages: unscaled, clipped, stepped."""

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from ...values.schedule import Action
from ..config import RunConfig
from ..learning_rate import LearningRate
from ..training_state.optimizer import LossScale
from .connections import Connections
from .control import WorkerContext
from .epoch_parts import Averaged
from .stage_replica import StageReplica


class WeightUpdate:
    """Steps each stage as soon as its gradients are averaged; under a schedule that flushes, all of a rank's at once.

    Only then is it known whether any gradients overflowed, and how long they are together. Under asynchronous schedules
    stages update at different times, so each clips its own gradients, to the norm over the root of the number of
    stages: together they are never longer than the norm.
    """

    def __init__(self, context: WorkerContext, config: RunConfig, *, connections: Connections, num_stages: int) -> None:
        self._context, self._connections, self._clip_norm = context, connections, config.clip_norm
        self._schedule: LearningRate = config.rate
        self.scales_loss = config.precision == "float16"
        self.loss_scale = LossScale(config.loss_scale if self.scales_loss else 1.0)
        self._most_waiting = num_stages if context.plan.flushes else 1
        self._clips_together, self._longest = context.plan.flushes, config.clip_norm or math.inf
        if not self._clips_together:
            self._longest /= math.sqrt(len(context.plan.stages))
        self.losses: list[float] = []  # of the validations so far, one an epoch
        self._averaged: list[tuple[StageReplica, list[Tensor | None]]] = []  # of this rank's stages, until all can step

    def learning_rate(self, minibatch: int) -> float:
        """The rate of the update whose first minibatch is `minibatch` of the run."""
        workload = self._context.workload
        return self._schedule.at(
            minibatch,
            epoch_minibatches=workload.epoch_minibatches,
            total_minibatches=workload.total_minibatches,
            losses=self.losses,
        )

    def take(
        self,
        replica: StageReplica,
        gradients: list[Tensor | None],
        *,
        action: Action,
        minibatches: Sequence[int],
        start: float,
        averaged: Averaged | None = None,
    ) -> float:
        """Take a stage's averaged gradients of `minibatches` (of the run), and step if nothing else is waited for.

        `start` is when this update began. Returns since when the rank works on it: from its last wait for the other
        ranks, if there was one. `averaged`: what other pipelines may average with, once it is made.
        """
        self._averaged.append((replica, gradients))
        if len(self._averaged) < self._most_waiting:
            return start
        ready, self._averaged = self._averaged, []
        together = [gradient for _, own in ready for gradient in own if gradient is not None]
        last = minibatches[-1]
        if self.scales_loss:
            overflows = self._unscale(together)
            start = self._sum(overflows, action, last, start, what="overflow of the gradients")
            self._note(last, overflowed=float(overflows) > 0)
            if float(overflows) > 0:
                for stepped, _ in ready:
                    stepped.weights.skip()
                    stepped.average(averaged, stepped=False)
                return start
        if self._clip_norm is not None:
            count = replica.position.replication.num_replicas if self._clips_together else 1
            square = square_norm(together, replicas=count)
            if self._clips_together:
                start = self._sum(square, action, last, start, what="norm of the gradients")
            clip(together, self._longest, float(square.sqrt()))
        rate = self.learning_rate(minibatches[0])
        for stepped, own in ready:
            stepped.weights.update(own, rate)
            if stepped.runner.step_seconds:
                time.sleep(stepped.runner.step_seconds)
            stepped.average(averaged)
        return start

    def _unscale(self, gradients: Sequence[Tensor]) -> Tensor:
        """Take the loss scale out of the gradients, in place. Returns how many are not finite, [1]."""
        if gradients:
            torch._foreach_mul_(list(gradients), 1 / self.loss_scale.factor)
        return torch.tensor([float(sum(not bool(gradient.isfinite().all()) for gradient in gradients))])

    def _note(self, minibatch: int, *, overflowed: bool) -> None:
        """Let the loss scale know whether gradients of any stage overflowed, and the run's metrics."""
        if overflowed and self._context.writes_metrics:
            self._context.recorder.metric("overflow", minibatch=minibatch, loss_scale=self.loss_scale.factor)
        self.loss_scale.update(overflowed=overflowed)

    def _sum(self, values: Tensor, action: Action, minibatch: int, start: float, *, what: str) -> float:
        """Sum `values` over the plan's ranks, in place: an update begun at `start` waits for it. Returns when it
        continues.
        """
        recorder = self._context.recorder
        waits = recorder.begin("wait", minibatch)
        recorder.span("update", str(action), start, waits, minibatch=minibatch)
        self._connections.sum(values, what=what)
        goes_on = recorder.begin("update", minibatch)
        recorder.span("wait", str(action), waits, goes_on, minibatch=minibatch)
        return goes_on


def square_norm(gradients: Sequence[Tensor], *, replicas: int) -> Tensor:
    """Return this rank's part, [1], of the square of the norm over the network: the parts of all ranks sum to it.

    Replicas of a stage hold the same gradients and count once.
    """
    squares = (gradient.abs().double().square().sum() for gradient in gradients)  # of complex numbers, too
    own = sum(squares, torch.zeros((), dtype=torch.float64))
    return (own / replicas).reshape(1)


def clip(gradients: Sequence[Tensor], most: float, norm: float) -> None:
    """Scale the gradients, in place, so that their norm over the network, which is `norm`, is `most` at most."""
    if gradients and norm > most:
        torch._foreach_mul_(list(gradients), most / norm)
