"""Convolution in Triton that gathers rows as it multiplies them: nothing of the size of the pairs is written.

    forward           one program per block of output rows and output channels walks the kernel's offsets, takes each
                      row's neighbour under the offset if there is one, and adds up in registers; offsets under which
                      no row of the block has a neighbour are passed over. The features' gradient is the same over the
                      transposed map.
    kernel_gradient   one program per offset and block of its matrix walks the offset's pairs; if they are many,
                      several share them and their sums are added up afterwards.

No atomics: the same input gives the same bits. Sums are in single precision. Triton is imported here and in
fused.py alone.
"""

from collections.abc import Sequence
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


_BLOCK = 128  # keys of one program
_SLOTS_PER_KEY = 2  # at least: half of the slots are free, so that a search ends soon
_FREE = tl.constexpr(-1)  # keys are not negative
_NEVER = tl.constexpr(-2)  # compared with by those who have their slot
# An odd number of 61 bits: bits of the product depend on all lower ones of a key, so neighbours are spread.
_FACTOR = tl.constexpr(0x1E3779B97F4A7C15)


@triton.jit
def _slot(keys, num_slots):
    return ((keys * _FACTOR) >> 29) & (num_slots - 1)


@triton.jit
def _insert_kernel(
    keys,  # int64 [N], distinct
    slot_keys,  # int64 [S], all free
    slot_rows,  # int32 [S]
    num_keys,
    num_slots,  # a power of two
    BLOCK: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    waiting = rows < num_keys
    key = tl.load(keys + rows, mask=waiting, other=0)
    slot = _slot(key, num_slots)
    while tl.max(waiting.to(tl.int32), 0) > 0:
        expected = tl.where(waiting, _FREE, _NEVER).to(tl.int64)
        placed = waiting & (tl.atomic_cas(slot_keys + slot, expected, key) == _FREE)
        tl.store(slot_rows + slot, rows, mask=placed)
        waiting = waiting & (placed == 0)
        slot = tl.where(waiting, (slot + 1) & (num_slots - 1), slot)


@triton.jit
def _look_up_kernel(
    keys,  # int64 [M], of the output voxels
    steps,  # int64 [K]: what a kernel offset adds to a key
    slot_keys,
    slot_rows,
    output,  # int32 [K, M]
    num_keys,
    num_slots,
    BLOCK: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    searching = rows < num_keys
    key = tl.load(keys + rows, mask=searching, other=0) + tl.load(steps + tl.program_id(1))
    slot = _slot(key, num_slots)
    row = tl.full((BLOCK,), -1, tl.int32)
    while tl.max(searching.to(tl.int32), 0) > 0:
        held = tl.load(slot_keys + slot, mask=searching, other=_FREE)
        row = tl.where(held == key, tl.load(slot_rows + slot, mask=searching & (held == key), other=-1), row)
        searching = searching & (held != _FREE) & (held != key)
        slot = tl.where(searching, (slot + 1) & (num_slots - 1), slot)
    tl.store(output + tl.program_id(1).to(tl.int64) * num_keys + rows, row, mask=rows < num_keys)


def rows_at(keys: Tensor, wanted: Tensor, steps: Sequence[int]) -> Tensor:
    """Return for each step and wanted key the row whose key is their sum, -1 if there is none.

    Args:
        keys: int64 [N], distinct and not negative.
        wanted: int64 [M].
        steps: K numbers to add to each wanted key; no sum is negative.

    Returns:
        int32 [K, M].
    """
    num_slots = triton.next_power_of_2(max(_SLOTS_PER_KEY * len(keys), 2))
    slot_keys = keys.new_full((num_slots,), -1)
    slot_rows = keys.new_empty(num_slots, dtype=torch.int32)
    rows = keys.new_empty(len(steps), len(wanted), dtype=torch.int32)
    with on_device(keys):
        if len(keys):
            _insert_kernel[triton.cdiv(len(keys), _BLOCK),](
                keys, slot_keys, slot_rows, len(keys), num_slots, BLOCK=_BLOCK
            )
        if rows.numel():
            grid = triton.cdiv(len(wanted), _BLOCK), len(steps)
            to_add = torch.tensor(steps, device=keys.device)
            _look_up_kernel[grid](wanted, to_add, slot_keys, slot_rows, rows, len(wanted), num_slots, BLOCK=_BLOCK)
    return rows
