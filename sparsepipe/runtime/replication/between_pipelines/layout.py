"""Tensors by name as one flat vector: what a rank contributes, merges and takes back in one piece."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

WEIGHT, BUFFER = "weight:", "buffer:"  # as checkpoints name them
REACHED = "reached:"  # of a weight, one number: whether the loss reaches it. By name it comes before the weights
_MOST_SHARES = 1000  # that are remembered


class Layout:
    """Positions of named tensors in a float32 vector on the CPU, ordered by name."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.shapes = {name: tensors[name].shape for name in sorted(tensors)}
        self.places: dict[str, slice] = {}
        start = 0
        for name, shape in self.shapes.items():
            self.places[name] = slice(start, start + shape.numel())
            start += shape.numel()
        self.num_elements = start
        first = next((place.start for name, place in self.places.items() if name.startswith(WEIGHT)), start)
        self.weights = slice(first, start)  # all weights: their names come after the buffers'
        self._shares: dict[tuple[Sequence[str], int, int], list[slice]] = {}  # by what was asked for

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.places)

    @property
    def sizes(self) -> dict[str, int]:
        """Elements of each tensor, by name."""
        return {name: place.stop - place.start for name, place in self.places.items()}

    def flat(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return a copy of the tensors as one vector."""
        if not self.places:
            return torch.empty(0)
        return torch.cat([tensors[name].detach().reshape(-1).float() for name in self.places]).cpu()

    @torch.no_grad()
    def add(self, tensors: Mapping[str, Tensor], flat: Tensor) -> None:
        """Add a vector to the tensors, in place."""
        for name, tensor in tensors.items():
            _unwatched(name, tensor).add_(self._part(name, flat, tensor))

    @torch.no_grad()
    def copy(self, tensors: Mapping[str, Tensor], flat: Tensor) -> None:
        """Set the tensors, in place, to what a vector has."""
        for name, tensor in tensors.items():
            _unwatched(name, tensor).copy_(self._part(name, flat, tensor))

    def parts(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views of a vector, each in its tensor's shape."""
        return {name: flat[place].view(self.shapes[name]) for name, place in self.places.items()}

    def _part(self, name: str, flat: Tensor, like: Tensor) -> Tensor:
        return flat[self.places[name]].view(self.shapes[name]).to(like.device, like.dtype)

    def shares(self, names: Sequence[str], index: int, count: int) -> list[slice]:
        """Return where in the vector the share `index` of `count` of each named tensor lies.

        Each member of a merge reduces one share of every tensor: which elements they are is the same however a pipeline
        is cut.
        """
        asked = (tuple(names), index, count)
        if asked not in self._shares:
            if len(self._shares) >= _MOST_SHARES:
                self._shares.clear()
            self._shares[asked] = [_share(self.places[name], index, count) for name in names]
        return self._shares[asked]


def _share(place: slice, index: int, count: int) -> slice:
    size = place.stop - place.start
    return slice(place.start + size * index // count, place.start + size * (index + 1) // count)


def _unwatched(name: str, tensor: Tensor) -> Tensor:
    """Return a tensor as it may be changed while minibatches are in flight.

    A batch norm keeps its running statistics for the backward, which then has no use for them, as they were in the
    forward: autograd must not notice that they change. Weights in flight are never changed.
    """
    return tensor.data if name.startswith(BUFFER) else tensor


def taken(flat: Tensor, slices: Sequence[slice]) -> Tensor:
    """Return a copy of some slices of a vector, one after the other."""
    return torch.cat([flat[place] for place in slices]) if slices else flat[:0].clone()


def put(flat: Tensor, slices: Sequence[slice], values: Tensor) -> None:
    """Write into some slices of a vector, in place, what `values` has one after the other."""
    if slices:
        parts = values.split([place.stop - place.start for place in slices])
        torch._foreach_copy_([flat[place] for place in slices], list(parts))
