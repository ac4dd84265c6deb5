"""The mean of the members' weights, as partial reduce, local SGD and a quorum take it."""

from dataclasses import dataclass

from torch import Tensor

from ....values.replication.base import Merge
from .mean import MeanExchange
from .merging import Contribution, Merged, distance


@dataclass(eq=False)
class MeanWeights:
    """The member of `Merging` for Arithmetic.MEAN_WEIGHTS. Buffers are averaged in the same way; it has no state."""

    exchange: MeanExchange

    def contribute(self, number: int, update: int, snapshot: Tensor) -> Contribution:
        return Contribution(number, update, snapshot)

    def merge(self, merge: Merge, contribution: Contribution) -> Merged:
        mean, weights = self.exchange.mean(merge, contribution.snapshot), self.exchange.layout.weights
        correction = mean.values - contribution.snapshot
        away = distance(correction[weights], mean.values[weights])
        return Merged(correction, mean.values, {"distance": away, "bytes": mean.bytes})

    def applied(self, contribution: Contribution, merged: Merged | None) -> None:
        """Nothing is kept of it."""

    def state(self) -> dict[str, Tensor]:
        return {}

    def kept(self) -> dict[str, Tensor]:
        return {}

    def load(self, state: dict[str, Tensor]) -> None:
        """It has none."""
