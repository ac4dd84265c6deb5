"""The updates that follow a profiler's passes: SGD with momentum as training runs step, at a learning rate of 0."""

import torch
from torch import nn

from ..runtime.training_state.optimizer import SGD

_MOMENTUM = 0.9


class Updates:
    """Steps on all weights of a module that have gradients: they take their time and leave the weights as they are.

    The optimizer is the runtime's own: torch.optim's classes bring torch's compiler, which takes seconds to import.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parameters = tuple(module.parameters())
        self._optimizer = SGD(momentum=_MOMENTUM, weight_decay=0.0)
        self.begun = False  # once it has, there is what momentum is kept in

    def step(self) -> None:
        weights = [parameter for parameter in self._parameters if parameter.grad is not None]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        with torch.no_grad():
            self._optimizer.step(weights, gradients, 0.0)
        self.begun = True
