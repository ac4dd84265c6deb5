"""A rank that is made slow, or ends, at minibatches that the run's settings name: see sparsepipe/values/stragglers."""

import os
import signal
import time
from dataclasses import dataclass, field

from ...values.stragglers import Stragglers
from ..config import RunConfig
from ..processes.identity import Identity

_MOST_IN_WORK = 4096  # minibatches of one rank: more than any plan has in flight


@dataclass(frozen=True)
class Straggler:
    """Injected delays of one rank, by its number over all pipelines."""

    stragglers: Stragglers
    rank: int
    dies: bool = True  # at the minibatch of a kill: not once it was started again
    _met: set[int] = field(
        default_factory=set, repr=False
    )  # minibatches in work, whose sleeps of fixed length are done
    _slept: list[float] = field(default_factory=lambda: [0.0], repr=False)  # seconds, all together

    @classmethod
    def of(cls, config: RunConfig, identity: Identity) -> "Straggler | None":
        """Return the injected delays of a process's rank; None if there are none."""
        if not config.stragglers:
            return None
        rank = identity.ranks[identity.rank] if identity.ranks else identity.rank
        return cls(Stragglers.parse(config.stragglers), rank, dies=identity.attempt == 0)

    def begin(self, minibatch: int) -> None:
        """Begin a minibatch, by its number among the pipeline's own: the process ends here where a kill is due."""
        if self.dies and self.stragglers.kills(self.rank, minibatch):
            os.kill(os.getpid(), signal.SIGKILL)

    def lag(self, minibatch: int, seconds: float) -> None:
        """Take longer over work on a minibatch that took so many seconds.

        What does not grow with them comes once, after a rank's first work on a minibatch.
        """
        extra = self.stragglers.extra_seconds(self.rank, minibatch, seconds)
        if minibatch in self._met:
            extra -= self.stragglers.extra_seconds(self.rank, minibatch, 0.0)
        self._met.add(minibatch)
        if len(self._met) > _MOST_IN_WORK:
            self._met.remove(min(self._met))
        if extra > 0:
            self._slept[0] += extra
            time.sleep(extra)

    @property
    def slept(self) -> float:
        """By how many seconds this rank was delayed so far."""
        return self._slept[0]
