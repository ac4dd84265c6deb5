"""Sparse convolution over a kernel map: gather rows, multiply by each offset's matrix, add up for each output row.

The first of these ways that suits the input and the device is taken:

    direct   on the CPU, output rows of whole vectors, in single precision or half: machine code that moves no row to
             multiply it, where llvmlite is there to make it. See direct.py.
    fused    on CUDA, where Triton is there and it was found to be faster for such a problem: see fused.py, tuning.py.
    scaled   one input channel, as in most first layers: each output row adds up scaled rows of the kernel itself.
    whole    where all pairs fit the cache: one gathering, the products, then every output row adds up its own in one
             pass. Nothing is written twice.
    chunks   large maps, a few offsets at a time.

Nothing of the size of the pairs is kept for the backward pass. Half precision is summed in single; in chunks, whose
products are rounded, a chunk's sum is rounded before it is added to the others'.

Convolution over large kernel maps: a product for each kernel offset, summed for several offsets at once.

Every matrix is read once, what was gathered is still in the cache when it is multiplied, and an output row is written
once for many pairs rather than once for each.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import direct
from .kernel_map import Chunk, KernelMap, Offset, Pairs, summed_type
from .tuning import fastest, fused_kernels

_CHUNK_BYTES = 2**23  # of products at a time, unless one offset has more

_CACHE_BYTES = 2**23  # of gathered rows and products


class _Convolution(torch.autograd.Function):
    splits_gradients = True  # a backward computes only the gradients it is asked for

    @staticmethod
    def forward(ctx: Any, features: Tensor, kernel: Tensor, kernel_map: KernelMap) -> Tensor:
        ctx.save_for_backward(features, kernel)
        ctx.kernel_map = kernel_map
        return convolve_forward(features, kernel.to(features.dtype), kernel_map)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        features, kernel = ctx.saved_tensors
        wants_features, wants_kernel = (_wanted(ctx, input_index) for input_index in (0, 1))
        if not wants_kernel:
            with _without_autocast(features.device.type):
                transposed = kernel.to(features.dtype).transpose(1, 2)
                return convolve_forward(grad_output.contiguous(), transposed, ctx.kernel_map.transposed), None, None
        return *convolve_backward(features, kernel, grad_output, ctx.kernel_map, wants_features), None


def _without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Switch autocast off where it is on: to switch it off takes as long as a small layer's products."""
    enabled = torch.is_autocast_enabled(device_type)
    return torch.autocast(device_type, enabled=False) if enabled else nullcontext()


def convolve_backward(
    features: Tensor, kernel: Tensor, grad_output: Tensor, kernel_map: KernelMap, wants_features: bool
) -> tuple[Tensor | None, Tensor]:
    """Return the gradients of the features, None if not `wants_features`, and of the kernel, in their own types."""
    with _without_autocast(features.device.type):
        transposed = kernel.to(features.dtype).transpose(1, 2)
        found = _backward(features, transposed, grad_output.contiguous(), kernel_map, wants_features)
    return found[0], found[1].to(kernel.dtype)


def _wanted(ctx: Any, place: int) -> bool:
    """Return whether this time through the graph asks for an input's gradient; `needs_input_grad` says whether any
    may.
    """
    node, _ = ctx.next_functions[place]
    if not ctx.needs_input_grad[place] or node is None:
        return False
    return node.name() == "torch::autograd::AccumulateGrad" or torch._C._will_engine_execute_node(node)


def convolve_forward(features: Tensor, kernel: Tensor, kernel_map: KernelMap) -> Tensor:
    """Convolve features [N_in, C_in] with a kernel [K, C_in, C_out] of the same type; return [N_out, C_out]."""
    if direct.suits(features, kernel):
        return direct.convolve(features, kernel, kernel_map)
    plain = _forward_scaled if kernel.shape[1] == 1 else _forward_gathered
    gather = partial(plain, features, kernel, kernel_map)
    fused = fused_kernels(features)
    if fused is None:
        return gather()
    blocks: dict[str, Callable[[], Tensor]] = {
        f"fused {blocks}": partial(fused.forward, features, kernel, kernel_map, blocks)
        for blocks in fused.FORWARD_BLOCKS
    }
    return fastest(_kind("forward", kernel), kernel_map.num_pairs, {"gather": gather} | blocks, features.device)


def _forward_gathered(features: Tensor, kernel: Tensor, kernel_map: KernelMap) -> Tensor:
    if not _fits(kernel, kernel_map):
        return forward_chunks(features, kernel, kernel_map)
    pairs = kernel_map.pairs
    return pairs.bags.sum(_multiply(features.index_select(0, pairs.in_rows), kernel, pairs))


def _backward(
    features: Tensor, transposed: Tensor, grad_output: Tensor, kernel_map: KernelMap, wants_features: bool
) -> tuple[Tensor | None, Tensor]:
    """Return the gradients of the features, None if not `wants_features`, and of the kernel."""
    if direct.suits(features, transposed.mT) and (not wants_features or direct.suits(grad_output, transposed)):
        grad_features = direct.convolve(grad_output, transposed, kernel_map.transposed) if wants_features else None
        return grad_features, direct.kernel_gradient(features, grad_output, kernel_map)
    gather: Callable[[], tuple[Tensor | None, Tensor]] = partial(
        _backward_gathered, features, transposed, grad_output, kernel_map, wants_features
    )
    if features.shape[1] == 1 and not wants_features:
        gather = partial(_backward_scaled, features, grad_output, kernel_map)
    fused = fused_kernels(features)
    if fused is None:
        return gather()

    def multiply(blocks: tuple[int, ...]) -> tuple[Tensor | None, Tensor]:
        grad_features = convolve_forward(grad_output, transposed, kernel_map.transposed) if wants_features else None
        return grad_features, fused.kernel_gradient(features, grad_output, kernel_map, blocks)

    ways = {"gather": gather} | {f"fused {blocks}": partial(multiply, blocks) for blocks in fused.GRADIENT_BLOCKS}
    kind = _kind("backward" if wants_features else "backward of the kernel", transposed)
    return fastest(kind, kernel_map.num_pairs, ways, features.device)


def _kind(operation: str, kernel: Tensor) -> str:
    """Name the class of problems whose fastest way differs with the size alone."""
    precision = torch.get_float32_matmul_precision() if kernel.dtype == torch.float32 else ""
    return f"{operation} {str(kernel.dtype).removeprefix('torch.')} {precision} {tuple(kernel.shape)}"


def _backward_gathered(
    features: Tensor, transposed: Tensor, grad_output: Tensor, kernel_map: KernelMap, wants_features: bool
) -> tuple[Tensor | None, Tensor]:
    """Return both gradients from one gathering of rows."""
    if not _fits(transposed, kernel_map):
        return backward_chunks(features, transposed, grad_output, kernel_map, wants_features)
    pairs = kernel_map.transposed.pairs  # from output to input rows
    gradients = grad_output.index_select(0, pairs.in_rows)
    grad_kernel = _multiply_columns(features.index_select(0, pairs.out_rows), gradients, pairs)
    if not wants_features:
        return None, grad_kernel
    return pairs.bags.sum(_multiply(gradients, transposed, pairs)), grad_kernel


def _fits(kernel: Tensor, kernel_map: KernelMap) -> bool:
    """Return whether all gathered rows and products fit the cache at once."""
    return kernel_map.num_pairs * (kernel.shape[1] + kernel.shape[2]) * kernel.element_size() <= _CACHE_BYTES


def _grouped(rows: Tensor, *widths: int) -> bool:
    """Return whether torch multiplies all groups of rows in one call: on CPU, in these types, rows of whole 16
    bytes.
    """
    if not hasattr(functional, "grouped_mm"):  # torch 2.9 has none
        return False
    aligned = all(width * rows.element_size() % 16 == 0 for width in widths)
    return rows.device.type == "cpu" and rows.dtype in (torch.float32, torch.bfloat16) and aligned


def _multiply(rows: Tensor, matrices: Tensor, pairs: Pairs) -> Tensor:
    """Multiply each offset's rows [P_k, A] by its matrix of [K, A, B]; return [P, B]."""
    if _grouped(rows, *matrices.shape[1:]):
        return functional.grouped_mm(rows, matrices, offs=pairs.ends)
    products = rows.new_empty(len(rows), matrices.shape[2])
    for rows_of_offset, matrix, out in zip(
        rows.split(pairs.counts), matrices.unbind(0), products.split(pairs.counts), strict=True
    ):
        if len(rows_of_offset):
            torch.mm(rows_of_offset, matrix, out=out)
    return products


def _multiply_columns(inputs: Tensor, gradients: Tensor, pairs: Pairs) -> Tensor:
    """Multiply each offset's inputs [P_k, A], transposed, by its gradients [P_k, B]; return [K, A, B]."""
    if _grouped(inputs, inputs.shape[1], gradients.shape[1]):
        return functional.grouped_mm(inputs.t(), gradients, offs=pairs.ends)
    gradients_out = inputs.new_empty(len(pairs.counts), inputs.shape[1], gradients.shape[1])
    for rows_of_offset, gradient, out in zip(
        inputs.split(pairs.counts), gradients.split(pairs.counts), gradients_out.unbind(0), strict=True
    ):
        torch.mm(rows_of_offset.t(), gradient, out=out)  # 0 where there are no rows
    return gradients_out


def _forward_scaled(features: Tensor, kernel: Tensor, kernel_map: KernelMap) -> Tensor:
    """One input channel: an output row is the sum of its offsets' rows of the kernel, each times one input value."""
    values = features.flatten()[kernel_map.inputs.rows]
    return kernel_map.offsets.sum(kernel.flatten(1), values)


def _backward_scaled(features: Tensor, grad_output: Tensor, kernel_map: KernelMap) -> tuple[None, Tensor]:
    """One input channel: an offset's row of the kernel gets the sum of its pairs' gradients, each times its input."""
    values = features.flatten()[kernel_map.pairs.in_rows]
    return None, kernel_map.outputs_of_offsets.sum(grad_output, values).unsqueeze(1)


def convolve(
    features: Tensor, kernel: Tensor, kernel_map: Any, *, function: type[torch.autograd.Function] = _Convolution
) -> Tensor:
    """Convolve features [N_in, C_in] with a kernel [K, C_in, C_out]; return [N_out, C_out].

    `function` is called with features, kernel and kernel map: another one takes another kind of map.

    Under autocast features and kernel are multiplied in its type; gradients have the types of what they belong to.
    """
    device_type = features.device.type
    if torch.is_autocast_enabled(device_type) and features.dtype != torch.float64:
        features = features.to(torch.get_autocast_dtype(device_type))
    with _without_autocast(device_type):
        return function.apply(features, kernel, kernel_map)  # type: ignore[no-any-return]


def forward_chunks(features: Tensor, kernel: Tensor, kernel_map: KernelMap) -> Tensor:
    matrices, output = kernel.unbind(0), None
    if kernel_map.identity is not None:
        output = _added(None, features @ matrices[kernel_map.identity])
    chunks = kernel_map.chunks(_rows_at_a_time(kernel.shape[2], features))
    gathered, products = _room(features, kernel_map), _products(features, kernel.shape[2], chunks)
    for chunk in chunks:
        for (k, in_rows, _), chunk_with_room in _with_room(chunk, products):
            inputs = torch.index_select(features, 0, in_rows, out=gathered[: len(in_rows)])
            torch.mm(inputs, matrices[k], out=chunk_with_room)
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
        for (k, out_rows, in_rows), chunk_with_room in _with_room(chunk, products):
            inputs = torch.index_select(features, 0, in_rows, out=all_inputs[: len(in_rows)])
            gradients = torch.index_select(grad_output, 0, out_rows, out=all_gradients[: len(out_rows)])
            torch.mm(inputs.t(), gradients, out=grad_matrices[k])
            if wants_features:
                torch.mm(gradients, matrices[k], out=chunk_with_room)
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
    first_row = 0
    for offset in chunk.offsets:
        yield offset, products[first_row : first_row + len(offset.in_rows)]
        first_row += len(offset.in_rows)


def _added(total: Tensor | None, part: Tensor) -> Tensor:
    return part.to(summed_type(part.dtype)) if total is None else total.add_(part)


def _value(total: Tensor | None, like: Tensor, num_rows: int, width: int) -> Tensor:
    return like.new_zeros(num_rows, width) if total is None else total.to(like.dtype)
