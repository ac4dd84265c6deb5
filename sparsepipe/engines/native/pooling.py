"""Pooling over a kernel map and over whole samples. A maximum's gradient goes to the row that gave it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .coordinates import KernelMap


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, kernel_map: KernelMap) -> Tensor:
        shape = (kernel_map.num_out, features.shape[1])
        if kernel_map.identity is None:
            # Every output voxel has an input voxel below it, so no output keeps the starting value.
            output = features.new_full(shape, -torch.inf)
            winners = torch.zeros_like(output, dtype=torch.int64)
        else:
            output = features.clone()
            winners = torch.arange(len(features), device=features.device).unsqueeze(1).repeat(1, shape[1])
        for _, in_rows, out_rows in kernel_map.segments():
            candidates, best = features.index_select(0, in_rows), output.index_select(0, out_rows)
            better = candidates > best  # of equal candidates the first wins
            output.index_copy_(0, out_rows, torch.where(better, candidates, best))
            rows = torch.where(better, in_rows.unsqueeze(1), winners.index_select(0, out_rows))
            winners.index_copy_(0, out_rows, rows)
        ctx.save_for_backward(winners)
        ctx.num_in = kernel_map.num_in
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (winners,) = ctx.saved_tensors
        grad_features = grad_output.new_zeros(ctx.num_in, grad_output.shape[1])
        return grad_features.scatter_add_(0, winners, grad_output), None


class _SumPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, kernel_map: KernelMap) -> Tensor:
        ctx.kernel_map = kernel_map
        return _sum(features, kernel_map)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        return _sum(grad_output, ctx.kernel_map.transposed()), None


def _sum(features: Tensor, kernel_map: KernelMap) -> Tensor:
    if kernel_map.identity is None:
        output = features.new_zeros(kernel_map.num_out, features.shape[1])
    else:
        output = features.clone()
    for _, in_rows, out_rows in kernel_map.segments():
        output.index_add_(0, out_rows, features.index_select(0, in_rows))
    return output


def sum_pool(features: Tensor, kernel_map: KernelMap) -> Tensor:
    """Add up each output row's inputs: [N_in, C] -> [N_out, C]."""
    return _SumPool.apply(features, kernel_map)


def average_pool(features: Tensor, kernel_map: KernelMap) -> Tensor:
    """Average each output row's inputs, those that are there: [N_in, C] -> [N_out, C]; a row without any is 0."""
    counts = torch.bincount(kernel_map.out_rows, minlength=kernel_map.num_out)
    if kernel_map.identity is not None:
        counts = counts + 1
    return sum_pool(features, kernel_map) / counts.clamp(min=1).unsqueeze(1)


def max_pool(features: Tensor, kernel_map: KernelMap) -> Tensor:
    """Take the maximum of each output row's inputs, channel by channel: [N_in, C] -> [N_out, C]."""
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
