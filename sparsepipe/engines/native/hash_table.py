"""A hash table of voxels in Triton: which row lies at each kernel offset of each output voxel, in two launches.

    insert     One program per block of keys puts each into the first free slot from its hash on, by compare-and-swap.
    look_up    One program per block of output voxels and kernel offset follows slots until the key or a free one.

Which slot a key gets depends on who comes first, the row that is found under it does not.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from .fused import on_device

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
