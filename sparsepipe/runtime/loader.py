"""The first stage's minibatches, read by a thread while the one before is computed."""

import queue
import threading
from collections.abc import Sequence
from typing import Any

from .failures import DeadlinePassed


class Loader:
    """Reads (minibatch, sample indices) in order, at most `depth` ahead of the worker."""

    def __init__(
        self, dataset: Any, minibatches: Sequence[tuple[int, Sequence[int]]], *, epoch: int, depth: int = 2
    ) -> None:
        self._ready: queue.Queue[tuple[int, Any] | BaseException] = queue.Queue(maxsize=depth)
        if minibatches:
            read = threading.Thread(target=self._read, args=(dataset, minibatches, epoch), name="loader", daemon=True)
            read.start()

    def take(self, minibatch: int, *, timeout: float) -> Any:
        """Return the points of `minibatch`, the next in order. Raises what reading it raised."""
        try:
            found = self._ready.get(timeout=timeout)
        except queue.Empty:
            raise DeadlinePassed(f"reading minibatch {minibatch} took more than {timeout:g} s", peer=-1) from None
        if isinstance(found, BaseException):
            raise found
        assert found[0] == minibatch
        return found[1]

    def _read(self, dataset: Any, minibatches: Sequence[tuple[int, Sequence[int]]], epoch: int) -> None:
        try:
            for minibatch, indices in minibatches:
                self._ready.put((minibatch, dataset.batch(indices, epoch=epoch)))
        except BaseException as error:  # handed to the worker, who raises it
            error.add_note(f"while reading minibatch {minibatch} (samples {', '.join(map(str, indices[:5]))}, …)")
            self._ready.put(error)
