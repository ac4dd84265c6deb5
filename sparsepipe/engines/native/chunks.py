"""Convolution over large kernel maps: a product for each kernel offset, summed for several offsets at once.

Every matrix is read once, what was gathered is still in the cache when it is multiplied, and an output row is written
once for many pairs rather than once for each.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .kernel_map import Chunk, KernelMap, Offset
from .pairs import summed_type

_CHUNK_BYTES = 2**23  # of products at a time, unless one offset has more


def forward_chunks(features: Tensor, kernel: Tensor, kernel_map: KernelMap) -> Tensor:
    matrices, output = kernel.unbind(0), None
    if kernel_map.identity is not None:
        output = _added(None, features @ matrices[kernel_map.identity])
    chunks = kernel_map.chunks(_rows_at_a_time(kernel.shape[2], features))
    gathered, products = _room(features, kernel_map), _products(features, kernel.shape[2], chunks)
    for chunk in chunks:
        for (k, in_rows, _), own in _with_room(chunk, products):
            inputs = torch.index_select(features, 0, in_rows, out=gathered[: len(in_rows)])
            torch.mm(inputs, matrices[k], out=own)
        output = _added(output, chunk.bags.sum(products[: chunk.num_pairs]))
    return _value(output, features, kernel_map.num_out, kernel.shape[2])


def backward_chunks(
    features: Tensor, transposed: Tensor, grad_output: Tensor, kernel_map: KernelMap, wants_features: bool
) -> tuple[Tensor | None, Tensor]:
    identity, matrices, back = kernel_map.identity, transposed.unbind(0), kernel_map.transposed
    grad_kernel = features.new_empty(len(matrices), features.shape[1], grad_output.shape[1])
    grad_matrices = grad_kernel.unbind(0)
    for k in kernel_map.offsets_without_pairs:
        grad_matrices[k].zero_()
    grad_features = None
    if identity is not None:
        torch.mm(features.t(), grad_output, out=grad_matrices[identity])
        if wants_features:
            grad_features = _added(None, grad_output @ matrices[identity])
    chunks = back.chunks(_rows_at_a_time(features.shape[1], features))
    all_inputs, all_gradients = _room(features, kernel_map), _room(grad_output, kernel_map)
    products = _products(features, features.shape[1], chunks if wants_features else ())
    for chunk in chunks:
        for (k, out_rows, in_rows), own in _with_room(chunk, products):
            inputs = torch.index_select(features, 0, in_rows, out=all_inputs[: len(in_rows)])
            gradients = torch.index_select(grad_output, 0, out_rows, out=all_gradients[: len(out_rows)])
            torch.mm(inputs.t(), gradients, out=grad_matrices[k])
            if wants_features:
                torch.mm(gradients, matrices[k], out=own)
        if wants_features:
            grad_features = _added(grad_features, chunk.bags.sum(products[: chunk.num_pairs]))
    if wants_features:
        grad_features = _value(grad_features, features, kernel_map.num_in, features.shape[1])
    return grad_features, grad_kernel


def _rows_at_a_time(width: int, like: Tensor) -> int:
    """Return how many products make a chunk: a power of two, so that layers of like widths share their chunks."""
    most = max(1, _CHUNK_BYTES // (width * like.element_size()))
    return 1 << (most.bit_length() - 1)


def _room(table: Tensor, kernel_map: KernelMap) -> Tensor:
    """Make room for the rows of the largest kernel offset."""
    return table.new_empty(max(kernel_map.counts), table.shape[1])


def _products(like: Tensor, width: int, chunks: Sequence[Chunk]) -> Tensor:
    """Make room for the products of the largest chunk."""
    return like.new_empty(max((chunk.num_pairs for chunk in chunks), default=0), width)


def _with_room(chunk: Chunk, products: Tensor) -> Iterator[tuple[Offset, Tensor]]:
    """Yield each kernel offset of a chunk, and where its products go."""
    place = 0
    for own in chunk.offsets:
        yield own, products[place : place + len(own.in_rows)]
        place += len(own.in_rows)


def _added(total: Tensor | None, part: Tensor) -> Tensor:
    return part.to(summed_type(part.dtype)) if total is None else total.add_(part)


def _value(total: Tensor | None, like: Tensor, num_rows: int, width: int) -> Tensor:
    return like.new_zeros(num_rows, width) if total is None else total.to(like.dtype)
