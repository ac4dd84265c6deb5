"""What rank 0 proposes to all ranks of this host, and how far each is with it, in memory that they share.

    rank 0   propose 1 ──────────────────────────► all ranks are ready: announce when it is done (ballot.py)
    rank k            look ► checked ► ready            (or failed: rank 0 withdraws it, and nothing has changed)

To look costs less than a microsecond, so a rank looks while it trains, and no one waits for a message.
"""

import mmap
import threading
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..failures import translated
from .process import Process
from .shared_log import SharedLog, Store
from .signs_of_life import mapped_file

_WORD = 8  # bytes, which are written and read as a whole


class Answer(IntEnum):
    """Progress of a rank with a proposal; later answers follow earlier ones."""

    NONE = 0
    CHECKED = 1  # it could be done, as far as is known before anything was made
    READY = 2  # all is made that can be made before
    FAILED = 3  # it cannot be done, and what was made is let go


class Ballot:
    """The file, mapped; without a path, memory of this process alone. Rank 0 opens it first, and makes it blank."""

    def __init__(self, path: Path | None, world_size: int, *, blank: bool = True) -> None:
        self._path = path if blank else None
        size = _WORD * (1 + world_size)
        shared = mmap.mmap(-1, size) if path is None else mapped_file(path, size)
        # (the number of the proposal, whether it stands), then (number, answer) of each rank
        self._words = np.frombuffer(shared, dtype=np.int64)
        if blank:
            self._words[:] = 0

    def propose(self, number: int) -> None:
        """Propose something by its number, above those before. Rank 0 does."""
        self._say(0, 2 * number)

    def withdraw(self, number: int) -> None:
        """Take a proposal back."""
        self._say(0, 2 * number + 1)

    @property
    def proposed(self) -> int:
        """The number of the last proposal, 0 before the first."""
        return int(self._words[0]) // 2

    def stands(self, number: int) -> bool:
        """Return whether a proposal is the last one, and not withdrawn."""
        return int(self._words[0]) == 2 * number

    def answer(self, rank: int, number: int, answer: Answer) -> None:
        """Say how far a rank is with a proposal."""
        self._say(1 + rank, len(Answer) * number + answer)

    def answers(self, number: int) -> list[Answer]:
        """Return how far each rank is with a proposal."""
        found = (divmod(int(word), len(Answer)) for word in self._words[1:])
        return [Answer(answer) if own == number else Answer.NONE for own, answer in found]

    def _say(self, place: int, word: int) -> None:
        self._words[place] = word

    def close(self) -> None:
        """Look no more; who made it blank removes the file, which others may still have mapped."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


class SpreadBallot(Ballot):
    """A `Ballot` on each host. `name` distinguishes it from others of the same job.

    What one rank says comes in its order; of what several say at once, each host may see another first.
    """

    def __init__(self, path: Path, process: Process, store: Store, *, name: str) -> None:
        """`store`: a connection that no thread holds up which waits long."""
        super().__init__(path, process.world_size, blank=process.leads_host)
        self._process = process
        self._log, self._order = SharedLog(store, name), threading.Lock()
        if process.leads_host:
            self._log.follow(self._take)

    def _say(self, place: int, word: int) -> None:
        """Raises DeadlinePassed or PeerLost if the store does not answer."""
        process = self._process
        message = f"rank {process.rank} waited for the store, where it answers"
        with self._order, translated(message, peer=0):  # it is on rank 0's host
            super()._say(place, word)
            self._log.add(f"{process.rank} {place} {word}")

    def _take(self, number: int, line: str, store: Store) -> None:
        rank, place, word = map(int, line.split())
        if rank not in self._process.ranks_here:  # of those it is here since they said it, and maybe more
            super()._say(place, word)


_SIZE = 8  # bytes: one aligned word, which is written and read as a whole
_COMMANDS = 2**8


# One thing that rank 0 announces to all ranks of this host, in memory that they share: a command, and when it is due
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
