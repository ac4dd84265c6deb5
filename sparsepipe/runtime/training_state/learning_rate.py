"""How the learning rate goes over a run, as a function of the minibatches done: the same under every plan."""

import math
from collections.abc import Callable
from dataclasses import dataclass

# name -> factor on the learning rate, from (epochs done, share of the run done, decay, decay_epochs)
LR_SCHEDULES: dict[str, Callable[[float, float, float, float], float]] = {
    "constant": lambda epochs, share, decay, every: 1.0,
    "step": lambda epochs, share, decay, every: decay ** math.floor(epochs / every),
    "exponential": lambda epochs, share, decay, every: decay ** (epochs / every),
    "polynomial": lambda epochs, share, decay, every: (1 - share) ** decay,
    "cosine": lambda epochs, share, decay, every: (1 + math.cos(math.pi * share)) / 2,
}


@dataclass(frozen=True)
class LearningRate:
    """A schedule with a linear warm-up before it.

    `decay` is the factor of step and exponential schedules every `decay_epochs` epochs, the power of a polynomial one.
    """

    base: float
    schedule: str = "constant"
    warmup: int = 0  # minibatches
    decay: float = 0.1
    decay_epochs: float = 30.0

    def at(self, minibatch: int, *, epoch_minibatches: int, total_minibatches: int) -> float:
        """Return the rate of the update whose first minibatch is `minibatch` of the whole run."""
        if minibatch < self.warmup:
            return self.base * (minibatch + 1) / self.warmup
        share = min(1.0, (minibatch - self.warmup) / max(1, total_minibatches - self.warmup))
        epochs = minibatch / epoch_minibatches
        try:
            return self.base * LR_SCHEDULES[self.schedule](epochs, share, self.decay, self.decay_epochs)
        except OverflowError:  # of a factor above 1
            return math.inf
