"""Weight versions: each a set of leaf tensors of its own, alive as long as a minibatch in flight was forwarded with it.

Changing weights in place under a saved graph is what autograd refuses; so an update makes new leaves, unless no
minibatch in flight holds the newest version: then its memory is reused and no copy is made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .optimizer import Optimizer


@dataclass(eq=False)
class Version:
    """Weights as they stood after `index` updates."""

    index: int
    tensors: dict[str, Tensor]
    users: int = field(default=0)  # minibatches in flight


class Weights:
    """The newest version, the versions still in use, and the gradients gathered for the next."""

    def __init__(self, parameters: Mapping[str, Tensor], optimizer: Optimizer) -> None:
        self.names = tuple(parameters)
        self.optimizer = optimizer
        self._newest = Version(0, {name: _leaf(tensor) for name, tensor in parameters.items()})
        self._alive = 1
        self._spare: list[list[Tensor]] = []  # memory of versions let go, for the next ones
        self._gradients: list[Tensor] | None = None
        self.most_versions = 1

    @property
    def newest(self) -> Version:
        return self._newest

    def acquire(self) -> Version:
        """Take the newest version for a minibatch that sets out."""
        self._newest.users += 1
        return self._newest

    def release(self, version: Version) -> None:
        """A minibatch is done with its version; one that is neither used nor newest is let go."""
        version.users -= 1
        if version.users == 0 and version is not self._newest:
            self._alive -= 1
            self._spare.append(list(version.tensors.values()))
            version.tensors.clear()

    def accumulate(self, gradients: Sequence[Tensor]) -> None:
        """Add one minibatch's gradients to those of its round."""
        if self._gradients is None:
            self._gradients = list(gradients)
        else:
            # Out of place the first time would cost a copy; autograd gave these tensors to nobody else.
            torch._foreach_add_(self._gradients, list(gradients))

    def take_gradients(self) -> list[Tensor]:
        """Return the sum of the round's gradients, zeros where this replica had no minibatch, and start afresh."""
        taken, self._gradients = self._gradients, None
        return [torch.zeros_like(tensor) for tensor in self._newest.tensors.values()] if taken is None else taken

    @torch.no_grad()
    def update(self, gradients: Sequence[Tensor], learning_rate: float) -> None:
        """Make the next version out of the newest and the round's averaged gradients."""
        old = self._newest
        if old.users == 0:
            old.index += 1
        else:
            kept = list(old.tensors.values())
            tensors = self._spare.pop() if self._spare else [torch.empty_like(t).requires_grad_() for t in kept]
            torch._foreach_copy_(tensors, kept)
            self._newest = Version(old.index + 1, dict(zip(self.names, tensors, strict=True)))
            self._alive += 1
            self.most_versions = max(self.most_versions, self._alive)
        self.optimizer.step(list(self._newest.tensors.values()), gradients, learning_rate)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the newest version. Only between epochs, with nothing in flight."""
        self._newest = Version(0, {name: _leaf(tensors[name]) for name in self.names})


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()
