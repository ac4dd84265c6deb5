"""Convolution of large maps with wide channels: a few kernel offsets at a time, for all rows.

Every matrix is read once, and what was gathered is still in the cache when it is multiplied and added up.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .kernel_map import Chunk, KernelMap
from .pairs import summed_type

_CHUNK_BYTES = 2**20  # of gathered rows at a time, unless one offset has more


def forward_chunks(features: Tensor, kernel: Tensor, kernel_map: KernelMap) -> Tensor:
    matrices, summed = kernel.unbind(0), summed_type(features.dtype)
    if kernel_map.identity is None:
        output = features.new_zeros(kernel_map.num_out, kernel.shape[2], dtype=summed)
    else:
        output = (features @ matrices[kernel_map.identity]).to(summed)
    chunks = kernel_map.chunks(_rows_at_a_time(features, output))
    gathered, products = _buffers(chunks, (features, features.shape[1]), (features, output.shape[1]))
    for chunk in chunks:
        size = len(chunk.in_rows)
        torch.index_select(features, 0, chunk.in_rows, out=gathered[:size])
        rows = zip(gathered[:size].split(chunk.counts), products[:size].split(chunk.counts), strict=True)
        for k, (inputs, outputs) in zip(chunk.offsets, rows, strict=True):
            torch.mm(inputs, matrices[k], out=outputs)
        output.index_add_(0, chunk.out_rows, products[:size].to(summed))
    return output.to(features.dtype)


def backward_chunks(
    features: Tensor, transposed: Tensor, grad_output: Tensor, kernel_map: KernelMap, wants_features: bool
) -> tuple[Tensor | None, Tensor]:
    identity, matrices, summed = kernel_map.identity, transposed.unbind(0), summed_type(features.dtype)
    grad_kernel = features.new_empty(len(matrices), features.shape[1], grad_output.shape[1])
    grad_matrices = grad_kernel.unbind(0)
    for k, count in enumerate(kernel_map.counts):
        if not count and k != identity:
            grad_matrices[k].zero_()
    grad_features = None
    if identity is not None:
        torch.mm(features.t(), grad_output, out=grad_matrices[identity])
    if wants_features and identity is None:
        grad_features = torch.zeros_like(features, dtype=summed)
    elif wants_features:
        grad_features = (grad_output @ matrices[identity]).to(summed)
    chunks = kernel_map.chunks(_rows_at_a_time(features, grad_output))
    all_inputs, all_gradients = _buffers(chunks, (features, features.shape[1]), (features, grad_output.shape[1]))
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
            grad_features.index_add_(0, chunk.in_rows, all_inputs[:size].to(summed))
    return None if grad_features is None else grad_features.to(features.dtype), grad_kernel


def _buffers(chunks: Sequence[Chunk], *shapes: tuple[Tensor, int]) -> list[Tensor]:
    """Make room for the rows of the largest chunk, each like a tensor and so many columns wide."""
    most = max((len(chunk.in_rows) for chunk in chunks), default=0)
    return [like.new_empty(most, width) for like, width in shapes]


def _rows_at_a_time(*tensors: Tensor) -> int:
    return _CHUNK_BYTES // max(tensor.shape[1] * tensor.element_size() for tensor in tensors)
