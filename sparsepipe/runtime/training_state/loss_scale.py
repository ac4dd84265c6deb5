"""The factor on the loss that keeps 16-bit gradients from vanishing: halved when they overflow, else grown."""

from dataclasses import dataclass


@dataclass
class LossScale:
    """torch.amp.GradScaler's rule, as numbers that every rank computes identically (Micikevicius et al., ICLR 2018,
    3.2).
    """

    factor: float = 2.0**16
    good_steps: int = 0  # since the factor changed
    interval: int = 2000  # so many of them in a row double it

    def update(self, *, overflowed: bool) -> None:
        """Take note of a step, which was left out where it overflowed."""
        if overflowed:
            self.factor, self.good_steps = self.factor / 2, 0
            return
        self.good_steps += 1
        if self.good_steps == self.interval:
            self.factor, self.good_steps = self.factor * 2, 0
