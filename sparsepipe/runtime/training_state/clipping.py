"""Gradients clipped by the norm of all of them together, over every stage of the network."""

from collections.abc import Sequence

import torch
from torch import Tensor


def square_norm(gradients: Sequence[Tensor], *, replicas: int) -> Tensor:
    """Return this rank's part, [1], of the square of the norm over the network: the parts of all ranks sum to it.

    Replicas of a stage hold the same gradients and count once.
    """
    squares = (gradient.abs().double().square().sum() for gradient in gradients)  # of complex numbers, too
    own = sum(squares, torch.zeros((), dtype=torch.float64))
    return (own / replicas).reshape(1)


def clip(gradients: Sequence[Tensor], most: float, norm: float) -> None:
    """Scale the gradients, in place, so that their norm over the network, which is `norm`, is `most` at most."""
    if gradients and norm > most:
        torch._foreach_mul_(list(gradients), most / norm)
