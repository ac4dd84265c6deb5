"""What rank 0 proposes to all ranks of this host, and how far each is with it, in memory that they share.

    rank 0   propose 1 ──────────────────────────► all ranks are ready: announce when it is done (announcement.py)
    rank k            look ► checked ► ready            (or failed: rank 0 withdraws it, and nothing has changed)

To look costs less than a microsecond, so a rank looks while it trains, and no one waits for a message.
"""

import mmap
import threading
from enum import IntEnum
from pathlib import Path

import numpy as np

from ..failures import translated
from .mapped_file import mapped_file
from .process import Process
from .shared_log import SharedLog, Store

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
