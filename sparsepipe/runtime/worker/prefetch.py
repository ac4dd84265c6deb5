"""Minibatches read from disk by a thread while the one before is computed."""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ...replication.handing_out import READ_AHEAD
from ..failures import DeadlinePassed
from .feed import Feed


class Loader:
    """Calls `read` with the number and samples of one minibatch after the other, `depth` ahead at most."""

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
        self._room.put(None)
        return found[1]

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
