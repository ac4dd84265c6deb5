"""Layers that are the same in every engine: those on dense tensors, and functions of the rows of any tensor."""

from collections.abc import Callable

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from ..errors import InputError
from ..networks.batch_norm import GroupBatchNorm

ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "relu": torch.relu,
    "leaky_relu": functional.leaky_relu,
    "gelu": functional.gelu,
}
_CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_MAX_POOLS = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}


def dense_grid(coordinates: Tensor, features: Tensor, size: int) -> Tensor:
    """Lay rows [N, C] out on a grid [B, C, size, ...] at their coordinates [N, 1 + D], 0 where there is no voxel.

    A coordinate equal to `size`, a point on the unit cube's far face, goes to the last cell. Raises InputError for
    coordinates that lie farther out.
    """
    low, high = int(coordinates[:, 1:].min()), int(coordinates[:, 1:].max())
    if low < 0 or high > size:
        raise InputError(
            "dense.out_of_range",
            f"voxels {low}..{high} exceed the dense grid of {size}, expected 0..{size - 1}; use voxel size "
            f"{1 / size:g} and an augmentation within the unit cube, such as shapes-in-cube",
            low=low,
            high=high,
            size=size,
        )
    batch, *axes = coordinates.long().unbind(dim=1)
    axes = [axis.clamp(max=size - 1) for axis in axes]
    grid = features.new_zeros(int(batch.max()) + 1, *([size] * len(axes)), features.shape[1])
    grid = grid.index_put((batch, *axes), features)
    return grid.movedim(-1, 1).contiguous()


def _convolution(
    in_channels: int,
    out_channels: int,
    *,
    kernel_size: int,
    stride: int = 1,
    dilation: int = 1,
    padding: int = 0,
    bias: bool = False,
    dimension: int = 3,
) -> nn.Module:
    return _CONVOLUTIONS[dimension](
        in_channels, out_channels, kernel_size, stride=stride, dilation=dilation, padding=padding, bias=bias
    )


def _batch_norm(channels: int, *, dimension: int = 3) -> nn.Module:
    return GroupBatchNorm(channels)


def _max_pool(*, kernel_size: int, stride: int, dimension: int = 3) -> nn.Module:
    return _MAX_POOLS[dimension](kernel_size, stride)


DENSE_LAYERS: dict[str, Callable[..., nn.Module]] = {
    "dense_convolution": _convolution,
    "dense_batch_norm": _batch_norm,
    "dense_max_pool": _max_pool,
    "flatten": nn.Flatten,
}
