"""The reference engine: NVIDIA's MinkowskiEngine behind the engine protocol. The only file that imports it."""

import collections
import collections.abc
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..data.batch import PointBatch
from ..errors import InputError
from ..models.rows import Row
from .base import CoordinateSet, Feature, Parts
from .dropout import SeededDropout

# MinkowskiEngine 0.5.4 imports names that Python 3.10 took out of `collections`.
for _name in ("Sequence", "Mapping", "Iterable"):
    if not hasattr(collections, _name):
        setattr(collections, _name, getattr(collections.abc, _name))

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it says at every import that it was built without CUDA
    import MinkowskiEngine as ME

AnyTensor = ME.SparseTensor | Tensor  # sparse, or dense rows [B, C] after global pooling
_DIMENSION = 3


class MinkowskiEngine:
    """The real MinkowskiEngine. Rows of an input keep the minibatch's order; later sets are ordered by the library."""

    name = "minkowski"

    def layer(self, row: Row) -> nn.Module:
        with warnings.catch_warnings():
            # Its layers instantiate autograd functions, which torch deprecates and still allows.
            warnings.filterwarnings("ignore", message="<class 'Minkowski", category=DeprecationWarning)
            return LAYERS[row.kind](**row.args)

    def tensor(self, batch: PointBatch, device: Any = "cpu") -> ME.SparseTensor:
        dimension = batch.coordinates.shape[1] - 1
        coordinate_set = CoordinateSet((1,) * dimension, batch.coordinates.to(device))
        return self.join(Parts((coordinate_set,), {"input": Feature(batch.features.to(device), 0)}))["input"]

    def split(self, tensors: Mapping[str, AnyTensor]) -> Parts:
        sets: dict[Any, CoordinateSet] = {}
        features: dict[str, Feature] = {}
        for name, tensor in tensors.items():
            if not isinstance(tensor, ME.SparseTensor):
                features[name] = Feature(tensor, None)
                continue
            key = tuple(tensor.coordinate_map_key.get_tensor_stride())
            sets.setdefault(key, CoordinateSet(key, tensor.C))
            features[name] = Feature(tensor.F, list(sets).index(key))
        return Parts(tuple(sets.values()), features)

    def join(self, parts: Parts) -> dict[str, AnyTensor]:
        """Raises InputError for coordinates that are not distinct."""
        manager, keys = None, []
        for stride, coordinates in parts.coordinate_sets:
            manager = manager or ME.CoordinateManager(
                D=coordinates.shape[1] - 1,
                coordinate_map_type=ME.CoordinateMapType.CUDA if coordinates.is_cuda else ME.CoordinateMapType.CPU,
            )
            key, (kept, _) = manager.insert_and_map(coordinates.contiguous(), list(stride), "")
            if len(kept) != len(coordinates):
                raise InputError(
                    f"{len(kept)} of {len(coordinates)} coordinates at stride {stride} are distinct: expected all"
                )
            keys.append(key)
        return {name: _join(name, feature, keys, manager, parts) for name, feature in parts.features.items()}

    def features(self, tensor: AnyTensor) -> Tensor:
        return tensor.F if isinstance(tensor, ME.SparseTensor) else tensor

    def replace(self, tensor: AnyTensor, features: Tensor) -> AnyTensor:
        return _with_features(tensor, features) if isinstance(tensor, ME.SparseTensor) else features

    def rows(self, output: AnyTensor) -> Tensor:
        if isinstance(output, ME.SparseTensor):
            raise InputError(f"an output of {len(output)} voxels is still sparse: pool it globally first")
        return output


def _join(name: str, feature: Feature, keys: list[Any], manager: Any, parts: Parts) -> AnyTensor:
    if feature.coordinate_set is None:
        return feature.rows
    coordinates = parts.coordinate_sets[feature.coordinate_set].coordinates
    if len(feature.rows) != len(coordinates):
        raise InputError(f"{name}: {len(feature.rows)} feature rows for {len(coordinates)} coordinates")
    # With a key instead of coordinates the library takes the rows as they are, the very tensor, in the set's order.
    return ME.SparseTensor(feature.rows, coordinate_map_key=keys[feature.coordinate_set], coordinate_manager=manager)


def _with_features(tensor: ME.SparseTensor, features: Tensor) -> ME.SparseTensor:
    return ME.SparseTensor(
        features, coordinate_map_key=tensor.coordinate_map_key, coordinate_manager=tensor.coordinate_manager
    )


def _on_features(function: Callable[[Tensor], Tensor], tensor: AnyTensor) -> AnyTensor:
    return _with_features(tensor, function(tensor.F)) if isinstance(tensor, ME.SparseTensor) else function(tensor)


class ReLU(nn.Module):
    def forward(self, tensor: AnyTensor) -> AnyTensor:
        return _on_features(torch.relu, tensor)


class Linear(ME.MinkowskiLinear):
    """MinkowskiLinear that also takes the dense rows of a globally pooled tensor."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)

    def forward(self, input: AnyTensor) -> AnyTensor:
        return _on_features(self.linear, input)


class Dropout(SeededDropout):
    def forward(self, tensor: AnyTensor, *, seed: int) -> AnyTensor:
        return _on_features(lambda rows: self.drop(rows, seed), tensor)


class GlobalMaxPool(ME.MinkowskiGlobalMaxPooling):
    """MinkowskiGlobalMaxPooling with its rows, which come in the order of a hash map, put in batch order."""

    def forward(self, input: ME.SparseTensor) -> Tensor:
        if len(input) == int(input.C[:, 0].max()) + 1:  # one voxel a sample: the library refuses to pool
            return input.F.index_select(0, torch.argsort(input.C[:, 0]))
        pooled = super().forward(input)
        return pooled.F.index_select(0, torch.argsort(pooled.C[:, 0]))


def _convolution(in_channels: int, out_channels: int, **args: Any) -> nn.Module:
    return ME.MinkowskiConvolution(in_channels, out_channels, **{"dimension": _DIMENSION} | args)


def _batch_norm(channels: int) -> nn.Module:
    return ME.MinkowskiBatchNorm(channels)


def _max_pool(**args: Any) -> nn.Module:
    return ME.MinkowskiMaxPooling(**{"dimension": _DIMENSION} | args)


LAYERS: dict[str, Callable[..., nn.Module]] = {
    "convolution": _convolution,
    "batch_norm": _batch_norm,
    "relu": ReLU,
    "max_pool": _max_pool,
    "global_max_pool": GlobalMaxPool,
    "linear": Linear,
    "dropout": Dropout,
}
