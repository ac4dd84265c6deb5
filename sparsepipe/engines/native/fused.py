"""Convolution in Triton that gathers rows as it multiplies them: nothing of the size of the pairs is written.

    forward           one program per block of output rows and output channels walks the kernel's offsets, takes each
                      row's neighbour under the offset if there is one, and adds up in registers; offsets under which
                      no row of the block has a neighbour are passed over. The features' gradient is the same over the
                      transposed map.
    kernel_gradient   one program per offset and block of its matrix walks the offset's pairs; if they are many,
                      several share them and their sums are added up afterwards.

No atomics: the same input gives the same bits. Sums are in single precision. Triton is imported here and in
hash_table.py alone.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as functional
import triton
import triton.language as tl
from torch import Tensor

from .kernel_map import KernelMap

Blocks = tuple[int, int, int]  # rows (of the gradient: pairs), input channels, output channels of one program

FORWARD_BLOCKS: tuple[Blocks, ...] = ((32, 32, 32), (64, 32, 64), (128, 32, 64), (128, 32, 128))
GRADIENT_BLOCKS: tuple[Blocks, ...] = ((32, 32, 32), (32, 64, 64), (64, 64, 64), (32, 128, 64))
_PAIRS_PER_PROGRAM = 4096
_MOST_SHARES = 16
_INTERPRETED = triton.knobs.runtime.interpret  # its products of bfloat16 are wrong: there it is widened first
VERSION = triton.__version__
TOO_LARGE = (torch.OutOfMemoryError, triton.runtime.errors.OutOfResources)  # raised where blocks do not fit a device


@triton.jit
def _forward_kernel(
    features,  # [N_in, A]
    kernel,  # [K, A, B], strides given
    neighbours,  # int32 [K, N_out], -1: none
    output,  # [N_out, B]
    num_rows,
    num_offsets,
    num_inputs,
    num_outputs,
    offset_stride,
    input_stride,
    output_stride,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for offset in range(num_offsets):
        near = tl.load(neighbours + offset * num_rows + rows, mask=rows < num_rows, other=-1)
        if tl.max(near, 0) >= 0:
            for start in range(0, num_inputs, INPUTS):
                inputs = start + tl.arange(0, INPUTS)
                places = near[:, None].to(tl.int64) * num_inputs + inputs[None, :]
                given = tl.load(
                    features + places, mask=(near >= 0)[:, None] & (inputs < num_inputs)[None, :], other=0.0
                )
                places = offset * offset_stride + inputs[:, None] * input_stride + outputs[None, :] * output_stride
                matrix = tl.load(
                    kernel + places, mask=(inputs < num_inputs)[:, None] & (outputs < num_outputs)[None, :], other=0.0
                )
                if WIDEN:
                    given, matrix = given.to(tl.float32), matrix.to(tl.float32)
                total = tl.dot(given, matrix, total, input_precision=PRECISION)
    places = rows[:, None].to(tl.int64) * num_outputs + outputs[None, :]
    mask = (rows < num_rows)[:, None] & (outputs < num_outputs)[None, :]
    tl.store(output + places, total.to(output.dtype.element_ty), mask=mask)


@triton.jit
def _gradient_kernel(
    features,  # [N_in, A]
    gradients,  # [N_out, B]
    in_rows,  # int64 [P], by offset
    out_rows,  # int64 [P]
    starts,  # int32 [K + 1]
    sums,  # float32 [shares, K, A, B]
    num_inputs,
    num_outputs,
    num_blocks,  # of output channels
    PAIRS: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    offset, share = tl.program_id(0), tl.program_id(2)
    inputs = tl.program_id(1) // num_blocks * INPUTS + tl.arange(0, INPUTS)
    outputs = tl.program_id(1) % num_blocks * OUTPUTS + tl.arange(0, OUTPUTS)
    end = tl.load(starts + offset + 1)
    total = tl.zeros((INPUTS, OUTPUTS), tl.float32)
    for start in range(tl.load(starts + offset) + share * PAIRS, end, tl.num_programs(2) * PAIRS):
        pairs = start + tl.arange(0, PAIRS)
        there = pairs < end
        places = tl.load(in_rows + pairs, mask=there, other=0)[:, None] * num_inputs + inputs[None, :]
        given = tl.load(features + places, mask=there[:, None] & (inputs < num_inputs)[None, :], other=0.0)
        places = tl.load(out_rows + pairs, mask=there, other=0)[:, None] * num_outputs + outputs[None, :]
        back = tl.load(gradients + places, mask=there[:, None] & (outputs < num_outputs)[None, :], other=0.0)
        if WIDEN:
            given, back = given.to(tl.float32), back.to(tl.float32)
        total = tl.dot(tl.trans(given), back, total, input_precision=PRECISION)
    output_offset = (share * tl.num_programs(0) + offset).to(tl.int64) * num_inputs * num_outputs
    places = output_offset + inputs[:, None] * num_outputs + outputs[None, :]
    tl.store(sums + places, total, mask=(inputs < num_inputs)[:, None] & (outputs < num_outputs)[None, :])


def forward(features: Tensor, kernel: Tensor, kernel_map: KernelMap, blocks: Blocks) -> Tensor:
    """Convolve features [N_in, A] with a kernel [K, A, B] of the same type; return [N_out, B]."""
    features = features.contiguous()
    num_offsets, num_inputs, num_outputs = kernel.shape
    output = features.new_empty(kernel_map.num_out, num_outputs)
    if output.numel():
        grid = triton.cdiv(len(output), blocks[0]), triton.cdiv(num_outputs, blocks[2])
        with on_device(features):
            _forward_kernel[grid](
                features,
                kernel,
                kernel_map.neighbours,
                output,
                len(output),
                num_offsets,
                num_inputs,
                num_outputs,
                *kernel.stride(),
                *blocks,
                **_options(features, blocks),
            )
    return output


def kernel_gradient(features: Tensor, grad_output: Tensor, kernel_map: KernelMap, blocks: Blocks) -> Tensor:
    """Return the kernel's gradient, float32 [K, A, B], of features [N_in, A] and the output's gradient [N_out, B]."""
    features, grad_output = features.contiguous(), grad_output.contiguous()
    pairs, num_inputs, num_outputs = kernel_map.pairs, features.shape[1], grad_output.shape[1]
    shares = min(_MOST_SHARES, triton.cdiv(max(pairs.counts), _PAIRS_PER_PROGRAM)) or 1
    sums = features.new_empty(shares, len(pairs.counts), num_inputs, num_outputs, dtype=torch.float32)
    num_blocks = triton.cdiv(num_outputs, blocks[2])
    grid = len(pairs.counts), triton.cdiv(num_inputs, blocks[1]) * num_blocks, shares
    with on_device(features):
        _gradient_kernel[grid](
            features,
            grad_output,
            pairs.in_rows,
            pairs.out_rows,
            functional.pad(pairs.ends, (1, 0)),
            sums,
            num_inputs,
            num_outputs,
            num_blocks,
            *blocks,
            **_options(features, blocks),
        )
    return sums[0] if shares == 1 else sums.sum(dim=0)


def on_device(tensor: Tensor) -> AbstractContextManager[object]:
    """Make a tensor's device the current one: Triton starts programs there."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def _options(features: Tensor, blocks: Blocks) -> dict[str, object]:
    exact = torch.get_float32_matmul_precision() == "highest"
    return {
        "PRECISION": "ieee" if exact else "tf32",
        "WIDEN": _INTERPRETED and features.dtype == torch.bfloat16,
        "num_warps": 8 if blocks == (128, 32, 128) else 4,
    }
