"""The native engine's layers as modules. Parameter names and shapes are MinkowskiEngine's, so state_dicts exchange.

Pooling over a kernel map and over whole samples. A maximum's gradient goes to the row that gave it.

Of equal rows the one under the first kernel offset, in a global pool the first row, gave the maximum.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...errors import InputError
from ...networks.batch_norm import GroupBatchNorm
from ...networks.rows import Row, each_axis
from ..base import SeededDropout, SeededDropPath
from ..dense import ACTIVATIONS, DENSE_LAYERS, Slab, dense_grid, slab_of_grid
from .attention import SerialisedAttention
from .coordinates import SparseTensor, Stride, times
from .kernel_map import KernelMap, summed_type
from .space import PartManager, PartMap, convolve_part


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, kernel_map: KernelMap) -> Tensor:
        output, winners = kernel_map.inputs.max(features)
        ctx.save_for_backward(winners)
        ctx.kernel_map = kernel_map
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (winners,) = ctx.saved_tensors
        if not ctx.kernel_map.covers_outputs:  # nobody gave an empty output its 0
            grad_output = grad_output * ctx.kernel_map.inputs.starts.diff().gt(0).unsqueeze(1)
        grad_features = grad_output.new_zeros(ctx.kernel_map.num_in, grad_output.shape[1])
        return grad_features.scatter_add_(0, winners.long(), grad_output), None


class _SumPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, kernel_map: KernelMap) -> Tensor:
        ctx.kernel_map = kernel_map
        return kernel_map.inputs.sum(features)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        return ctx.kernel_map.transposed.inputs.sum(grad_output.contiguous()), None


def sum_pool(features: Tensor, kernel_map: KernelMap) -> Tensor:
    """Add up each output row's inputs: [N_in, C] -> [N_out, C]."""
    return _SumPool.apply(features, kernel_map)  # type: ignore[no-untyped-call, no-any-return]


def average_pool(features: Tensor, kernel_map: KernelMap) -> Tensor:
    """Average each output row's inputs, those that exist: [N_in, C] -> [N_out, C]; a row without any is 0."""
    counts = kernel_map.inputs.starts.diff().clamp(min=1).unsqueeze(1)
    return sum_pool(features, kernel_map) / counts


def max_pool(features: Tensor, kernel_map: KernelMap) -> Tensor:
    """Take the maximum of each output row's inputs, channel by channel: [N_in, C] -> [N_out, C]; 0 without any."""
    return _MaxPool.apply(features, kernel_map)  # type: ignore[no-untyped-call, no-any-return]


def global_sum_pool(features: Tensor, sample_sizes: Sequence[int]) -> Tensor:
    """Add up each sample's consecutive rows: [N, C] -> [B, C] in batch order."""
    return torch.stack([rows.sum(dim=0) for rows in features.split(sample_sizes)])


def global_average_pool(features: Tensor, sample_sizes: Sequence[int]) -> Tensor:
    """Average each sample's consecutive rows: [N, C] -> [B, C] in batch order."""
    return torch.stack([rows.mean(dim=0) for rows in features.split(sample_sizes)])


def global_max_pool(features: Tensor, sample_sizes: Sequence[int]) -> Tensor:
    """Take the maximum over each sample's consecutive rows: [N, C] -> [B, C] in batch order."""
    return torch.stack([rows.max(dim=0).values for rows in features.split(sample_sizes)])


AnyTensor = SparseTensor | Slab | Tensor  # sparse; part of a dense grid; a dense grid, or rows [B, C] after pooling
_VARIANCE = 1e-8  # added to that of an instance norm, as in MinkowskiEngine
AnyMap = KernelMap | PartMap  # of whole scenes, or of a part of each
Axes = int | Sequence[int]  # one number for all spatial axes, or one for each


def _on_features(function: Callable[[Tensor], Tensor], tensor: AnyTensor) -> AnyTensor:
    return function(tensor) if isinstance(tensor, Tensor) else tensor.replace(function(tensor.features))


class Convolution(nn.Module):
    """Sparse convolution; with stride s the output lives on the coordinates floor(c / s) * s."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        kernel_size: Axes,
        stride: Axes = 1,
        dilation: Axes = 1,
        bias: bool = False,
        dimension: int = 3,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.dilation = (
            each_axis(a, dimension) for a in (kernel_size, stride, dilation)
        )
        volume = math.prod(self.kernel_size)
        shape: tuple[int, ...] = (volume, in_channels, out_channels)
        if volume == max(self.stride) == 1:  # a matrix product: MinkowskiEngine leaves the first axis out
            shape = shape[1:]
        self.kernel = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.zeros(1, out_channels)) if bias else None

    def forward(self, tensor: SparseTensor) -> SparseTensor:
        kernel_map, out_stride = self.kernel_map(tensor)
        return tensor.replace(self._convolve(tensor.features, kernel_map), out_stride)

    def kernel_map(self, tensor: SparseTensor) -> tuple[AnyMap, Stride]:
        """Return the map from the voxels of `tensor` to those of the output, and the output's tensor stride."""
        manager, in_stride = tensor.manager, tensor.tensor_stride
        out_stride = in_stride if max(self.stride) == 1 else manager.downsampled(in_stride, self.stride)
        found = manager.kernel_map(in_stride, out_stride, kernel_size=self.kernel_size, dilation=self.dilation)
        return found, out_stride

    def _convolve(self, features: Tensor, kernel_map: AnyMap) -> Tensor:
        output = features @ self.kernel if self.kernel.dim() == 2 else convolve_part(features, self.kernel, kernel_map)
        return output if self.bias is None else output + self.bias


class TransposedConvolution(Convolution):
    """The convolution that leads from `like` to the input, run backwards: the output lies on the voxels of `like`."""

    def forward(self, tensor: SparseTensor, like: SparseTensor) -> SparseTensor:  # type: ignore[override]
        return like.replace(self._convolve(tensor.features, self.kernel_map(tensor, like)[0]))

    def kernel_map(self, tensor: SparseTensor, like: SparseTensor) -> tuple[AnyMap, Stride]:  # type: ignore[override]
        found = _upward_map(tensor, like, self.stride, kernel_size=self.kernel_size, dilation=self.dilation)
        return found, like.tensor_stride


class BatchNorm(nn.Module):
    """Batch norm over the voxels of the minibatch: its own statistics in training, the running ones in evaluation."""

    def __init__(self, channels: int, *, epsilon: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.bn = GroupBatchNorm(channels, eps=epsilon, momentum=momentum)

    def forward(self, tensor: AnyTensor) -> AnyTensor:
        parts = tensor.manager if isinstance(tensor, SparseTensor) else tensor
        group = parts.group if isinstance(parts, (PartManager, Slab)) else None
        return _on_features(partial(self.bn, group=group), tensor)


class LayerNorm(nn.Module):
    """Layer norm of each row over its channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, tensor: AnyTensor) -> AnyTensor:
        return _on_features(self.norm, tensor)


class Activation(nn.Module):
    def __init__(self, function: Callable[..., Tensor], **args: float) -> None:
        super().__init__()
        self.function, self.args = function, args

    def forward(self, tensor: AnyTensor) -> AnyTensor:
        return _on_features(lambda rows: self.function(rows, **self.args), tensor)


class Linear(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels, bias=bias)

    def forward(self, tensor: AnyTensor) -> AnyTensor:
        return _on_features(self.linear, tensor)


def numbers_among(tensor: AnyTensor) -> tuple[int, Tensor, int] | None:
    """Return how many voxels all parts of a tensor have, which of them its rows are, and their axis; None if whole."""
    if isinstance(tensor, SparseTensor) and isinstance(tensor.manager, PartManager):
        return *tensor.manager.numbers(tensor.tensor_stride), 0
    if isinstance(tensor, Slab):
        return tensor.borders[-1], torch.arange(tensor.cells.start, tensor.cells.stop, device=tensor.features.device), 2
    return None


class Dropout(SeededDropout):
    def forward(self, tensor: AnyTensor, *, seed: int) -> AnyTensor:
        return _on_features(lambda rows: self.drop(rows, seed, among=numbers_among(tensor)), tensor)


class DropPath(SeededDropPath):
    def forward(self, tensor: AnyTensor, *, seed: int) -> AnyTensor:
        among = None if isinstance(tensor, Slab) else numbers_among(tensor)  # a slab has a row of each sample
        return _on_features(lambda rows: self.drop(rows, seed, among=among), tensor)


def _pooled(pool: Callable[[Tensor, KernelMap], Tensor], features: Tensor, kernel_map: AnyMap) -> Tensor:
    if isinstance(kernel_map, PartMap):
        return pool(kernel_map.with_halo(features), kernel_map.whole)
    return pool(features, kernel_map)


class LocalPool(nn.Module):
    """Pool the voxels under each kernel, present ones alone, by a function of features and kernel map."""

    def __init__(
        self, pool: Callable[[Tensor, KernelMap], Tensor], *, kernel_size: Axes, stride: Axes, dimension: int = 3
    ) -> None:
        super().__init__()
        self.pool, self.kernel_size, self.stride = pool, each_axis(kernel_size, dimension), each_axis(stride, dimension)

    def forward(self, tensor: SparseTensor) -> SparseTensor:
        manager, in_stride = tensor.manager, tensor.tensor_stride
        out_stride = in_stride if max(self.stride) == 1 else manager.downsampled(in_stride, self.stride)
        kernel_map = manager.kernel_map(in_stride, out_stride, kernel_size=self.kernel_size)
        return tensor.replace(_pooled(self.pool, tensor.features, kernel_map), out_stride)


class Unpool(nn.Module):
    """Give each voxel of `like` the sum, mean or maximum of the voxels it is pooled into; 0 if there is none.

    All three are a copy where kernels do not overlap. MinkowskiEngine has but one, whose documentation says that it
    divides by their number; its code does not, it is the sum.
    """

    def __init__(
        self, pool: Callable[[Tensor, KernelMap], Tensor], *, kernel_size: Axes, stride: Axes, dimension: int = 3
    ) -> None:
        super().__init__()
        self.pool, self.kernel_size, self.stride = pool, each_axis(kernel_size, dimension), each_axis(stride, dimension)

    def forward(self, tensor: SparseTensor, like: SparseTensor) -> SparseTensor:
        kernel_map = _upward_map(tensor, like, self.stride, kernel_size=self.kernel_size)
        return like.replace(_pooled(self.pool, tensor.features, kernel_map))


class GlobalPool(nn.Module):
    """Pool each sample's voxels into one dense row, in batch order, by a function of features and sample sizes."""

    def __init__(self, pool: Callable[[Tensor, tuple[int, ...]], Tensor]) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, tensor: SparseTensor) -> Tensor:
        return pool_samples(self.pool, tensor.features, tensor)


def pool_samples(pool: Callable[[Tensor, tuple[int, ...]], Tensor], rows: Tensor, tensor: SparseTensor) -> Tensor:
    """Pool rows on the voxels of `tensor` by sample, over all parts if a scene has several."""
    manager, stride = tensor.manager, tensor.tensor_stride
    sizes = manager.sample_sizes(stride)
    if not isinstance(manager, PartManager):
        return pool(rows, sizes)
    if pool is global_max_pool:
        return manager.max_over_parts(rows, stride)
    sums = manager.sum_over_parts(global_sum_pool(rows, sizes))
    return sums if pool is global_sum_pool else sums / manager.total_sizes(stride, sums)


class InstanceNorm(nn.Module):
    """Normalise each channel of each sample over its voxels; the variance is the biased one, as in MinkowskiEngine."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, channels))
        self.bias = nn.Parameter(torch.zeros(1, channels))

    def forward(self, tensor: SparseTensor) -> SparseTensor:
        return instance_norm(tensor, self.weight, self.bias)


def instance_norm(tensor: SparseTensor, weight: Tensor, bias: Tensor) -> SparseTensor:
    """Normalise each channel of each sample, scaled and shifted by `weight` and `bias` [1, C]."""
    sizes = tensor.manager.sample_sizes(tensor.tensor_stride)
    repeats = torch.tensor(sizes, device=tensor.features.device)

    def centred(rows: Tensor) -> Tensor:
        return rows - pool_samples(global_average_pool, rows, tensor).repeat_interleave(repeats, dim=0)

    rows = centred(tensor.features.to(summed_type(tensor.features.dtype)))
    variance = pool_samples(global_average_pool, rows.square(), tensor).repeat_interleave(repeats, dim=0)
    rows = rows * (variance + _VARIANCE).rsqrt() * weight + bias
    return tensor.replace(rows.to(tensor.features.dtype))


class Add(nn.Module):
    """Add tensors on the same voxels, or dense ones."""

    def forward(self, *tensors: AnyTensor) -> AnyTensor:
        return merge(lambda rows: sum(rows[1:], start=rows[0]), tensors)


class UnionAdd(nn.Module):
    """Add tensors of one tensor stride that lie on different voxels: the output lies on the voxels of any of them.

    Unless all lie on the same voxels already the output belongs to a coordinate manager of its own, and meets no more
    what went before.
    """

    def forward(self, *tensors: SparseTensor) -> SparseTensor:
        first = tensors[0]
        if all(first.shares_voxels(other) for other in tensors):
            return first.replace(torch.stack([tensor.features for tensor in tensors]).sum(dim=0))
        strides, widths = [t.tensor_stride for t in tensors], [t.features.shape[1] for t in tensors]
        if len(set(strides)) > 1 or len(set(widths)) > 1:
            raise InputError(
                "tensor.union_differs",
                f"cannot unite tensors with strides {strides} and channels {widths}; give all the same stride and "
                "width",
                widths=widths,
            )
        keys = torch.cat([tensor.manager.keys(tensor.tensor_stride) for tensor in tensors])
        union, rows = torch.unique(keys, return_inverse=True)
        manager = first.manager.like(first.tensor_stride, union)
        counts = tuple(len(tensor.features) for tensor in tensors)
        same = torch.arange(len(keys), device=keys.device)
        together = KernelMap(same, rows, counts, len(keys), len(union))
        return SparseTensor(sum_pool(torch.cat([t.features for t in tensors]), together), strides[0], manager)


class Concatenate(nn.Module):
    """Put the channels of tensors on the same voxels, or of dense ones, side by side."""

    def forward(self, *tensors: AnyTensor) -> AnyTensor:
        return merge(lambda rows: torch.cat(rows, dim=1), tensors)


class DenseGrid(nn.Module):
    """Lay sparse voxels out on a dense grid [B, C, size, ...]."""

    def __init__(self, *, size: int, dimension: int = 3) -> None:
        super().__init__()
        self.size = size

    def forward(self, tensor: SparseTensor) -> Tensor | Slab:
        return grid_of(tensor, self.size)


def grid_of(tensor: SparseTensor, size: int) -> Tensor | Slab:
    """Lay voxels out on a dense grid [B, C, size, ...]; those of a part, and of other parts, on a slab of it."""
    manager = tensor.manager
    if not isinstance(manager, PartManager):
        return dense_grid(tensor.coordinates, tensor.features, size)
    return slab_of_grid(
        tensor.coordinates,
        tensor.features,
        size,
        shares=manager.regions.shares,
        num_samples=manager.num_samples,
        group=manager.group,
    )


def _upward_map(tensor: SparseTensor, like: SparseTensor, stride: Sequence[int], **shape: Axes) -> AnyMap:
    """Return the map from `tensor` to the finer `like`."""
    fine, coarse = like.tensor_stride, tensor.tensor_stride
    if tensor.manager is not like.manager or times(fine, stride) != coarse:
        apart = stride[0] if len(set(stride)) == 1 else tuple(stride)
        raise InputError(
            "tensor.stride_apart",
            f"tensors have strides {coarse} and {fine}, expected tensors of one minibatch whose strides differ by a "
            f"factor of {apart}",
        )
    return tensor.manager.upward_map(fine, coarse, **shape)


def merge(function: Callable[[list[Tensor]], Tensor], tensors: tuple[AnyTensor, ...]) -> AnyTensor:
    """Merge the features of tensors on the same voxels, of slabs, or of dense tensors."""
    first, *others = tensors
    if isinstance(first, Slab):
        slabs = [tensor.on(first.borders) for tensor in tensors if isinstance(tensor, Slab)]
        return first.replace(function([slab.features for slab in slabs]))
    if isinstance(first, Tensor):
        return function([tensor for tensor in tensors if isinstance(tensor, Tensor)])
    sparse = [tensor for tensor in tensors if isinstance(tensor, SparseTensor)]
    if not all(first.shares_voxels(other) for other in others):
        raise InputError(
            "tensor.strides_differ",
            f"tensors with different strides ({[t.tensor_stride for t in sparse]}) cannot be combined; use tensors "
            "with the same voxels",
        )
    return first.replace(function([tensor.features for tensor in sparse]))


LAYERS: dict[str, Callable[..., nn.Module]] = {
    "convolution": Convolution,
    "transposed_convolution": TransposedConvolution,
    "max_pool": partial(LocalPool, max_pool),
    "average_pool": partial(LocalPool, average_pool),
    "sum_pool": partial(LocalPool, sum_pool),
    "unpool": partial(Unpool, sum_pool),
    "average_unpool": partial(Unpool, average_pool),
    "max_unpool": partial(Unpool, max_pool),
    "instance_norm": InstanceNorm,
    "global_max_pool": partial(GlobalPool, global_max_pool),
    "global_average_pool": partial(GlobalPool, global_average_pool),
    "global_sum_pool": partial(GlobalPool, global_sum_pool),
    "serialised_attention": SerialisedAttention,
    "batch_norm": BatchNorm,
    "layer_norm": LayerNorm,
    "linear": Linear,
    "dropout": Dropout,
    "drop_path": DropPath,
    "add": Add,
    "union_add": UnionAdd,
    "concatenate": Concatenate,
    "dense_grid": DenseGrid,
    **{name: partial(Activation, function) for name, function in ACTIVATIONS.items()},
    **DENSE_LAYERS,
}


def build(row: Row) -> nn.Module:
    """Build the module of a row."""
    return LAYERS[row.kind](**row.args)
