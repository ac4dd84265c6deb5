"""Convolution by oneDNN's matrix products, for processors on which those of torch.mm are half as fast.

torch.mm calls MKL, which on a processor of another maker leaves AVX-512 alone; oneDNN, which torch brings for dense
convolutions, goes by what the processor says it can do. But oneDNN makes code for each number of rows, in a third of a
millisecond and half a megabyte, and a kernel map has other numbers of pairs in every minibatch. So rows are multiplied
in blocks of two sizes: the rows of one kernel offset at a time, the last block filled up with zeros where that is less
work than torch.mm has with the rest.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from .kernel_map import KernelMap

# For each thread, all of them: threads that wait for each other, too, want work.
_LEAST_PRODUCTS = 5 * 2**20  # multiplications of an offset, on average: below, calls cost what they save
_LEAST_NUMBERS = 2**13  # of a matrix: below, moving rows is most of the work
_LARGE_BLOCK = 512  # rows
_SMALL_BLOCK_PRODUCTS = 2**23  # about: fewer, and the call, 15 us, is felt


@lru_cache(maxsize=1)
def is_faster() -> bool:
    """Say whether oneDNN multiplies faster than torch.mm here: AVX-512, and not by Intel, for which MKL uses it too."""
    has_onednn = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not has_onednn:
        return False
    try:
        makers = {
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("vendor_id")
        }
    except OSError:  # not Linux
        return False
    return bool(makers) and "GenuineIntel" not in makers


def suits(features: Tensor, kernel: Tensor, kernel_map: KernelMap) -> bool:
    """Say whether to convolve here."""
    if features.dtype != torch.float32 or features.device.type != "cpu":
        return False
    threads, numbers = torch.get_num_threads(), kernel.shape[1] * kernel.shape[2]
    enough = kernel_map.num_pairs * numbers >= _LEAST_PRODUCTS * threads * len(kernel)
    return enough and numbers >= _LEAST_NUMBERS * threads and is_faster()


def forward_offsets(features: Tensor, kernel: Tensor, kernel_map: KernelMap) -> Tensor:
    features, matrices = features.contiguous(), kernel.unbind(0)
    if kernel_map.identity is None:
        output = features.new_zeros(kernel_map.num_out, kernel.shape[2])
    else:
        output = _times(features, matrices[kernel_map.identity])
    gather = _gatherer(features, kernel_map, small_block(kernel))
    for k, in_rows, out_rows in kernel_map.offsets_with_pairs:
        _add_products(output, out_rows, gather(in_rows), matrices[k])
    return output


def backward_offsets(
    features: Tensor, transposed: Tensor, grad_output: Tensor, kernel_map: KernelMap, wants_features: bool
) -> tuple[Tensor | None, Tensor]:
    identity, features, matrices = kernel_map.identity, features.contiguous(), transposed.unbind(0)
    grad_kernel = features.new_zeros(len(matrices), features.shape[1], grad_output.shape[1])
    grad_matrices = grad_kernel.unbind(0)
    grad_features = None
    if identity is not None:
        _add_columns(grad_matrices[identity], features, grad_output)
    if wants_features:
        grad_features = torch.zeros_like(features) if identity is None else _times(grad_output, matrices[identity])
    size = small_block(transposed)
    gather_inputs, gather_gradients = _gatherer(features, kernel_map, size), _gatherer(grad_output, kernel_map, size)
    for k, in_rows, out_rows in kernel_map.offsets_with_pairs:
        inputs, gradients = gather_inputs(in_rows), gather_gradients(out_rows)
        _add_columns(grad_matrices[k], inputs, gradients)
        if grad_features is not None:
            _add_products(grad_features, in_rows, gradients, matrices[k])
    return grad_features, grad_kernel


def small_block(kernel: Tensor) -> int:
    """Return the rows of a small block for matrices [..., A, B]."""
    rows = _SMALL_BLOCK_PRODUCTS * torch.get_num_threads() // (kernel.shape[-2] * kernel.shape[-1])
    return min(large_block(), max(64, rows // 64 * 64))


def large_block() -> int:
    """Return the rows of a large block."""
    return _LARGE_BLOCK * torch.get_num_threads()


def _gatherer(table: Tensor, kernel_map: KernelMap, size: int) -> Callable[[Tensor], Tensor]:
    """Return what brings rows of `table` together in a buffer that the next call uses again.

    What is missing from a last block that is more than half full are zeros.
    """
    buffer = table.new_empty(max(kernel_map.counts) + size, table.shape[1])

    def gather(rows: Tensor) -> Tensor:
        count = len(rows)
        full = count + -count % size if 2 * (count % size) > size else count
        torch.index_select(table, 0, rows, out=buffer[:count])
        buffer[count:full].zero_()
        return buffer[:full]

    return gather


def _blocks(rows: Tensor, size: int) -> Iterator[tuple[slice, bool]]:
    """Yield which rows make a block, large ones and then those of `size`, and whether it is oneDNN's, not the rest."""
    start = 0
    for own in (large_block(), size):
        while start + own <= len(rows):
            yield slice(start, start + own), True
            start += own
    if start < len(rows):
        yield slice(start, len(rows)), False


def _add_products(output: Tensor, places: Tensor, rows: Tensor, matrix: Tensor) -> None:
    """Add to rows of `output`, at `places`, the rows [P, A] times the matrix [A, B]. Of `rows` there may be more."""
    for block, by_onednn in _blocks(rows, small_block(matrix)):
        product = multiply(rows[block], matrix) if by_onednn else rows[block] @ matrix
        at = places[block]
        output.index_add_(0, at, product[: len(at)])


def _add_columns(total: Tensor, inputs: Tensor, gradients: Tensor) -> None:
    """Add [P, A], transposed, times [P, B]."""
    for block, by_onednn in _blocks(inputs, small_block(total)):
        if by_onednn:
            total.add_(multiply(inputs[block].t(), gradients[block]))
        else:
            total.addmm_(inputs[block].t(), gradients[block])


def _times(rows: Tensor, matrix: Tensor) -> Tensor:
    """Multiply rows that stand where they are."""
    products = rows.new_empty(len(rows), matrix.shape[1])
    for block, by_onednn in _blocks(rows, small_block(matrix)):
        products[block] = multiply(rows[block], matrix) if by_onednn else rows[block] @ matrix
    return products


def multiply(rows: Tensor, matrix: Tensor) -> Tensor:
    """[P, A] times [A, B], by oneDNN. Either may be a transpose."""
    return torch.ops.mkldnn._linear_pointwise(rows, matrix.t(), None, "none", [], "")
