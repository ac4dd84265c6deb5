"""The inputs of a stage: samples and labels read from disk, packets of the stage before."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ...schedule import Action, Op
from ..stages.base import PacketAndSamples
from ..transport.packet import FORWARD
from ..workloads.base import Samples
from .context import WorkerContext
from .prefetch import Loader
from .stage_replica import StageReplica


class Inputs:
    """Minibatches read from disk where a stage reads samples, packets behind the first; labels in the last."""

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
    ) -> None:
        """`batches`: the samples of each minibatch of `todo`. `base` is the number in the run of minibatch 0."""
        self._context, self._runner = context, replica.runner
        mine = [a.minibatch for a in todo if a.op is Op.FORWARD and a.stage == replica.stage]
        self._loaders: list[Loader] = []
        if self._runner.reads_samples:
            self._loader = Loader(lambda indices: samples.batch(indices, epoch=epoch), [(m, batches[m]) for m in mine])
            self._loaders.append(self._loader)
        if not self._runner.is_first:
            self._inbox = context.exchange.inbox(replica, [(m, m + base) for m in mine], direction=FORWARD)
        self._base = base
        self._batches, self._samples, self._epoch = batches, samples, epoch
        self._labels: Loader | None = None
        if self._runner.is_last and context.workload.labels_are_read:
            self._labels = Loader(self._read_labels, [(m, batches[m]) for m in mine])
            self._loaders.append(self._labels)

    def close(self) -> None:
        """Read no further from disk."""
        for loader in self._loaders:
            loader.close()

    def take_labels(self, action: Action) -> Tensor:
        """Return the labels of an action's minibatch, the next in order. Only in the last stage."""
        recorder, m = self._context.recorder, action.minibatch
        if self._labels is None:
            return self._read_labels(self._batches[m])
        start = recorder.begin("load", m + self._base)
        labels = self._labels.take(m, timeout=self._context.timeout)
        recorder.span("load", str(action), start, recorder.now(), minibatch=m + self._base)
        return labels

    def _read_labels(self, indices: Sequence[int]) -> Tensor:
        return self._context.workload.labels(self._samples, indices, self._epoch)

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
