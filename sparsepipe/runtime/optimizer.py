"""Optimizers as arithmetic on lists of tensors: new weights, or the old ones changed where nobody needs them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class SGD:
    """Stochastic gradient descent with momentum and weight decay: the arithmetic of `torch.optim.SGD`."""

    def __init__(self, *, learning_rate: float, momentum: float, weight_decay: float) -> None:
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self._velocity: list[Tensor] | None = None

    def step(self, weights: Sequence[Tensor], gradients: Sequence[Tensor], *, in_place: bool) -> list[Tensor]:
        """Return the next weights. With `in_place` they are the given tensors, changed."""
        change = list(gradients)
        if not change:
            return []
        if self.weight_decay:
            change = list(torch._foreach_add(change, list(weights), alpha=self.weight_decay))
        if self.momentum:
            if self._velocity is None:
                self._velocity = [tensor.clone() for tensor in change]
            else:
                torch._foreach_mul_(self._velocity, self.momentum)
                torch._foreach_add_(self._velocity, change)
            change = self._velocity
        if in_place:
            torch._foreach_add_(list(weights), change, alpha=-self.learning_rate)
            return list(weights)
        return list(torch._foreach_add(list(weights), change, alpha=-self.learning_rate))

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Return what must be kept to go on exactly, by parameter name. Empty before the first step."""
        if self._velocity is None:
            return {}
        return {f"velocity:{name}": tensor for name, tensor in zip(names, self._velocity, strict=True)}

    def load(self, names: Sequence[str], state: Mapping[str, Tensor]) -> None:
        if state:
            self._velocity = [state[f"velocity:{name}"].clone() for name in names]
