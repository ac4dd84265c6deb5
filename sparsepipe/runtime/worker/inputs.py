"""What a stage works on and where it comes from: samples and labels read from disk, packets of the stages beside it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...schedule import Action, Op, fed_by
from ..transport.channel import Inbox, LocalQueue, WireInbox
from ..transport.packet import FORWARD
from .prefetch import Loader
from .stage_replica import StageReplica

if TYPE_CHECKING:
    from .worker import Worker


def inbox(
    worker: "Worker", post: StageReplica, minibatches: Sequence[tuple[int, int]], *, direction: int
) -> Inbox | LocalQueue:
    """Return where the packets of these minibatches (in this segment, over the run) arrive at a stage."""
    forward = direction == FORWARD
    source = fed_by(post.stage, Op.FORWARD if forward else Op.BACKWARD, len(worker.plan.stages))
    assert source is not None, "a stage at an end of the pipeline has nobody beyond it"
    other = worker.plan.stages[source]
    cut = post.stage + (not forward)  # the one before stage `cut`
    if other.ranks == post.own.ranks:
        return worker.shelves[direction, cut]
    expected = [(other.replica(m), minibatch) for m, minibatch in minibatches]
    options: dict[str, Any] = {
        "direction": direction,
        "boundary": post.runner.id_before if forward else post.runner.id_after,
        "cut": cut,
        "memory": worker.process.shared_memory,
        "sockets": worker.process.sockets,
    }
    wire = worker.process.wires.get((direction, cut))
    return WireInbox(wire, expected, **options) if wire else Inbox(expected, **options)


class Inputs:
    """What a stage works on: minibatches read from disk in the first stage, packets from the one before in others."""

    def __init__(
        self,
        worker: "Worker",
        post: StageReplica,
        dataset: Any,
        batches: Mapping[int, Sequence[int]],
        *,
        todo: Sequence[Action],
        epoch: int = 0,
        base: int = 0,
    ) -> None:
        self._worker, self._post = worker, post
        mine = [a.minibatch for a in todo if a.op is Op.FORWARD and a.stage == post.stage]
        if post.runner.is_first:
            self._loader = Loader(lambda indices: dataset.batch(indices, epoch=epoch), [(m, batches[m]) for m in mine])
        else:
            arrivals = [(m, m + base) for m in mine]
            self._inbox = inbox(worker, post, arrivals, direction=FORWARD)
        self._base = base
        self._batches, self._dataset, self._epoch = batches, dataset, epoch
        self._labels: Loader | None = None
        if post.runner.is_last and worker.workload.per_voxel:  # those of samples are in memory
            self._labels = Loader(self._read_labels, [(m, batches[m]) for m in mine])

    def take_labels(self, action: Action) -> Tensor:
        """Return the labels of an action's minibatch, the next in order. Only in the last stage."""
        worker, m = self._worker, action.minibatch
        if self._labels is None:
            return self._read_labels(self._batches[m])
        start = worker.recorder.begin("load", m + self._base)
        labels = self._labels.take(m, timeout=worker.config.timeout_seconds)
        worker.recorder.span("load", str(action), start, worker.recorder.now(), minibatch=m + self._base)
        return labels

    def _read_labels(self, indices: Sequence[int]) -> Tensor:
        return self._worker.workload.labels(self._dataset, indices, self._epoch)

    def take(self, action: Action) -> Any:
        worker, m, timeout = self._worker, action.minibatch, self._worker.config.timeout_seconds
        if self._post.runner.is_first:
            kind, peer = "load", -1
            start = worker.recorder.begin(kind, m + self._base)
            arrived = self._loader.take(m, timeout=timeout)
        else:
            kind, peer = "wait", self._inbox.peer()
            start = worker.recorder.begin(kind, m + self._base, peer)
            arrived = self._inbox.take(m + self._base, timeout=timeout, action=str(action))
        worker.recorder.span(kind, str(action), start, worker.recorder.now(), minibatch=m + self._base, peer=peer)
        return arrived
