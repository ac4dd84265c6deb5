"""What crosses between layers: tensors, dense or sparse, structures of them, and numbers, as tensors without axes."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}
_CONSTANTS = (str, bytes, torch.dtype, torch.device, torch.layout, type(None), type(...))


def is_sparse(value: object) -> bool:
    """Return whether a value is a sparse tensor of MinkowskiEngine or spconv."""
    return _is(value, "MinkowskiEngine", "SparseTensor") or is_field(value) or is_of_spconv(value)


def is_field(value: object) -> bool:
    """Return whether a value is a MinkowskiEngine TensorField: points, several of which may be in a voxel."""
    return _is(value, "MinkowskiEngine", "TensorField")


def is_of_spconv(value: object) -> bool:
    """Return whether a value is a sparse tensor of spconv."""
    return _is(value, "spconv.pytorch", "SparseConvTensor")


def _is(value: object, library: str, kind: str) -> bool:
    """Return whether a value is of a class of a library, which is asked only if it is imported."""
    module = sys.modules.get(library)
    return module is not None and isinstance(value, getattr(module, kind))


def is_tensor(value: object) -> bool:
    return isinstance(value, Tensor) or is_sparse(value)


def is_number(value: object) -> bool:
    return type(value) in _NUMBERS


def is_constant(value: object) -> bool:
    """Return whether a value says what is done, not with what: it is the same in every minibatch."""
    return isinstance(value, _CONSTANTS)


def features(value: Any) -> Tensor:
    """Return the numbers of a tensor, dense or sparse."""
    return value.features if is_of_spconv(value) else value.F if is_sparse(value) else value


def coordinates(value: Any) -> Tensor:
    """Return the coordinates [N, 1 + D] of a sparse tensor, the sample first."""
    return value.indices if is_of_spconv(value) else value.C


def in_order(value: Any) -> Tensor:
    """Return the numbers of a tensor, of a sparse one in the order of its coordinates.

    The library orders the voxels of a coarser grid by what it computed before.
    """
    if not is_sparse(value) or is_field(value):  # points keep the order of the minibatch
        return features(value)
    order = torch.unique(coordinates(value), dim=0, return_inverse=True)[1].argsort()
    return features(value).index_select(0, order)


def clone_of(value: Any) -> Any:
    """Return a value that may be written into: a copy of a tensor; of spconv's, one with indices of its own."""
    if is_of_spconv(value):
        copy = value.replace_feature(value.features)
        copy.indices = value.indices.clone()
        return copy
    return value.clone() if isinstance(value, Tensor) else value


def one_sample_more(value: Any) -> Any:
    """Return a sparse tensor with its last sample once more, as a sample of its own."""
    places = coordinates(value)
    last = places[places[:, 0] == places[:, 0].max()] + torch.tensor([1, *[0] * (places.shape[1] - 1)]).to(places)
    rows = torch.cat([features(value), features(value)[places[:, 0] == places[:, 0].max()]])
    places = torch.cat([places, last])
    if is_of_spconv(value):
        return type(value)(rows, places, value.spatial_shape, value.batch_size + 1)
    return type(value)(features=rows, coordinates=places, tensor_stride=value.tensor_stride)


def tensors_of(value: object) -> list[Tensor]:
    """Return the numbers of every tensor in a structure."""
    leaves = flattened(value)[0]
    return [features(leaf) for leaf in leaves if is_tensor(leaf)]


def flattened(value: object) -> tuple[list[Any], pytree.TreeSpec]:
    """Flatten with pytree; a dataclass that it does not know yet is made known to it, as torch.export wants it too."""
    for leaf in pytree.tree_leaves(value):
        if is_dataclass(leaf) and not isinstance(leaf, type) and not is_tensor(leaf):
            pytree.register_dataclass(type(leaf))
            return flattened(value)
    return pytree.tree_flatten(value)


def without_objects(output: object) -> tuple[object, tuple[str, ...]]:
    """Return an output with None for each entry that cannot cross, and the names of those entries.

    An entry is named with its class: "past_key_values (DynamicCache)".
    """
    leaves, spec = flattened(output)
    paths = [path for path, _ in pytree.tree_flatten_with_path(output)[0]]
    odd = [Structure.of(leaf) is None for leaf in leaves]
    names = tuple(
        f"{written_path(path) or 'all of it'} ({type(leaf).__name__})"
        for path, leaf, is_odd in zip(paths, leaves, odd, strict=True)
        if is_odd
    )
    crossing = [None if is_odd else leaf for leaf, is_odd in zip(leaves, odd, strict=True)]
    return (pytree.tree_unflatten(crossing, spec) if names else output), names


def entries_that_cross(output: object) -> object:
    """Return an output with None for each entry that cannot cross; a layer of a module that is one layer does so."""
    return without_objects(output)[0]


def entry_at(value: object, number: int) -> Any:
    """Return a leaf of a structure by its number."""
    return flattened(value)[0][number]


def written_path(path: Iterable[object]) -> str:
    """Write a place in a structure: "batch.words", "0"."""
    return ".".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)


@dataclass(frozen=True)
class Structure:
    """Structure of a value: tensors and numbers, which cross stages, and constants."""

    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]  # Tensor, bool, int, float: what crosses; anything else stands for itself

    @classmethod
    def of(cls, value: object) -> "Structure | None":
        """Return the structure of a value; None if a part of it cannot cross."""
        if any(isinstance(part, PackedSequence) for part in _parts(value)):
            return None  # its batch sizes must stay on the CPU
        leaves, spec = flattened(value)
        kinds: list[Any] = []
        for leaf in leaves:
            if is_tensor(leaf):
                kinds.append(Tensor)
            elif is_number(leaf):
                kinds.append(type(leaf))
            elif is_constant(leaf):
                kinds.append(leaf)
            else:
                return None
        return cls(spec, tuple(kinds))

    def crosses(self) -> list[bool]:
        """Say of each leaf whether it crosses."""
        return [kind is Tensor or (isinstance(kind, type) and kind in _NUMBERS) for kind in self.leaves]

    def split(self, value: object) -> list[object]:
        """Return the tensors that cross, in order: numbers made tensors of no axes."""
        found = []
        for leaf, kind, crosses in zip(flattened(value)[0], self.leaves, self.crosses(), strict=True):
            if crosses:
                found.append(leaf if kind is Tensor else torch.tensor(leaf, dtype=_NUMBERS[kind]))
        return found

    def join(self, tensors: Iterator[Any]) -> Any:
        """Rebuild a value from the tensors that crossed, in order."""
        leaves = []
        for kind, crosses in zip(self.leaves, self.crosses(), strict=True):
            if crosses:
                tensor = next(tensors)
                leaves.append(tensor if kind is Tensor else kind(tensor.item()))
            else:
                leaves.append(kind)
        return pytree.tree_unflatten(leaves, self.spec)


def _parts(value: object) -> Iterator[object]:
    """Yield a value and what its tuples, lists and dicts hold."""
    yield value
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list) and not isinstance(value, PackedSequence | torch.Size):
        for part in value:
            yield from _parts(part)
