"""The exponential moving average of a stage's weights: validated, exported and kept in checkpoints.

    average ← d · average + (1 − d) · weights    after every update, with d = min(decay, (1 + t) / (10 + t)) at update t

It begins as a copy of the weights. The smaller decay of the first updates lets go of what was drawn at random, as in
TensorFlow's ExponentialMovingAverage. Each weight is averaged by itself, so that any cut has the numbers of one
process. Running statistics of batch norm are means already: validated are the newest.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from .checkpoint import without_prefix
from .weights import Version

AVERAGE, UPDATES = "ema:", "ema_updates:"  # how checkpoints name an average, and the updates that it is over
_WARM_UP = 10


class MovingAverage:
    """The averages of weights by name, over the updates since the run began."""

    def __init__(self, weights: Mapping[str, Tensor], decay: float) -> None:
        self._decay = decay
        self._updates: dict[str, int] = {}  # of each weight: layers may come from stages that update unlike often
        self.version = Version(0, {})  # the averages, as a forward takes weights
        self.load({}, weights)

    @torch.no_grad()
    def update(self, weights: Mapping[str, Tensor]) -> None:
        """Take the weights after an update."""
        for count in {*self._updates.values()}:
            names = [name for name, updates in self._updates.items() if updates == count]
            decay = min(self._decay, (2 + count) / (_WARM_UP + 1 + count))
            averages = [self.version.tensors[name] for name in names]
            torch._foreach_lerp_(averages, [weights[name].detach() for name in names], 1 - decay)
        self._updates = {name: updates + 1 for name, updates in self._updates.items()}

    def state(self) -> dict[str, Tensor]:
        """Return what must be kept to continue exactly, as checkpoints name it."""
        updates = {f"{UPDATES}{name}": torch.tensor(float(count)) for name, count in self._updates.items()}
        return {f"{AVERAGE}{name}": tensor for name, tensor in self.version.tensors.items()} | updates

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave, among other tensors. A weight that has no average there begins from itself."""
        known, counts = without_prefix(tensors, AVERAGE), without_prefix(tensors, UPDATES)
        self._updates = {name: int(counts.get(name, 0)) for name in weights}
        self.version.tensors = {name: known.get(name, weight).detach().clone() for name, weight in weights.items()}


def validated_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights that a run validates, by name: their moving averages if a checkpoint's tensors have them."""
    return without_prefix(tensors, "weight:") | without_prefix(tensors, AVERAGE)
