"""Dropout whose mask is a function of a seed: a recomputed or replayed minibatch drops the same activations."""

import torch
from torch import Tensor, nn


class SeededDropout(nn.Module):
    """Drop activations with a probability and scale the rest by 1 / (1 - probability); identity in evaluation.

    CPUs and GPUs draw from generators of their own: between the two kinds of device the mask differs.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def drop(self, rows: Tensor, seed: int, *, among: tuple[int, Tensor, int] | None = None) -> Tensor:
        """Return rows with what is dropped set to zero.

        `among`: of how many rows the mask is drawn, which of them these are, and their axis, if others have the rest.
        """
        if not self.training or self.probability == 0:
            return rows
        keep = 1 - self.probability
        generator = torch.Generator(device=rows.device).manual_seed(seed)
        if among is None:
            return rows * self.mask_of(rows).bernoulli_(keep, generator=generator).div_(keep)
        count, numbers, axis = among
        room = rows.new_empty(*rows.shape[:axis], count, *rows.shape[axis + 1 :])
        mask = self.mask_of(room).bernoulli_(keep, generator=generator).div_(keep)
        return rows * mask.index_select(axis, numbers)

    def mask_of(self, rows: Tensor) -> Tensor:
        """Return room for the mask of rows [N, C]: a number for each activation."""
        return torch.empty_like(rows)


class SeededDropPath(SeededDropout):
    """Drop whole rows likewise (Huang et al., "Deep Networks with Stochastic Depth"), as timm's DropPath does."""

    def mask_of(self, rows: Tensor) -> Tensor:
        return rows.new_empty(len(rows), *[1] * (rows.dim() - 1))
