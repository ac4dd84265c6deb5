"""The inputs of a stage: samples and targets read from disk, packets of the stage before."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...schedule import Action, Op
from ..stages.base import PacketAndSamples
from ..transport.packet import FORWARD
from ..workloads.base import Samples
from .context import WorkerContext
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
        batches: Mapping[int, Sequence[int]],
        *,
        todo: Sequence[Action],
        epoch: int = 0,
        base: int = 0,
        step_of: Callable[[int], Sequence[int]] | None = None,
    ) -> None:
        """`batches`: the samples of each minibatch. `base` is the number in the run of minibatch 0.

        `step_of` tells the minibatches of the step that one belongs to, where the mean over a step is to be that over
        all it counts.
        """
        self._context, self._runner = context, replica.runner
        mine = [a.minibatch for a in todo if a.op is Op.FORWARD and a.stage == replica.stage]
        own = [(m, batches[m]) for m in mine]
        self._loaders: list[Loader] = []
        if self._runner.reads_samples:
            self._loader = Loader(lambda _, indices: samples.batch(indices, epoch=epoch), own)
            self._loaders.append(self._loader)
        if not self._runner.is_first:
            self._inbox = context.exchange.inbox(replica, [(m, m + base) for m in mine], direction=FORWARD)
        self._base = base
        self._targets = TargetReader(context.workload, samples, batches, epoch=epoch, step_of=step_of)
        self._targets_ahead: Loader | None = None
        if self._runner.is_last and context.workload.labels_are_read:
            self._targets_ahead = Loader(lambda m, _: self._targets.read(m), own, depth=self._targets.ahead(mine))
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
        start = recorder.begin("load", m + self._base)
        targets = self._targets_ahead.take(m, timeout=self._context.timeout)
        recorder.span("load", str(action), start, recorder.now(), minibatch=m + self._base)
        return targets

    def take(self, action: Action) -> Any:
        """Return what an action's minibatch brings, the next in order, as `StageRunner.forward` takes it.

        Samples in the first stage, a packet behind it, both where a later stage reads samples too.
        """
        samples = self._take_samples(action) if self._runner.reads_samples else None
        if self._runner.is_first:
            return samples
        recorder, m, timeout = self._context.recorder, action.minibatch, self._context.timeout
        peer = self._inbox.peer()
        start = recorder.begin("wait", m + self._base, peer)
        packet = self._inbox.take(m + self._base, timeout=timeout, action=str(action))
        recorder.span("wait", str(action), start, recorder.now(), minibatch=m + self._base, peer=peer)
        return PacketAndSamples(packet, samples) if self._runner.reads_samples else packet

    def _take_samples(self, action: Action) -> Any:
        recorder, m = self._context.recorder, action.minibatch
        start = recorder.begin("load", m + self._base)
        samples = self._loader.take(m, timeout=self._context.timeout)
        recorder.span("load", str(action), start, recorder.now(), minibatch=m + self._base)
        return samples
