"""What a rank of the first stage reads ahead, as the loaders of a run do (runtime/worker/inputs.py)."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..replication.handing_out import READ_AHEAD
from ..simulator import FORWARD, RankState


@dataclass(eq=False)
class Loader:
    """Asks for the rank's minibatches one after the other, some beyond those that it has begun."""

    rank: RankState
    places: Sequence[int]  # of the rank's minibatches among its pipeline's, in its order
    read: int = 0  # so many of them it has got
    begun: int = 0  # so many of them the rank has begun

    @property
    def wanted(self) -> int | None:
        """The place of the minibatch that it asks for now; None: it has read far enough, or all."""
        return self.places[self.read] if self.read < min(self.begun + READ_AHEAD, len(self.places)) else None

    def is_awaited(self, stage: int, place: int) -> bool:
        """Whether the rank is idle until the first stage, `stage`, has its minibatch at a place."""
        rank = self.rank
        due = rank.todo[rank.place] if rank.place < len(rank.todo) else None
        return rank.free is not None and due == (FORWARD, stage, place)
