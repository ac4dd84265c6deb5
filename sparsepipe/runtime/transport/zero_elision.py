"""Tensors without their zeros, to the bit: one bit an element says which are not zero, and only those are sent.

    rows     0.5  0    0  1.5        present   1 0 0 1        values   0.5  1.5
    gradient  g0  g1  g2  g3                                  values   g0   g3

About half of what comes out of a ReLU is zero. Its backward drops the gradient wherever its output is zero, so that
gradient crosses a boundary without those values, and without bits, since both sides know them from the forward. What is
left of it may have zeros of its own (before a max pool most are), and is sent without them as any tensor is.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor

from ..failures import PacketMismatch
from .packet import Slot, bits_length

_PACKING = 0x0102040810204080  # times 8 bytes of 0 or 1: byte k moves to bit 56 + k
# [256]: the 8 bytes of 0 or 1 that are the bits of each byte, the lowest first
_UNPACKED = ((torch.arange(256)[:, None] >> torch.arange(8)) & 1).to(torch.uint8).view(torch.int64).flatten()


def without_zeros(slot: Slot) -> Slot:
    """Return the slot of a float32 tensor with `present` and only the values that are not zero.

    The slot as it is where that is smaller. Not zero is what has any bit set: -0.0 and NaN are kept as they are.
    """
    rows = slot.rows.detach().contiguous()
    is_present = _not_zero(rows.view(-1).view(torch.int32))
    if rows.itemsize * _count(is_present) + bits_length(rows.numel()) >= rows.nbytes:
        return slot
    values = rows.view(-1).index_select(0, _places(is_present))
    return replace(slot, rows=values, present=packed(is_present), shape=tuple(rows.shape))


def with_zeros(values: Tensor, present: Tensor, shape: Sequence[int]) -> Tensor:
    """Put values [n] back to the elements that are `present` of a tensor of this shape, zeros to the others.

    Raises PacketMismatch if there are more or fewer values than such elements.
    """
    rows = values.new_zeros(shape)
    places = _places(unpacked(present, rows.numel()))
    if values.shape != places.shape:
        raise PacketMismatch(
            "packet.value_count", f"{list(values.shape)} values arrived for {len(places)} nonzero elements"
        )
    rows.view(-1).scatter_(0, places, values)
    return rows


def values_at(present: Tensor, rows: Tensor) -> Tensor:
    """Return the elements of `rows` that are `present`: [n]."""
    return rows.reshape(-1).index_select(0, _places(unpacked(present, rows.numel())))


def num_present(present: Tensor) -> int:
    return _count(unpacked(present, 8 * len(present)))


# The next three by NumPy on the CPU, where it is five to ten times as fast at them as torch.


def _not_zero(bits: Tensor) -> Tensor:
    return bits != 0 if bits.is_cuda else torch.from_numpy(bits.numpy() != 0)


def _count(flags: Tensor) -> int:
    """Return how many of bool [n] are true."""
    return int(flags.count_nonzero() if flags.is_cuda else np.count_nonzero(flags.numpy()))


def _places(flags: Tensor) -> Tensor:
    """Return where bool [n] is true: int64."""
    return flags.nonzero()[:, 0] if flags.is_cuda else torch.from_numpy(np.flatnonzero(flags.numpy()))


def packed(flags: Tensor) -> Tensor:
    """Return bool [n] as uint8 [n / 8, rounded up], 8 to a byte, the first in its lowest bit."""
    whole = functional.pad(flags.view(torch.uint8), (0, -len(flags) % 8)).view(torch.int64)
    return ((whole * _PACKING) >> 56).to(torch.uint8)


def unpacked(present: Tensor, length: int) -> Tensor:
    """Return the bool [length] that was packed."""
    return _UNPACKED.to(present.device).index_select(0, present.int()).view(torch.bool)[:length]
