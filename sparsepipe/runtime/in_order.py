"""A thread that does one thing after the other, and what its beginners wait for as for a work of torch.distributed."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta


class InOrder:
    """Does what is begun in a thread of its own, in the order in which it was begun.

    The thread is a daemon: a process must be able to end while something waits for a rank that never comes.
    """

    def __init__(self, name: str) -> None:
        self._begun: queue.SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def begin(self, do: Callable[[], None]) -> "Begun":
        """Have the thread call `do` once it has done all that was begun before."""
        end: Future[None] = Future()
        self._begun.put((do, end))
        return Begun(end)

    def close(self) -> None:
        """End the thread, once it has done what was begun."""
        self._begun.put(None)

    def _work(self) -> None:
        while (begun := self._begun.get()) is not None:
            do, end = begun
            try:
                do()
            except Exception as error:  # raised where it is waited for
                end.set_exception(error)
            else:
                end.set_result(None)
            del begun, do, end  # nor their tensors, while the next is waited for


@dataclass(frozen=True, eq=False)
class Begun:
    """An operation under way, awaited like torch.distributed's Work."""

    end: Future[None]

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return once it is done. Raises TimeoutError, or what went wrong."""
        self.end.result(None if timeout is None else timeout.total_seconds())
        return True

    def is_completed(self) -> bool:
        return self.end.done()
