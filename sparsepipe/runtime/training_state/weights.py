"""Weight versions: each a set of leaf tensors of its own, alive as long as a minibatch in flight or to come needs it.

Changing weights in place under a saved graph is what autograd refuses; so an update makes new leaves, unless no one
needs the newest version any more: then its memory is reused and no copy is made.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .checkpoint import without_prefix
from .optimizer import Optimizer


@dataclass(eq=False)
class Version:
    """Weights as they stood after `index` updates."""

    index: int
    tensors: dict[str, Tensor]
    users: int = 0  # minibatches in flight


class Weights:
    """The newest version, the versions still needed, and the gradients gathered for the next.

    The first version lives in the memory of the `parameters` given, which change with it.
    """

    def __init__(self, parameters: Mapping[str, Tensor], optimizer: Optimizer) -> None:
        self.names = tuple(parameters)
        self.optimizer = optimizer
        self._versions = [Version(0, {name: _leaf(tensor) for name, tensor in parameters.items()})]  # oldest first
        self._to_come: Counter[int] = Counter()  # version -> forwards that will meet it
        self._spare: list[list[Tensor]] = []  # memory of versions let go, for the next ones
        self._gradients: list[Tensor | None] | None = None
        self.most_versions = 1

    @property
    def newest(self) -> Version:
        return self._versions[-1]

    def expect(self, indices: Iterable[int]) -> None:
        """Say which version each forward to come will meet, counted from the newest, which is 0."""
        start = self.newest.index
        self._to_come = Counter(start + index for index in indices)

    def acquire(self, index: int) -> Version:
        """Take a version for a minibatch that sets out."""
        version = next(version for version in self._versions if version.index == index)
        version.users += 1
        self._to_come[index] -= 1
        return version

    def release(self, version: Version) -> None:
        """A minibatch is done with its version; one that no one needs any more is let go."""
        version.users -= 1
        self._drop_unneeded()

    def accumulate(self, gradients: Sequence[Tensor | None]) -> None:
        """Add one minibatch's gradients, which autograd gave to no one else, to those of its round.

        None: the minibatch's loss does not reach that weight.
        """
        if self._gradients is None:
            self._gradients = list(gradients)
            return
        both = [(a, b) for a, b in zip(self._gradients, gradients, strict=True) if a is not None and b is not None]
        if both:
            torch._foreach_add_([a for a, _ in both], [b for _, b in both])
        self._gradients = [b if a is None else a for a, b in zip(self._gradients, gradients, strict=True)]

    def take_gathered(self) -> list[Tensor | None] | None:
        """Return the sum of the round's gradients so far, None if there are none yet, and start afresh."""
        taken, self._gradients = self._gradients, None
        return taken

    def take_gradients(self) -> list[Tensor | None]:
        """Return the sum of the round's gradients and start afresh. None for a weight that no minibatch reached, and
        for all weights where this replica had no minibatch.
        """
        taken = self.take_gathered()
        return [None] * len(self.names) if taken is None else taken

    @torch.no_grad()
    def update(self, gradients: Sequence[Tensor | None], learning_rate: float) -> None:
        """Make the next version out of the newest and the round's averaged gradients: a weight without one stays."""
        old = self.newest
        if self._is_needed(old):
            kept = list(old.tensors.values())
            tensors = self._spare.pop() if self._spare else [torch.empty_like(t).requires_grad_() for t in kept]
            if kept:
                torch._foreach_copy_(tensors, kept)
            self._versions.append(Version(old.index + 1, dict(zip(self.names, tensors, strict=True))))
            self.most_versions = max(self.most_versions, len(self._versions))
        else:
            old.index += 1
        if self.names:  # a stage of activations and pools has nothing to step
            self.optimizer.step(list(self.newest.tensors.values()), gradients, learning_rate)
        self._drop_unneeded()

    def skip(self) -> None:
        """Count an update that changes nothing. Only with nothing in flight."""
        self.newest.index += 1

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the newest version. Only with nothing in flight."""
        for name, tensor in self.newest.tensors.items():
            tensor.copy_(tensors[name])

    def adopt(self, tensors: Mapping[str, Tensor]) -> None:
        """Have the newest version be these tensors, which are this one's from then on. Only with nothing in flight."""
        self.newest.tensors.update({name: _leaf(tensors[name]) for name in self.names})

    def _is_needed(self, version: Version) -> bool:
        return version.users > 0 or self._to_come[version.index] > 0

    def _drop_unneeded(self) -> None:
        gone = [version for version in self._versions[:-1] if not self._is_needed(version)]
        for version in gone:
            self._versions.remove(version)
            self._spare.append(list(version.tensors.values()))
            version.tensors.clear()


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


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
