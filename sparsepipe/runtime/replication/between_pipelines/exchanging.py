"""What the first replica of a stage has to exchange with the other pipelines' ranks."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from .contributions import Contributions
from .mean_weights import MeanWeights
from .merging import Merging
from .pair import Offer
from .peers import Peers
from .reduction import Reductions
from .server import Server
from .state import StateDesk
from .under_way import UnderWay


@dataclass(eq=False)
class Exchanging:
    """What the first replica of a stage has to exchange with other pipelines, for all of the stage's replicas."""

    contributions: Contributions
    merging: Merging
    final: MeanWeights  # what a run ends with, whatever its rule
    under_way: UnderWay
    desk: StateDesk
    server: Server
    peers: Peers
    offer: Offer | None  # of a rule whose merges take partners by surprise
    reductions: Sequence[Reductions]

    def close(self) -> None:
        self.under_way.close()
        for reductions in self.reductions:
            reductions.close()
        self.server.close()
        self.peers.close()


class Waited:
    """Counts the seconds that training waits for other pipelines, within it."""

    def __init__(self) -> None:
        self.seconds = 0.0  # since the beginning
        self._since = self._taken = 0.0

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.monotonic() - self._since

    def take(self) -> float:
        """Return the seconds since the last call."""
        found, self._taken = self.seconds - self._taken, self.seconds
        return found
