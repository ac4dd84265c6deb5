"""One thing that rank 0 announces to all ranks of this host, in memory that they share: a command, and when it is due.

To look costs less than a microsecond. Whoever looks after the announcement sees it, without any message.
"""

import mmap
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..failures import translated
from .mapped_file import mapped_file
from .process import Process
from .shared_log import SharedLog, Store

_SIZE = 8  # bytes: one aligned word, which is written and read as a whole
_COMMANDS = 2**8


class Announced(NamedTuple):
    command: int  # its number
    minibatch: int  # of the run, before which it is due


class Announcement:
    """The file, mapped; without a path, memory of this process alone. Rank 0 opens it first, and makes it blank."""

    def __init__(self, path: Path | None, *, blank: bool = True) -> None:
        self._path = path if blank else None
        shared = mmap.mmap(-1, _SIZE) if path is None else mapped_file(path, _SIZE)
        self._word = np.frombuffer(shared, dtype=np.int64)  # (minibatch, command + 1), 0 where there is none
        if blank:
            self._word[0] = 0

    def make(self, command: int, minibatch: int) -> None:
        """Announce a command by its number, due before a minibatch of the run. Rank 0 does, one at a time."""
        self._word[0] = minibatch * _COMMANDS + command + 1

    def clear(self) -> None:
        """Make room for the next one. All ranks do, once they have met where the last one was due; they meet again
        before there is another.
        """
        self._word[0] = 0

    def read(self) -> Announced | None:
        """Return what is announced, None if nothing is."""
        word = int(self._word[0])
        return Announced(word % _COMMANDS - 1, word // _COMMANDS) if word else None

    def close(self) -> None:
        """Look no more; who made it blank removes the file, which others may still have mapped."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


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
