"""The member of `Averager` for the rule that averages gradients before each step."""

import time
from collections.abc import Mapping

from torch import Tensor

from ....replication.base import Merge
from ...failures import DeadlinePassed
from ...pipelines.base import Coordinator
from .exchanging import Contributions, Waited
from .held import Held
from .mean import Mean, MeanExchange
from .merging import distance, of_weights
from .messages import CalledOff
from .server import Server
from .state import StateDesk

_ASK_SECONDS = 0.5


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
        exchange: MeanExchange | None,
        *,
        desk: StateDesk,
        server: Server | None,
        timeout: float,
    ) -> None:
        """`exchange`, `server`: of the first replica of the stage alone."""
        self._coordinator, self._held, self._contributions = coordinator, held, contributions
        self._exchange, self._desk, self._server, self._timeout = exchange, desk, server, timeout
        self._is_weight = of_weights(held.layout)
        self._waited, self._taken = Waited(), 0.0
        self._update = -1

    def before_step(self, gradients: list[Tensor], update: int, *, samples: int) -> list[Tensor]:
        found: Tensor | None = None
        if self._exchange is not None:
            number = self._contributions.number(update, samples=samples, busy=False)
            if number is not None:
                found = self._mean(self._exchange, number, update, gradients)
        told = self._held.told(found)
        return gradients if told is None else self._held.gradients(told)

    def _mean(self, exchange: MeanExchange, number: int, update: int, gradients: list[Tensor]) -> Tensor | None:
        own, waited = self._held.snapshot_of(gradients), self._waited.seconds
        mean: Mean | None = None
        facts: dict[str, object] = {"update": update, "contributed": update, "staleness": 0}
        with self._waited:
            merge = self._merge(number, update)
            try:
                mean = exchange.mean(merge, own) if len(merge.members) > 1 else None
            except CalledOff as error:
                facts["why"] = str(error)
        facts |= {"applied": mean is not None, "waited": self._waited.seconds - waited, "distance": 0.0, "bytes": 0}
        if mean is not None:
            away = distance(own[self._is_weight], mean.values[self._is_weight])
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
        self._desk.boundary(update)

    def finish(self) -> None:
        """Say that no gradients come any more. Weights are alike as they are."""
        with self._waited:
            self._coordinator.last_merge(self._update)
        self._desk.final()

    def close(self) -> None:
        if self._exchange is not None:
            self._exchange.reductions.close()
        if self._server is not None:
            self._server.close()
        if self._exchange is not None:
            self._exchange.peers.close()

    def take_waited(self) -> float:
        """Return the seconds that this rank waited for other pipelines since the last call."""
        found, self._taken = self._waited.seconds - self._taken, self._waited.seconds
        return found

    def state(self) -> dict[str, Tensor]:
        """It keeps nothing beside weights and optimizer."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """It keeps nothing."""
