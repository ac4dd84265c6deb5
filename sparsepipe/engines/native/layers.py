"""The native engine's layers as modules. Parameter names and shapes are MinkowskiEngine's, so state_dicts exchange."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ...errors import InputError
from ...models.rows import Row
from ..dropout import SeededDropout
from .convolution import convolve
from .pooling import global_max_pool, max_pool
from .tensor import SparseTensor

AnyTensor = SparseTensor | Tensor  # sparse, or dense rows [B, C] after global pooling


def _on_features(function: Callable[[Tensor], Tensor], tensor: AnyTensor) -> AnyTensor:
    return tensor.replace(function(tensor.features)) if isinstance(tensor, SparseTensor) else function(tensor)


class Convolution(nn.Module):
    """Sparse convolution; with stride s the output lives on the coordinates floor(c / s) * s."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        kernel_size: int,
        stride: int = 1,
        dilation: int = 1,
        bias: bool = False,
        dimension: int = 3,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.dilation = kernel_size, stride, dilation
        shape: tuple[int, ...] = (kernel_size**dimension, in_channels, out_channels)
        if kernel_size == 1 and stride == 1:  # a matrix product: MinkowskiEngine leaves the first axis out
            shape = shape[1:]
        self.kernel = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.zeros(1, out_channels)) if bias else None

    def forward(self, tensor: SparseTensor) -> SparseTensor:
        _check_channels(tensor.features, self.kernel.shape[-2])
        manager, in_stride = tensor.manager, tensor.tensor_stride
        out_stride = in_stride if self.stride == 1 else manager.downsampled(in_stride, self.stride)
        kernel_map = manager.kernel_map(in_stride, out_stride, kernel_size=self.kernel_size, dilation=self.dilation)
        kernel = self.kernel if self.kernel.dim() == 3 else self.kernel.unsqueeze(0)
        output = convolve(tensor.features, kernel, kernel_map)
        return tensor.replace(output if self.bias is None else output + self.bias, out_stride)


class BatchNorm(nn.Module):
    """Batch norm over the voxels of the minibatch: its own statistics in training, the running ones in evaluation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(channels)

    def forward(self, tensor: AnyTensor) -> AnyTensor:
        return _on_features(self.bn, tensor)


class ReLU(nn.Module):
    def forward(self, tensor: AnyTensor) -> AnyTensor:
        return _on_features(torch.relu, tensor)


class Linear(nn.Module):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)

    def forward(self, tensor: AnyTensor) -> AnyTensor:
        return _on_features(self.linear, tensor)


class Dropout(SeededDropout):
    def forward(self, tensor: AnyTensor, *, seed: int) -> AnyTensor:
        return _on_features(lambda rows: self.drop(rows, seed), tensor)


class MaxPool(nn.Module):
    def __init__(self, *, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.kernel_size, self.stride = kernel_size, stride

    def forward(self, tensor: SparseTensor) -> SparseTensor:
        manager, in_stride = tensor.manager, tensor.tensor_stride
        out_stride = in_stride if self.stride == 1 else manager.downsampled(in_stride, self.stride)
        kernel_map = manager.kernel_map(in_stride, out_stride, kernel_size=self.kernel_size)
        return tensor.replace(max_pool(tensor.features, kernel_map), out_stride)


class GlobalMaxPool(nn.Module):
    def forward(self, tensor: SparseTensor) -> Tensor:
        return global_max_pool(tensor.features, tensor.manager.sample_sizes(tensor.tensor_stride))


def _check_channels(features: Tensor, expected: int) -> None:
    if features.shape[1] != expected:
        raise InputError(f"a tensor with {features.shape[1]} channels meets a convolution of {expected} input channels")


LAYERS: dict[str, Callable[..., nn.Module]] = {
    "convolution": Convolution,
    "batch_norm": BatchNorm,
    "relu": ReLU,
    "max_pool": MaxPool,
    "global_max_pool": GlobalMaxPool,
    "linear": Linear,
    "dropout": Dropout,
}


def build(row: Row) -> nn.Module:
    """Build the module of a row."""
    return LAYERS[row.kind](**row.args)
