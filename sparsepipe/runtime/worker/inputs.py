"""The inputs of a stage: samples and targets read from disk, packets of the stage before."""

from collections.abc import Callable, Sequence
from typing import Any

from ...schedule import Action, Op
from ..stages.base import PacketAndSamples
from ..transport.packet import FORWARD
from ..workloads.base import Samples
from .context import WorkerContext
from .feed import Feed
from .prefetch import Loader
from .stage_replica import StageReplica
from .targets import TargetReader, Targets


class Inputs:
    """Minibatches read from disk where a stage reads samples, packets behind the first; targets in the last."""

    def __init__(
        self,
        context: WorkerContext,
        replica: StageReplica,
        samples: Samples,
        feed: Feed,
        *,
        todo: Sequence[Action],
        epoch: int = 0,
        step_of: Callable[[int], Sequence[int]] | None = None,
    ) -> None:
        """`feed`: the samples of each minibatch of `todo`, and its number in the run.

        `step_of` tells the minibatches of the step that one belongs to, where the mean over a step is to be that over
        all it counts.
        """
        self._context, self._runner = context, replica.runner
        mine = [a.minibatch for a in todo if a.op is Op.FORWARD and a.stage == replica.stage]
        self._loaders: list[Loader] = []
        if self._runner.reads_samples:
            self._loader = Loader(lambda _, indices: samples.batch(indices, epoch=epoch), mine, feed)
            self._loaders.append(self._loader)
        if not self._runner.is_first:
            self._inbox = context.exchange.inbox(replica, mine, feed, direction=FORWARD)
        self._feed = feed
        self._targets = TargetReader(context.workload, samples, feed.samples, epoch=epoch, step_of=step_of)
        self._targets_ahead: Loader | None = None
        if self._runner.is_last and context.workload.labels_are_read:
            depth = self._targets.ahead(mine)
            self._targets_ahead = Loader(lambda m, _: self._targets.read(m), mine, feed, depth=depth)
            self._loaders.append(self._targets_ahead)

    def close(self) -> None:
        """Read no further from disk."""
        for loader in self._loaders:
            loader.close()

    def take_targets(self, action: Action) -> Targets:
        """Return the targets of an action's minibatch, the next in order. Only in the last stage."""
        recorder, m = self._context.recorder, action.minibatch
        if self._targets_ahead is None:
            return self._targets.read(m)
        number = self._feed.number(m)
        start = recorder.begin("load", number)
        targets = self._targets_ahead.take(m, timeout=self._context.timeout)
        recorder.span("load", str(action), start, recorder.now(), minibatch=number)
        return targets

    def take(self, action: Action) -> Any:
        """Return what an action's minibatch brings, the next in order, as `StageRunner.forward` takes it.

        Samples in the first stage, a packet behind it, both where a later stage reads samples too.
        """
        samples = self._take_samples(action) if self._runner.reads_samples else None
        if self._runner.is_first:
            return samples
        recorder, timeout = self._context.recorder, self._context.timeout
        number, peer = self._feed.number(action.minibatch), self._inbox.peer()
        start = recorder.begin("wait", number, peer)
        packet = self._inbox.take(number, timeout=timeout, action=str(action))
        recorder.span("wait", str(action), start, recorder.now(), minibatch=number, peer=peer)
        return PacketAndSamples(packet, samples) if self._runner.reads_samples else packet

    def _take_samples(self, action: Action) -> Any:
        recorder, number = self._context.recorder, self._feed.number(action.minibatch)
        start = recorder.begin("load", number)
        samples = self._loader.take(action.minibatch, timeout=self._context.timeout)
        recorder.span("load", str(action), start, recorder.now(), minibatch=number)
        return samples
