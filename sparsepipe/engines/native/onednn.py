"""Convolution by oneDNN's matrix products, for processors on which those of torch.mm are half as fast.

torch.mm calls MKL, which on a processor of another maker leaves AVX-512 alone; oneDNN, which torch brings for dense
convolutions, goes by what the processor says it can do, and is up to twice as fast on AMD's Zen 5. But it makes code
for each number of rows, in a third of a millisecond and half a megabyte, and a kernel map has other numbers of pairs in
every minibatch. So the rows of a kernel offset are multiplied in blocks of three sizes, the last one filled up with
zeros or left to torch.mm.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache

import torch
import torch.nn.functional as functional
from torch import Tensor

from ... import processor
from .kernel_map import KernelMap

# For each thread, all of them: threads that wait for each other, too, want work.
_LEAST_PRODUCTS = 5 * 2**20  # multiplications of an offset, on average: below, calls cost what they save
_LEAST_NUMBERS = 2**13  # of a matrix: below, moving rows is most of the work
_LARGE_BLOCK = 512  # rows
_SMALL_BLOCK_PRODUCTS = 2**23  # about: fewer, and the call, 15 us, is felt
_ZEN_5 = 26  # "cpu family"
_LEAST_SMALL_BLOCK = 256  # rows: with fewer, adding to a kernel's gradient takes as long as the product


@lru_cache(maxsize=1)
def is_faster() -> bool:
    """Say whether oneDNN multiplies faster than torch.mm here: by AVX-512 where MKL leaves it alone and it is worth it.

    Decided by what the processor is, not by a measurement: two processes of a machine must round alike.
    """
    has_onednn = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    uses_avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return has_onednn and uses_avx512 and has_whole_avx512(processor.facts())


def has_whole_avx512(facts: Mapping[str, str]) -> bool:
    """Say whether a processor's facts are those of one of AMD's whose vector units are 512 bits wide: Zen 5, or later.

    Those of Zen 4 take AVX-512 in two halves: products are as fast by either library there, and a training step of
    MinkVGG16 or MinkUNet34C in oneDNN's blocks takes 5 to 10 % longer. On Intel's MKL uses AVX-512 itself.
    """
    return facts.get("vendor_id") == "AuthenticAMD" and int(facts.get("cpu family", 0)) >= _ZEN_5


def suits(features: Tensor, kernel: Tensor, kernel_map: KernelMap) -> bool:
    """Say whether to convolve here."""
    if features.dtype != torch.float32 or features.device.type != "cpu":
        return False
    threads, numbers = torch.get_num_threads(), kernel.shape[1] * kernel.shape[2]
    enough = kernel_map.num_pairs * numbers >= _LEAST_PRODUCTS * threads * len(kernel)
    return enough and numbers >= _LEAST_NUMBERS * threads and is_faster()


Block = tuple[slice, int]  # rows, and as how many oneDNN multiplies them; 0: torch.mm does


@lru_cache(maxsize=2**14)
def blocks(count: int, numbers: int, threads: int) -> tuple[Block, ...]:
    """Divide `count` rows, to be multiplied by a matrix of so many numbers, into blocks of at most three sizes.

    The last one is filled up with zeros, or left to torch.mm where these would be half of it or more.
    """
    large, small = block_sizes(numbers, threads)
    found: list[Block] = []
    start = 0
    while start < count or not found:
        left = count - start
        size = large if left >= large else small if 4 * left > 3 * small else small // 2
        rows = min(size, left)
        found.append((slice(start, start + rows), size if 2 * rows > size else 0))
        start += rows
    return tuple(found)


def block_sizes(numbers: int, threads: int) -> tuple[int, int]:
    """Return the rows of a large and of a small block for matrices of so many numbers; the least has half of these."""
    large, rows = _LARGE_BLOCK * threads, _SMALL_BLOCK_PRODUCTS * threads // numbers
    return large, min(large, max(_LEAST_SMALL_BLOCK, rows // 128 * 128))


def _blocks(count: int, kernel: Tensor) -> tuple[Block, ...]:
    return blocks(count, kernel.shape[-2] * kernel.shape[-1], torch.get_num_threads())


def forward_offsets(features: Tensor, kernel: Tensor, kernel_map: KernelMap) -> Tensor:
    features, matrices = features.contiguous(), kernel.unbind(0)
    if kernel_map.identity is None:
        output = features.new_zeros(kernel_map.num_out, kernel.shape[2])
    else:
        output = _times(features, matrices[kernel_map.identity])
    gather = _gatherer(features, kernel_map)
    for k, in_rows, out_rows in kernel_map.offsets_with_pairs:
        own = _blocks(len(in_rows), kernel)
        _add_products(output, out_rows, gather(in_rows, own), matrices[k], own)
    return output


def backward_offsets(
    features: Tensor, transposed: Tensor, grad_output: Tensor, kernel_map: KernelMap, wants_features: bool
) -> tuple[Tensor | None, Tensor]:
    identity, features, matrices = kernel_map.identity, features.contiguous(), transposed.unbind(0)
    grad_kernel = features.new_empty(len(matrices), features.shape[1], grad_output.shape[1])
    grad_matrices = grad_kernel.unbind(0)
    for k in kernel_map.offsets_without_pairs:
        grad_matrices[k].zero_()
    grad_features = None
    if identity is not None:
        _take_columns(grad_matrices[identity], features, grad_output, _blocks(len(features), transposed))
    if wants_features:
        grad_features = torch.zeros_like(features) if identity is None else _times(grad_output, matrices[identity])
    gather_inputs, gather_gradients = _gatherer(features, kernel_map), _gatherer(grad_output, kernel_map)
    for k, in_rows, out_rows in kernel_map.offsets_with_pairs:
        own = _blocks(len(in_rows), transposed)
        inputs, gradients = gather_inputs(in_rows, own), gather_gradients(out_rows, own)
        _take_columns(grad_matrices[k], inputs, gradients, own)
        if grad_features is not None:
            _add_products(grad_features, in_rows, gradients, matrices[k], own)
    return grad_features, grad_kernel


def _gatherer(table: Tensor, kernel_map: KernelMap) -> Callable[[Tensor, tuple[Block, ...]], Tensor]:
    """Return what brings rows of `table` together in a buffer that the next call uses again, zeros behind them."""
    buffer = table.new_empty(max(kernel_map.counts) + _LARGE_BLOCK * torch.get_num_threads(), table.shape[1])

    def gather(rows: Tensor, into: tuple[Block, ...]) -> Tensor:
        count, (last, size) = len(rows), into[-1]
        full = max(count, last.start + size)
        torch.index_select(table, 0, rows, out=buffer[:count])
        buffer[count:full].zero_()
        return buffer[:full]

    return gather


def _block(rows: Tensor, own: slice, size: int) -> Tensor:
    """Return a block's rows; where there are fewer than its size, with zeros behind them."""
    block = rows[own.start : own.start + size] if size else rows[own]
    return block if len(block) >= size else functional.pad(block, (0, 0, 0, size - len(block)))


def _add_products(output: Tensor, places: Tensor, rows: Tensor, matrix: Tensor, into: tuple[Block, ...]) -> None:
    """Add to rows of `output`, at `places`, the rows [P, A] times the matrix [A, B]."""
    for own, size in into:
        block = _block(rows, own, size)
        product = multiply(block, matrix) if size else block @ matrix
        output.index_add_(0, places[own], product[: own.stop - own.start])


def _take_columns(total: Tensor, inputs: Tensor, gradients: Tensor, into: tuple[Block, ...]) -> None:
    """Make `total` the inputs [P, A], transposed, times the gradients [P, B]."""
    for own, size in into:
        columns, block = _block(inputs, own, size).t(), _block(gradients, own, size)
        if own.start:
            total.add_(multiply(columns, block)) if size else total.addmm_(columns, block)
        elif size:
            total.copy_(multiply(columns, block))
        else:
            torch.mm(columns, block, out=total)


def _times(rows: Tensor, matrix: Tensor) -> Tensor:
    """Multiply rows that stand where they are."""
    products = rows.new_empty(len(rows), matrix.shape[1])
    for own, size in _blocks(len(rows), matrix):
        block = _block(rows, own, size)
        product = multiply(block, matrix) if size else block @ matrix
        products[own] = product[: own.stop - own.start]
    return products


def multiply(rows: Tensor, matrix: Tensor) -> Tensor:
    """[P, A] times [A, B], by oneDNN. Either may be a transpose."""
    return torch.ops.mkldnn._linear_pointwise(rows, matrix.t(), None, "none", [], "")
