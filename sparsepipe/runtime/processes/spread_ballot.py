"""A ballot of ranks on several hosts: what a rank says is in its own host's memory at once, in the others' soon after.

rank 3   answer ──► memory of its host              looks, by any rank: into its own host's memory alone
            └─store─► the first rank of each other host (a thread) ──► memory of that host
"""

import threading
from pathlib import Path

from ..failures import translated
from .ballot import Ballot
from .process import Process
from .shared_log import SharedLog, Store


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
