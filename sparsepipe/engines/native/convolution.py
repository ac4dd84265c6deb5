"""Sparse convolution over a kernel map: gather rows, multiply each offset's by its matrix, add to the output rows.

Small maps are gathered and added whole, large ones a few offsets at a time, so that what was gathered is still in the
cache when it is multiplied. The matrix products are the bulk of the time; nothing of the size of the pairs is kept.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .kernel_map import Chunk, KernelMap

_CHUNK_BYTES = 2**19  # of gathered rows at a time, unless one offset has more


class _Convolution(torch.autograd.Function):
    splits_gradients = True  # a backward computes only the gradients it is asked for

    @staticmethod
    def forward(ctx: Any, features: Tensor, kernel: Tensor, kernel_map: KernelMap) -> Tensor:
        ctx.save_for_backward(features, kernel)
        ctx.kernel_map = kernel_map
        return _forward(features, kernel, kernel_map)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        features, kernel = ctx.saved_tensors
        wants_features, wants_kernel = (_wanted(ctx, place) for place in (0, 1))
        grad_output = grad_output.contiguous()
        transposed = kernel.transpose(1, 2)
        if not wants_kernel:
            return _forward(grad_output, transposed, ctx.kernel_map.transposed), None, None
        return *_backward(features, transposed, grad_output, ctx.kernel_map, wants_features), None


def _wanted(ctx: Any, place: int) -> bool:
    """Whether this time through the graph asks for an input's gradient; `needs_input_grad` says whether any may."""
    node, _ = ctx.next_functions[place]
    if not ctx.needs_input_grad[place] or node is None:
        return False
    return node.name() == "torch::autograd::AccumulateGrad" or torch._C._will_engine_execute_node(node)


def _forward(features: Tensor, kernel: Tensor, kernel_map: KernelMap) -> Tensor:
    matrices = kernel.unbind(0)
    if kernel_map.identity is None:
        output = features.new_zeros(kernel_map.num_out, kernel.shape[2])
    else:
        output = features @ matrices[kernel_map.identity]
    chunks = kernel_map.chunks(_rows_at_a_time(features, output))
    gathered, products = _buffers(chunks, features, output)
    for chunk in chunks:
        size = len(chunk.in_rows)
        torch.index_select(features, 0, chunk.in_rows, out=gathered[:size])
        rows = zip(gathered[:size].split(chunk.counts), products[:size].split(chunk.counts), strict=True)
        for k, (inputs, outputs) in zip(chunk.offsets, rows, strict=True):
            torch.mm(inputs, matrices[k], out=outputs)
        output.index_add_(0, chunk.out_rows, products[:size])
    return output


def _backward(
    features: Tensor, transposed: Tensor, grad_output: Tensor, kernel_map: KernelMap, wants_features: bool
) -> tuple[Tensor | None, Tensor]:
    """Return the gradients of the features, unless nobody wants them, and of the kernel, from one gathering of rows."""
    identity, matrices = kernel_map.identity, transposed.unbind(0)
    grad_kernel = features.new_empty(len(matrices), features.shape[1], grad_output.shape[1])
    grad_matrices = grad_kernel.unbind(0)
    for k, count in enumerate(kernel_map.counts):
        if not count and k != identity:
            grad_matrices[k].zero_()
    grad_features = None
    if identity is not None:
        torch.mm(features.t(), grad_output, out=grad_matrices[identity])
    if wants_features:
        grad_features = torch.zeros_like(features) if identity is None else grad_output @ matrices[identity]
    chunks = kernel_map.chunks(_rows_at_a_time(features, grad_output))
    all_inputs, all_gradients = _buffers(chunks, features, grad_output)
    for chunk in chunks:
        size = len(chunk.in_rows)
        torch.index_select(features, 0, chunk.in_rows, out=all_inputs[:size])
        torch.index_select(grad_output, 0, chunk.out_rows, out=all_gradients[:size])
        rows = zip(all_inputs[:size].split(chunk.counts), all_gradients[:size].split(chunk.counts), strict=True)
        for k, (inputs, gradients) in zip(chunk.offsets, rows, strict=True):
            torch.mm(inputs.t(), gradients, out=grad_matrices[k])
            if wants_features:
                torch.mm(gradients, matrices[k], out=inputs)  # these inputs have done their part
        if grad_features is not None:
            grad_features.index_add_(0, chunk.in_rows, all_inputs[:size])
    return grad_features, grad_kernel


def _buffers(chunks: Sequence[Chunk], *like: Tensor) -> list[Tensor]:
    """Make room for the rows of the largest chunk, as wide as each of the tensors."""
    most = max((len(chunk.in_rows) for chunk in chunks), default=0)
    return [tensor.new_empty(most, tensor.shape[1]) for tensor in like]


def _rows_at_a_time(*tensors: Tensor) -> int:
    return _CHUNK_BYTES // max(tensor.shape[1] * tensor.element_size() for tensor in tensors)


def convolve(features: Tensor, kernel: Tensor, kernel_map: KernelMap) -> Tensor:
    """Convolve features [N_in, C_in] with a kernel [K, C_in, C_out]; return [N_out, C_out]."""
    device_type = features.device.type
    if torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
        features, kernel = features.to(dtype), kernel.to(dtype)  # autograd brings gradients back to their own dtypes
    with torch.autocast(device_type, enabled=False):
        return _Convolution.apply(features, kernel, kernel_map)
