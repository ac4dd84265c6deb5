"""What the first replica of a stage has to exchange with the other pipelines' ranks."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ...pipelines.base import Coordinator
from .mean_weights import MeanWeights
from .merging import Merging
from .pair import Offer
from .peers import Peers
from .reduction import Reductions
from .server import Server
from .state import StateDesk
from .under_way import UnderWay


@dataclass(eq=False)
class Contributions:
    """After which updates a pipeline contributes: its last stage's first replica decides, the others ask."""

    coordinator: Coordinator
    every: int
    leads: bool
    _samples: int = 0

    def number(self, update: int, *, samples: int, busy: bool) -> int | None:
        """Return the number of the contribution after an update, None where there is none.

        `samples` have been trained on since the last call; `busy`: the last contribution has no outcome yet.
        """
        self._samples += samples
        if (update + 1) % self.every:
            return None
        if not self.leads:
            return self.coordinator.contribution(update)
        if busy:
            self.coordinator.pass_over(update)
            return None
        samples, self._samples = self._samples, 0
        return self.coordinator.contribute(update, samples=samples)


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
        self._since = 0.0

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.monotonic() - self._since
