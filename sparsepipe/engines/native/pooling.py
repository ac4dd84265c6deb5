"""Pooling over a kernel map and over whole samples. A maximum's gradient goes to the row that gave it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .kernel_map import KernelMap


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, kernel_map: KernelMap) -> Tensor:
        in_rows, out_rows = kernel_map.all_rows
        shape = (kernel_map.num_out, features.shape[1])
        index = out_rows.unsqueeze(1).expand(-1, shape[1])
        candidates = features.index_select(0, in_rows)
        # Every output voxel has an input voxel below it, so no output is left as it was made.
        output = features.new_empty(shape).scatter_reduce_(0, index, candidates, "amax", include_self=False)
        if ctx.needs_input_grad[0]:
            # Of equal candidates the first row wins. Row numbers are floats as only those are reduced fast.
            exact = torch.float32 if kernel_map.num_in <= 2**24 else torch.float64
            best = candidates == output.index_select(0, out_rows)
            rows = torch.where(best, in_rows.to(exact).unsqueeze(1), torch.inf)
            winners = rows.new_empty(shape).scatter_reduce_(0, index, rows, "amin", include_self=False)
            ctx.save_for_backward(winners.int())
            ctx.num_in = kernel_map.num_in
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        (winners,) = ctx.saved_tensors
        grad_features = grad_output.new_zeros(ctx.num_in, grad_output.shape[1])
        return grad_features.scatter_add_(0, winners.long(), grad_output), None


class _SumPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, kernel_map: KernelMap) -> Tensor:
        ctx.kernel_map = kernel_map
        return _sum(features, kernel_map)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        return _sum(grad_output, ctx.kernel_map.transposed), None


def _sum(features: Tensor, kernel_map: KernelMap) -> Tensor:
    in_rows, out_rows = kernel_map.all_rows
    output = features.new_zeros(kernel_map.num_out, features.shape[1])
    return output.index_add_(0, out_rows, features.index_select(0, in_rows))


def sum_pool(features: Tensor, kernel_map: KernelMap) -> Tensor:
    """Add up each output row's inputs: [N_in, C] -> [N_out, C]."""
    return _SumPool.apply(features, kernel_map)


def average_pool(features: Tensor, kernel_map: KernelMap) -> Tensor:
    """Average each output row's inputs, those that are there: [N_in, C] -> [N_out, C]; a row without any is 0."""
    counts = torch.bincount(kernel_map.all_rows[1], minlength=kernel_map.num_out)
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
