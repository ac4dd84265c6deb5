"""A stage that one rank has alone: nothing to exchange, no one to wait for."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


class Alone:
    """The member of `Replication` for a stage without replicas."""

    num_replicas = 1
    overlaps = False
    statistics = None

    def overlap(
        self, weights: Sequence[Tensor], gathered: Sequence[Tensor | None] | None
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def complete(self, gradients: Sequence[Tensor | None]) -> None:
        """Nothing sets out."""

    def mean(
        self,
        weights: Sequence[Tensor],
        gathered: Callable[[], list[Tensor | None]],
        num_minibatches: int,
        *,
        what: str,
    ) -> list[Tensor | None]:
        gradients = gathered()
        if num_minibatches > 1 and (there := [gradient for gradient in gradients if gradient is not None]):
            torch._foreach_div_(there, num_minibatches)
        return gradients

    def average_buffers(self, buffers: Sequence[Tensor], share: float) -> None:
        """They are as they should be."""

    def broadcast(self, values: Tensor, source: int, *, what: str) -> None:
        """They are its own."""

    def take_waited(self) -> float:
        return 0.0
