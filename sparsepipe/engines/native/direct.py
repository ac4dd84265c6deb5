"""Convolution on the CPU without gathered rows or products in memory: calls the machine code of direct_code.py.

Half precision is widened to single, multiplied and summed there: so the result is rounded once. (Products in bfloat16
proper are oneDNN's, which makes code for each number of rows, and a kernel map has other numbers in every minibatch.)
Tiles of output rows are as large as leaves every thread several tasks: the larger, the more pairs share what is packed
of a matrix.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from . import machine_code
from .kernel_map import KernelMap

# The arguments of the code, int64 each: addresses of float32 or int64 numbers, sizes and strides in numbers.
CONVOLVE = (
    *("counter", "operation", "num_tasks"),
    *("features", "kernel", "output", "in_rows", "out_rows"),
    "starts",  # [K, num_tiles + 1]: where each tile's pairs start
    *("num_offsets", "num_inputs", "num_outputs", "offset_stride", "row_stride"),
    "transposed",  # 0, 1: whether rows of a matrix in memory are columns of the one to multiply by
    *("num_rows", "tile_rows", "num_tiles"),
    *("inputs_at_a_time", "once"),  # once, 0, 1: whether every output row has exactly one pair
)
GRADIENT = (
    *("counter", "operation", "num_tasks"),
    *("features", "gradients", "output", "in_rows", "out_rows"),
    "starts",  # [K + 1]: where each offset's pairs start
    *("num_inputs", "num_outputs"),
    *("block_inputs", "num_blocks"),  # inputs of a task, tasks of an offset for each block of columns
)
LANES = (16, 8)  # of vectors of float32 numbers: AVX-512 has the first, AVX2 the others
MOST_INPUTS = 128  # of a task at a time: with a block of columns they fill the first-level cache

_OPERATIONS = ("convolve", "gradient")
_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_TASKS = 4  # for each thread, at least, where there is enough to do: one that was kept from its work holds up less
_LEAST_PART = 16  # inputs
_LEAST_TILE_ROWS, _MOST_TILE_ROWS = 64, 1024


def operation(lanes: int, name: str) -> int:
    """Return the number by which the machine code knows an operation on vectors of `lanes` numbers."""
    return len(_OPERATIONS) * LANES.index(lanes) + _OPERATIONS.index(name)


def columns_at_a_time(lanes: int) -> int:
    """Return how many columns of a row a task takes: four vectors if there are 32 registers, else two."""
    return 64 if lanes == 16 else 16


def suits(features: Tensor, kernel: Tensor) -> bool:
    """Return whether to convolve here: in single or half precision on a CPU, output rows of whole vectors.

    If matrices are transposes, input rows too.
    """
    if features.dtype not in _TYPES or features.device.type != "cpu":
        return False
    return _lanes_for(kernel) > 0


def convolve(features: Tensor, kernel: Tensor, kernel_map: KernelMap) -> Tensor:
    """Convolve features [N_in, A] with a kernel [K, A, B], or one whose matrices are transposes; return [N_out, B]."""
    dtype, features, kernel = features.dtype, features.float().contiguous(), kernel.float()
    transposed, lanes = _is_transposed(kernel), _lanes_for(kernel)
    if not transposed and kernel.stride(2) != 1:
        kernel = kernel.contiguous()
    num_offsets, num_inputs, num_outputs = kernel.shape
    output = features.new_empty(kernel_map.num_out, num_outputs)
    blocks = _num_parts(num_outputs, columns_at_a_time(lanes))
    tile_rows = _tile_rows(len(output), blocks)
    pairs, starts = kernel_map.pairs, kernel_map.tiles(tile_rows)
    num_tiles = starts.shape[1] - 1
    machine_code.run(
        (
            *(0, operation(lanes, "convolve"), num_tiles * blocks),
            *_addresses(features, kernel, output, pairs.in_rows, pairs.out_rows, starts),
            *(num_offsets, num_inputs, num_outputs, kernel.stride(0), kernel.stride(2 if transposed else 1)),
            *(int(transposed), len(output), tile_rows, num_tiles, _part(num_inputs, MOST_INPUTS)),
            int(kernel_map.pairs_outputs_once),
        )
    )
    return output.to(dtype)


def kernel_gradient(features: Tensor, grad_output: Tensor, kernel_map: KernelMap) -> Tensor:
    """Return a kernel's gradient, float32 [K, A, B], by features [N_in, A] and the output's gradient [N_out, B]."""
    features, grad_output, pairs = features.float().contiguous(), grad_output.float().contiguous(), kernel_map.pairs
    num_offsets, num_inputs, num_outputs = len(pairs.counts), features.shape[1], grad_output.shape[1]
    kernel_gradients = features.new_empty(num_offsets, num_inputs, num_outputs)
    lanes = _lanes(num_outputs)
    blocks = num_offsets * _num_parts(num_outputs, columns_at_a_time(lanes))
    most = MOST_INPUTS
    while most > _LEAST_PART and blocks * _num_parts(num_inputs, most) < _TASKS * torch.get_num_threads():
        most //= 2
    num_blocks = _num_parts(num_inputs, most)
    machine_code.run(
        (
            *(0, operation(lanes, "gradient"), blocks * num_blocks),
            *_addresses(features, grad_output, kernel_gradients, pairs.in_rows, pairs.out_rows, kernel_map.starts),
            *(num_inputs, num_outputs, _part(num_inputs, most), num_blocks),
        )
    )
    return kernel_gradients


def _is_transposed(kernel: Tensor) -> bool:
    return kernel.stride(1) == 1 and kernel.stride(2) != 1


def _lanes_for(kernel: Tensor) -> int:
    """Return the lanes for products by a kernel: of matrices that are transposes, input rows are whole vectors too."""
    return _lanes(*kernel.shape[1 if _is_transposed(kernel) else 2 :])


def _lanes(*widths: int) -> int:
    """Return the most lanes that vectors may have for rows of these widths to be whole ones; 0 if there are none."""
    most = machine_code.lanes()
    return next((lanes for lanes in LANES if lanes <= most and not any(width % lanes for width in widths)), 0)


def _addresses(*tensors: Tensor) -> Sequence[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _num_parts(count: int, most: int) -> int:
    return -(-count // most)


def _part(count: int, most: int) -> int:
    """Return how large the parts of `count` are: at most `most`, all but the last equal, multiples of `_LEAST_PART`."""
    return _LEAST_PART * _num_parts(count, _LEAST_PART * _num_parts(count, most))


def _tile_rows(num_rows: int, blocks: int) -> int:
    """Return a power of two, so that layers of like widths share their tiles."""
    rows = _MOST_TILE_ROWS
    while rows > _LEAST_TILE_ROWS and _num_parts(num_rows, rows) * blocks < _TASKS * torch.get_num_threads():
        rows //= 2
    return rows
