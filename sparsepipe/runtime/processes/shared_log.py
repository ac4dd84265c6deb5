"""What ranks of several hosts tell each other: lines in the job's store, which a thread on each host takes in order.

    rank 3   add ──store──► 1: …   2: …   3: …  ──► the first rank of each host (a thread), in this order

The thread waits at the store for the next line, so that no one looks again and again, and no rank that trains waits.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

_LONG = timedelta(days=1)


class Store(Protocol):
    """Interface of the rendezvous store of several hosts."""

    def set(self, key: str, value: str) -> Any: ...

    def get(self, key: str) -> bytes: ...

    def add(self, key: str, amount: int) -> int: ...

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> Any: ...

    def again(self) -> Any:
        """Return another connection to the same store, for a thread of its own."""
        ...

    def close(self) -> None: ...


class SharedLog:
    """The lines that are called `name` in a job. Any rank may add to them."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name

    def add(self, line: str) -> int:
        """Add a line; return its number, from 1 on. Raises what the store does."""
        number = self._store.add(f"{self._name}/count", 1)
        self._store.set(f"{self._name}/{number}", line)
        return number

    def follow(self, take: Callable[[int, str, Store], None]) -> None:
        """Have a thread of this process call `take` with each line, its number, and the thread's own way to the store.

        It ends with the process, or with the store.
        """
        arguments = (self._store.again(), take)
        threading.Thread(target=self._follow, args=arguments, name=self._name, daemon=True).start()

    def _follow(self, store: Store, take: Callable[[int, str, Store], None]) -> None:
        number = 1
        try:
            with suppress(OSError, ValueError):  # the job has ended
                while True:
                    with suppress(RuntimeError):  # there was none for a long time
                        store.wait([f"{self._name}/{number}"], _LONG)
                        take(number, store.get(f"{self._name}/{number}").decode(), store)
                        number += 1
        finally:
            store.close()
