"""An announcement to ranks on several hosts: each host has it before the rank that makes it continues.

    rank 0   make ──store──► the first rank of each other host (a thread) ──► memory of that host ──► all ranks there
               ◄───────────────── seen ◄──────────────────────────────────────────────┘

Rank 0 begins nothing until all hosts have seen it, so no rank gets further than it could have been when rank 0 made it.
"""

from datetime import timedelta
from pathlib import Path

from ..failures import translated
from .announcement import Announcement
from .process import Process
from .shared_log import SharedLog, Store


class SpreadAnnouncement(Announcement):
    """An `Announcement` on each host, which one rank makes on all. `name` distinguishes it from others of the same job.

    Cleared on every host by ranks there, once all have met where it was due.
    """

    def __init__(self, path: Path, process: Process, store: Store, *, name: str) -> None:
        """`store`: a connection that no thread holds up which waits long."""
        super().__init__(path, blank=process.leads_host)
        self._process, self._store, self._name = process, store, name
        self._others = [ranks[0] for ranks in process.hosts if ranks[0] != process.rank]
        self._log = SharedLog(store, name)
        if process.leads_host:
            self._log.follow(self._take)

    def make(self, command: int, minibatch: int) -> None:
        """Announce a command by its number, due before a minibatch of the run. One rank does, one at a time.

        Raises DeadlinePassed or PeerLost if a host does not answer.
        """
        rank, seconds = self._process.rank, self._process.timeout
        message = f"rank {rank} waited {seconds:g} s for rank {{}} to see a command"
        with translated(message.format(0), peer=0):  # the store is on its host
            number = self._log.add(f"{rank} {command} {minibatch}")
        for leader in self._others:
            with translated(message.format(leader), peer=leader):
                self._store.wait([f"{self._name}/seen/{number}/{leader}"], timedelta(seconds=seconds))
        super().make(command, minibatch)

    def _take(self, number: int, line: str, store: Store) -> None:
        rank, command, minibatch = map(int, line.split())
        if rank != self._process.rank:  # which makes it itself, once the others have it
            super().make(command, minibatch)
            store.set(f"{self._name}/seen/{number}/{self._process.rank}", "1")
