"""What every rank of this host is doing now, in a file that they all map: who is to blame for a wait without end.

A rank that waits for another may wait for one that waits itself. The one at the end of that chain is the one to name.
What ranks of other hosts do is not known here: a chain that leads there blames no one, those at its end will say.
"""

import struct
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from .mapped_file import mapped_file

_RECORD = struct.Struct("=qqqq")  # kind, minibatch, peer, since (time.monotonic_ns)
_KINDS = (
    *("starting", "forward", "backward", "weights", "update"),
    *("wait", "average", "load", "evaluate", "checkpoint", "meet"),
)
_WAITS = ("wait",)  # for one peer
_MEETS = ("average", "meet")  # for several


@dataclass(frozen=True)
class Whereabout:
    """One rank's doing: since when, for which minibatch, and for a wait, for whom."""

    rank: int
    kind: str
    minibatch: int
    peer: int
    seconds: float

    def __str__(self) -> str:
        minibatch = f" of minibatch {self.minibatch}" if self.minibatch >= 0 else ""
        return f"rank {self.rank} has been in {self.kind}{minibatch} for {self.seconds:.1f} s"


class Heartbeats:
    """The file, mapped. Writing to it costs about a microsecond."""

    def __init__(self, path: Path, world_size: int, rank: int, *, here: Collection[int] = ()) -> None:
        """`here`: the ranks of this host, where those of others are not."""
        path.parent.mkdir(exist_ok=True)
        self._map = mapped_file(path, world_size * _RECORD.size)
        self._rank, self._here = rank, sorted(here or range(world_size))
        self.tell("starting")

    def tell(self, kind: str, minibatch: int = -1, peer: int = -1) -> None:
        """Say what this rank begins."""
        now = time.monotonic_ns()
        _RECORD.pack_into(self._map, self._rank * _RECORD.size, _KINDS.index(kind), minibatch, peer, now)

    def of(self, rank: int) -> Whereabout:
        kind, minibatch, peer, since = _RECORD.unpack_from(self._map, rank * _RECORD.size)
        return Whereabout(rank, _KINDS[kind], minibatch, peer, (time.monotonic_ns() - since) / 1e9)

    def find_straggler(self, peer: int) -> Whereabout | None:
        """Follow who waits for whom, from the rank that is waited for (-1: for several), to one that does not wait.

        If all of them wait, one has been stopped while it did: the one that has waited longest.
        """
        chain: list[Whereabout] = []
        elsewhere = peer >= 0 and peer not in self._here
        while peer in self._here and peer not in {self._rank, *(found.rank for found in chain)}:
            found = self.of(peer)
            if found.kind in _MEETS:
                return self._absent()
            if found.kind not in _WAITS:
                return found
            chain.append(found)
            peer = found.peer
            elsewhere = peer >= 0 and peer not in self._here
        if elsewhere:
            return None
        return max(chain, key=_seconds) if chain else self._absent()

    def _absent(self) -> Whereabout | None:
        """Return the rank that keeps the others waiting: the one that has been longest at something else."""
        others = [self.of(rank) for rank in self._here if rank != self._rank]
        busy = [other for other in others if other.kind not in _WAITS + _MEETS]
        return max(busy or others, key=_seconds, default=None)


def _seconds(found: Whereabout) -> float:
    return found.seconds
