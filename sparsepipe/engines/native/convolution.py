"""Sparse convolution over a kernel map: for each offset gather rows, multiply by its matrix, add to the output rows."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .coordinates import KernelMap


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, kernel: Tensor, kernel_map: KernelMap) -> Tensor:
        ctx.save_for_backward(features, kernel)
        ctx.kernel_map = kernel_map
        if kernel_map.identity is None:
            output = features.new_zeros(kernel_map.num_out, kernel.shape[2])
        else:
            output = features @ kernel[kernel_map.identity]
        for k, in_rows, out_rows in kernel_map.segments():
            output.index_add_(0, out_rows, features.index_select(0, in_rows) @ kernel[k])
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        features, kernel = ctx.saved_tensors
        kernel_map, identity = ctx.kernel_map, ctx.kernel_map.identity
        wants_features, wants_kernel, _ = ctx.needs_input_grad
        grad_output = grad_output.contiguous()
        grad_features = grad_kernel = None
        if wants_kernel:
            grad_kernel = torch.empty_like(kernel)
            for k, count in enumerate(kernel_map.counts):
                if not count and k != identity:
                    grad_kernel[k].zero_()
            if identity is not None:
                torch.mm(features.t(), grad_output, out=grad_kernel[identity])
        if wants_features:
            if identity is None:
                grad_features = torch.zeros_like(features)
            else:
                grad_features = grad_output @ kernel[identity].t()
        for k, in_rows, out_rows in kernel_map.segments():
            gathered = grad_output.index_select(0, out_rows)
            if grad_features is not None:
                grad_features.index_add_(0, in_rows, gathered @ kernel[k].t())
            if grad_kernel is not None:
                torch.mm(features.index_select(0, in_rows).t(), gathered, out=grad_kernel[k])
        return grad_features, grad_kernel, None


def convolve(features: Tensor, kernel: Tensor, kernel_map: KernelMap) -> Tensor:
    """Convolve features [N_in, C_in] with a kernel [K, C_in, C_out]; return [N_out, C_out]."""
    return _Convolution.apply(features, kernel, kernel_map)
