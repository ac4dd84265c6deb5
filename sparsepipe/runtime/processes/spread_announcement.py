"""An announcement of rank 0 to ranks on several hosts: each host has it before rank 0 goes on.

    rank 0   make ──store──► the first rank of each other host (a thread) ──► memory of that host ──► all ranks there
               ◄───────────────── seen ◄──────────────────────────────────────────────┘

Rank 0 begins nothing until all hosts have seen it, so no rank gets further than it could have been when rank 0 made it.
"""

import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from ..failures import translated
from .announcement import Announcement
from .process import Process

_LONG = timedelta(days=7)


class Store(Protocol):
    """What is used of the store where the ranks of several hosts have met."""

    def set(self, key: str, value: str) -> Any: ...

    def get(self, key: str) -> bytes: ...

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> Any: ...

    def again(self) -> Any: ...


class SpreadAnnouncement(Announcement):
    """An `Announcement` on each host, of which rank 0 makes all. `name` tells it from others of the same job."""

    def __init__(self, path: Path, process: Process, store: Store, *, name: str) -> None:
        super().__init__(path, blank=process.leads_host)
        self._process, self._store, self._name = process, store, name
        own = next(ranks for ranks in process.hosts if process.rank in ranks)
        self._others = [ranks[0] for ranks in process.hosts if ranks is not own]
        if process.leads_host and process.rank:
            threading.Thread(target=self._listen, args=(store.again(),), name="announcement", daemon=True).start()

    def make(self, command: int, minibatch: int) -> None:
        """Announce a command by its number, due before a minibatch of the run. Rank 0 does, once.

        Raises DeadlinePassed or PeerLost where a host does not answer.
        """
        self._store.set(self._name, f"{command} {minibatch}")
        for leader in self._others:
            message = f"rank 0 waited {self._process.timeout:g} s for rank {leader} to see a command"
            with translated(message, peer=leader):
                self._store.wait([f"{self._name}/seen/{leader}"], timedelta(seconds=self._process.timeout))
        super().make(command, minibatch)

    def _listen(self, store: Store) -> None:
        with suppress(RuntimeError, OSError, ValueError):  # the job has ended: nothing was announced
            store.wait([self._name], _LONG)
            command, minibatch = store.get(self._name).split()
            super().make(int(command), int(minibatch))
            store.set(f"{self._name}/seen/{self._process.rank}", "1")
