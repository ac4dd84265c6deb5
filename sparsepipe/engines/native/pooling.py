"""Pooling over a kernel map and over whole samples. A maximum's gradient goes to the row that gave it.

Of equal rows the one under the first kernel offset, in a global pool the first row, gave the maximum.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .kernel_map import KernelMap


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
    return _SumPool.apply(features, kernel_map)


def average_pool(features: Tensor, kernel_map: KernelMap) -> Tensor:
    """Average each output row's inputs, those that are there: [N_in, C] -> [N_out, C]; a row without any is 0."""
    counts = kernel_map.inputs.starts.diff().clamp(min=1).unsqueeze(1)
    return sum_pool(features, kernel_map) / counts


def max_pool(features: Tensor, kernel_map: KernelMap) -> Tensor:
    """Take the maximum of each output row's inputs, channel by channel: [N_in, C] -> [N_out, C]; 0 without any."""
    return _MaxPool.apply(features, kernel_map)


def global_sum_pool(features: Tensor, sample_sizes: Sequence[int]) -> Tensor:
    """Add up each sample's consecutive rows: [N, C] -> [B, C] in batch order."""
    return torch.stack([rows.sum(dim=0) for rows in features.split(sample_sizes)])


def global_average_pool(features: Tensor, sample_sizes: Sequence[int]) -> Tensor:
    """Average each sample's consecutive rows: [N, C] -> [B, C] in batch order."""
    return torch.stack([rows.mean(dim=0) for rows in features.split(sample_sizes)])


def global_max_pool(features: Tensor, sample_sizes: Sequence[int]) -> Tensor:
    """Take the maximum over each sample's consecutive rows: [N, C] -> [B, C] in batch order."""
    return torch.stack([rows.max(dim=0).values for rows in features.split(sample_sizes)])
