"""The member of `Averager` for the rule that averages gradients before each step."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ....replication.base import Merge
from ...failures import DeadlinePassed
from ...pipelines.base import Coordinator
from .contributions import Contributions
from .exchanging import Waited
from .held import Held
from .mean import Mean, MeanExchange
from .merging import distance
from .messages import CalledOff
from .peers import Peers
from .server import Server
from .state import StateDesk

_ASK_SECONDS = 0.5


@dataclass(eq=False)
class ExchangingGradients:
    """What the first replica of a stage has to exchange with other pipelines, for all of the stage's replicas."""

    gradients: MeanExchange
    last: MeanExchange  # of weights, where a run ends
    desk: StateDesk
    server: Server
    peers: Peers
    lasts: Callable[[Merge], float]  # by how many seconds a merge lasts longer than it takes here

    def close(self) -> None:
        for exchange in (self.gradients, self.last):
            exchange.reductions.close()
        self.server.close()
        self.peers.close()


class GradientAverager:
    """Each update waits for the mean of all pipelines' gradients: all-reduce.

    So all pipelines have the same weights and optimizer state at the same update. Buffers are averaged with the
    gradients. A member that dies takes its gradients with it: the others step with their own, and would stay apart;
    whoever starts the job ends it then.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        held: Held,
        contributions: Contributions,
        exchanging: ExchangingGradients | None,
        *,
        timeout: float,
    ) -> None:
        """`exchanging`: of the first replica of the stage alone."""
        self._coordinator, self._held, self._contributions = coordinator, held, contributions
        self._exchanging, self._timeout = exchanging, timeout
        self._waited = Waited()
        self._update = self._version = -1  # the last step, and the merge that it was of

    def before_step(self, gradients: list[Tensor | None], update: int, *, samples: int) -> list[Tensor | None]:
        found: Tensor | None = None
        if self._exchanging is not None:
            number = self._contributions.number(update, samples=samples)
            if number is not None:
                found = self._mean(self._exchanging, number, update, gradients)
        told = self._held.told(found)
        return gradients if told is None else self._held.gradients(told)

    def _mean(
        self, exchanging: ExchangingGradients, number: int, update: int, gradients: list[Tensor | None]
    ) -> Tensor | None:
        own, waited = self._held.snapshot_of(gradients), self._waited.seconds
        mean: Mean | None = None
        facts: dict[str, Any] = {"update": update, "contributed": update, "staleness": 0, "stage": self._held.stage}
        with self._waited:
            merge = self._merge(number, update)
            self._version = merge.number
            try:
                if len(merge.members) > 1:
                    mean = exchanging.gradients.mean(merge, own)
                    time.sleep(exchanging.lasts(merge))
            except CalledOff as error:
                facts["why"] = str(error)
        facts |= {"applied": mean is not None, "waited": self._waited.seconds - waited, "distance": 0.0, "bytes": 0}
        if mean is not None:
            weights = self._held.layout.weights
            away = distance((mean.values - own)[weights], mean.values[weights])
            facts |= {"distance": away, "bytes": mean.bytes}
        self._coordinator.merged(merge, facts)
        return None if mean is None else mean.values

    def _merge(self, number: int, update: int) -> Merge:
        deadline = time.monotonic() + self._timeout
        while (merge := self._coordinator.merge_of(number, wait=_ASK_SECONDS)) is None:
            if time.monotonic() >= deadline:
                what = f"the gradients of update {update} waited {self._timeout:g} s for other pipelines"
                raise DeadlinePassed(what, peer=None)
        return merge

    def after_step(self, update: int, *, samples: int) -> None:
        self._update = update
        if self._exchanging is not None:
            self._exchanging.desk.boundary(update)

    def finish(self) -> None:
        """End with the weights that all have, or with their mean, where some made their last steps without others."""
        with self._waited:
            merge = self._coordinator.last_merge(self._update)
        own, found = self._exchanging, None
        if own is not None:
            facts: dict[str, Any] = {"update": self._update, "contributed": self._update, "staleness": 0, "last": True}
            facts |= {"applied": False, "stage": self._held.stage, "distance": 0.0, "bytes": 0}
            if len(merge.members) > 1:
                try:
                    mean = own.last.mean(merge, self._held.snapshot(), version=self._version)
                    found = mean.values if len(set(mean.versions.values())) > 1 else None
                    facts |= {"applied": True, "bytes": mean.bytes}
                except CalledOff as error:
                    facts["why"] = str(error)
            self._coordinator.merged(merge, facts)
        self._held.apply(found, in_place_of=True)
        if own is not None:
            own.desk.final()

    def close(self) -> None:
        if self._exchanging is not None:
            self._exchanging.close()

    def take_waited(self) -> float:
        """Return the seconds that this rank waited for other pipelines since the last call."""
        return self._waited.take()

    def state(self) -> dict[str, Tensor]:
        """It keeps nothing beside weights and optimizer."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """It keeps nothing."""
