"""The inputs of a stage: samples and targets read from disk, packets of the stage before."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from ...values.replication.base import READ_AHEAD
from ...values.schedule import Action, Op
from ..failures import DeadlinePassed
from ..stages.base import PacketAndSamples, SplitSamples
from ..transport.packet import FORWARD
from ..workloads.base import Samples
from .control import WorkerContext
from .feed import Feed
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

        `step_of` returns the minibatches of the step that one belongs to, where the mean over a step is to be that over
        all it counts.
        """
        self._context, self._runner = context, replica.runner
        mine = [a.minibatch for a in todo if a.op is Op.FORWARD and a.stage == replica.stage]
        self._loaders: list[Loader] = []
        self._feed, self._num_processes = feed, context.workload.reading_processes
        if self._runner.reads_samples:
            self._loader = self._begun(samples, mine, epoch)
        if not self._runner.is_first:
            self._inbox = context.exchange.inbox(replica, mine, feed, direction=FORWARD)
        self._targets = TargetReader(context.workload, samples, feed.samples, epoch=epoch, step_of=step_of)
        self._targets_ahead: Loader | None = None
        if self._runner.is_last and context.workload.labels_are_read:
            depth = self._targets.ahead(mine)
            begun = self._begun(samples, mine, epoch) if self._num_processes else None

            def read(minibatch: int, _: Sequence[int]) -> tuple[Targets, ...]:
                if begun is not None:  # its samples are read by now, or nearly
                    begun.take(minibatch, timeout=context.timeout)
                return self._targets.read(minibatch)

            self._targets_ahead = Loader(read, mine, feed, depth=depth)
            self._loaders.append(self._targets_ahead)

    def _begun(self, samples: Samples, places: Sequence[int], epoch: int) -> "Loader":
        """Return what reads samples, or has processes read them: as many minibatches further ahead as these are."""
        workload = self._context.workload
        depth = READ_AHEAD + (self._num_processes if self._feed.is_known else 0)

        def begin(_: int, indices: Sequence[int]) -> list[Any]:
            return [workload.begin_batch(samples, part, epoch) for part in workload.parts(samples, indices)]

        loader = Loader(begin, places, self._feed, depth=depth)
        self._loaders.append(loader)
        return loader

    def close(self) -> None:
        """Read no further from disk."""
        for loader in self._loaders:
            loader.close()

    def take_targets(self, action: Action) -> tuple[Targets, ...]:
        """Return the targets of each part of an action's minibatch, the next in order. Only in the last stage."""
        recorder, m = self._context.recorder, action.minibatch
        if self._targets_ahead is None:
            return self._targets.read(m)
        number = self._feed.number(m)
        start = recorder.begin("load", number)
        targets: tuple[Targets, ...] = self._targets_ahead.take(m, timeout=self._context.timeout)
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
        parts = self._loader.take(action.minibatch, timeout=self._context.timeout)
        recorder.span("load", str(action), start, recorder.now(), minibatch=number)
        return SplitSamples(tuple(parts)) if len(parts) > 1 else parts[0]


class Loader:
    """Calls `read` with the number and samples of one minibatch after the other, `depth` ahead at most.

    `read` returns the minibatch, or a list of its parts, some of which may be Futures that `take` waits for.
    """

    def __init__(
        self,
        read: Callable[[int, Sequence[int]], Any],
        places: Sequence[int],
        feed: Feed,
        *,
        depth: int = READ_AHEAD,
    ) -> None:
        """`places`: of the minibatches to read, in order; those that the feed has not are left out."""
        self._ready: queue.SimpleQueue[tuple[int, Any] | BaseException] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()  # as many as may be read ahead
        self._closed = False
        for _ in range(depth):
            self._room.put(None)
        if places:
            threading.Thread(target=self._read, args=(read, places, feed), name="loader", daemon=True).start()

    def take(self, minibatch: int, *, timeout: float) -> Any:
        """Return what was read for `minibatch`, the next in order. Raises what reading it raised."""
        try:
            found = self._ready.get(timeout=timeout)
        except queue.Empty:
            raise DeadlinePassed(f"reading minibatch {minibatch} took more than {timeout:g} s", peer=None) from None
        if isinstance(found, BaseException):
            raise found
        assert found[0] == minibatch
        try:
            value = found[1]
            if isinstance(value, list):
                value = [part.result(timeout) if isinstance(part, Future) else part for part in value]
        except TimeoutError:
            raise DeadlinePassed(f"reading minibatch {minibatch} took more than {timeout:g} s", peer=None) from None
        self._room.put(None)
        return value

    def close(self) -> None:
        """Read no further: what is left is not asked for any more."""
        self._closed = True
        self._room.put(None)

    def _read(self, read: Callable[[int, Sequence[int]], Any], places: Sequence[int], feed: Feed) -> None:
        indices: Sequence[int] = ()
        try:
            for place in places:
                self._room.get()
                if self._closed or not feed.has(place):
                    return
                indices = feed.samples(place)
                self._ready.put((place, read(place, indices)))
        except BaseException as error:  # handed to the worker, who raises it
            error.add_note(f"while reading minibatch {place} (samples {', '.join(map(str, indices[:5]))}, …)")
            self._ready.put(error)
