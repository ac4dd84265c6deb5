"""Convolution by oneDNN's matrix products, for processors on which those of torch.mm are half as fast.

torch.mm calls MKL, which on a processor of another maker leaves AVX-512 alone; oneDNN, which torch brings for dense
convolutions, goes by what the processor says it can do. But oneDNN makes code for each number of rows, in a third of a
millisecond, and a kernel map has other numbers of pairs in every minibatch: rows are gathered one kernel offset at a
time into buffers of few distinct sizes, the rest filled with zeros.
"""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from .kernel_map import KernelMap

_LEAST_PRODUCTS = 5 * 2**20  # multiplications of an offset and thread, on average: below, calls cost what they save
_SIZES_AN_OCTAVE = 8
_LEAST_SIZE = 64  # rows


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
    products = kernel_map.num_pairs * kernel.shape[1] * kernel.shape[2]
    return products >= _LEAST_PRODUCTS * torch.get_num_threads() * len(kernel) and is_faster()


def forward_offsets(features: Tensor, kernel: Tensor, kernel_map: KernelMap) -> Tensor:
    features, matrices = features.contiguous(), kernel.unbind(0)
    if kernel_map.identity is None:
        output = features.new_zeros(kernel_map.num_out, kernel.shape[2])
    else:
        output = _times(features, matrices[kernel_map.identity])
    gather = _gatherer(features, kernel_map)
    for chunk in kernel_map.chunks(1):
        (k,) = chunk.offsets
        product = multiply(gather(chunk.in_rows), matrices[k])
        output.index_add_(0, chunk.out_rows, product[: len(chunk.in_rows)])
    return output


def backward_offsets(
    features: Tensor, transposed: Tensor, grad_output: Tensor, kernel_map: KernelMap, wants_features: bool
) -> tuple[Tensor | None, Tensor]:
    identity, features, matrices = kernel_map.identity, features.contiguous(), transposed.unbind(0)
    grad_kernel = features.new_empty(len(matrices), features.shape[1], grad_output.shape[1])
    grad_matrices = grad_kernel.unbind(0)
    for k, count in enumerate(kernel_map.counts):
        if not count and k != identity:
            grad_matrices[k].zero_()
    grad_features = None
    if identity is not None:
        head = _fewer(len(features))
        torch.mm(features[head:].t(), grad_output[head:], out=grad_matrices[identity])
        if head:
            grad_matrices[identity].add_(multiply_columns(features[:head], grad_output[:head]))
    if wants_features:
        grad_features = torch.zeros_like(features) if identity is None else _times(grad_output, matrices[identity])
    gather_inputs, gather_gradients = _gatherer(features, kernel_map), _gatherer(grad_output, kernel_map)
    for chunk in kernel_map.chunks(1):
        (k,) = chunk.offsets
        inputs, gradients = gather_inputs(chunk.in_rows), gather_gradients(chunk.out_rows)
        grad_matrices[k].copy_(multiply_columns(inputs, gradients))
        if grad_features is not None:
            product = multiply(gradients, matrices[k])
            grad_features.index_add_(0, chunk.in_rows, product[: len(chunk.in_rows)])
    return grad_features, grad_kernel


def _gatherer(table: Tensor, kernel_map: KernelMap) -> Callable[[Tensor], Tensor]:
    """Return what brings rows of `table` together in a buffer that the next call uses again, zeros behind them."""
    buffer = table.new_empty(_more(max(kernel_map.counts)), table.shape[1])

    def gather(rows: Tensor) -> Tensor:
        count = len(rows)
        gathered = buffer[: _more(count)]
        torch.index_select(table, 0, rows, out=gathered[:count])
        gathered[count:].zero_()
        return gathered

    return gather


def _more(count: int) -> int:
    """Return the next size, of the few that there are, for so many rows."""
    step = max(_LEAST_SIZE, 2 ** max(count - 1, 1).bit_length() // (2 * _SIZES_AN_OCTAVE))
    return -(-count // step) * step


def _fewer(count: int) -> int:
    """Return the size before."""
    step = max(_LEAST_SIZE, 2 ** count.bit_length() // (4 * _SIZES_AN_OCTAVE))
    return count // step * step


def _times(rows: Tensor, matrix: Tensor) -> Tensor:
    """Multiply rows that stand where they are: as many as make a size, and the others by torch.mm."""
    head = _fewer(len(rows))
    tail = rows[head:] @ matrix
    return torch.cat([multiply(rows[:head], matrix), tail]) if head else tail


def multiply(rows: Tensor, matrix: Tensor) -> Tensor:
    """[P, A] times [A, B]."""
    return torch.ops.mkldnn._linear_pointwise(rows, matrix.t(), None, "none", [], "")


def multiply_columns(inputs: Tensor, gradients: Tensor) -> Tensor:
    """[P, A], transposed, times [P, B]: the gradient of a dense convolution over P places with a kernel of one."""
    (rows, a), b = inputs.shape, gradients.shape[1]
    if rows < 4 * max(a, b):
        return torch.ops.mkldnn._linear_pointwise(inputs.t(), gradients.t(), None, "none", [], "")
    places = (x.view(1, rows, 1, -1).permute(0, 3, 1, 2) for x in (gradients, inputs))
    weight = inputs.new_empty(1).expand(b, a, 1, 1)
    # A kernel of one cannot tell its dilation, but on one thread torch leaves those without to MKL.
    found = torch.ops.aten.convolution_backward(
        *places, weight, None, [1, 1], [0, 0], [2, 2], False, [0, 0], 1, [False, True, False]
    )[1]
    return found.view(b, a).t()
