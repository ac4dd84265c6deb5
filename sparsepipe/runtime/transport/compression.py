"""Features and gradients made smaller to cross a boundary.

bfloat16, float16   half precision
int8                8-bit integers scaled by channel
zeros               without the values that are zero: nothing is lost
lossless            likewise, and with the exponents of the others coded

Where nothing else is asked for, what leaves a CPU through a socket goes lossless: on MinkVGG16's cuts that is a quarter
to a half less to send, for 1 to 2% of a minibatch's time. Through shared memory nothing is sent.
"""

from dataclasses import replace

import torch
from torch import Tensor

from .exponent_coding import with_coded_exponents, with_plain_exponents
from .packet import Slot
from .zero_elision import with_zeros, without_zeros

_HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_FLOAT16_MOST = 65504.0
_INT8_MOST = 127


class Compressor:
    """Makes the tensors of one boundary and direction smaller, and remembers what was lost.

    With 8 bits, what rounding took from a channel on average is added to it in the next minibatch (error feedback:
    Seide et al., "1-Bit Stochastic Gradient Descent", 2014). Only an average can be kept: rows are others every time.
    It serves one epoch, from an empty pipeline to an empty one: what is left over then is not in a checkpoint.
    """

    def __init__(self, how: str) -> None:
        """`how`: "none", or one of the above."""
        self._how = how
        self._lost: dict[int, Tensor] = {}  # place of the tensor in the packet -> [C]

    def shrink(self, slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        if self._how == "none":
            return slots
        return tuple(self._shrunk(place, slot) for place, slot in enumerate(slots))

    def _shrunk(self, place: int, slot: Slot) -> Slot:
        how, rows = self._how, slot.rows.detach()
        if rows.dtype != torch.float32 or rows.numel() == 0:
            return slot
        if how == "zeros":
            return without_zeros(slot)
        if how == "lossless":
            return with_coded_exponents(without_zeros(slot))
        if how in _HALVES:
            if how == "float16":
                rows = rows.clamp(-_FLOAT16_MOST, _FLOAT16_MOST)
            return replace(slot, rows=rows.to(_HALVES[how]), restore=True)
        lost = self._lost.get(place)
        if lost is not None and lost.shape[0] == rows.shape[1]:
            rows = rows + _of_channels(lost, rows)
        others = [axis for axis in range(rows.dim()) if axis != 1]
        scales = (rows.abs().amax(dim=others) / _INT8_MOST).clamp_(min=torch.finfo(torch.float32).tiny)
        small = (rows / _of_channels(scales, rows)).round_().to(torch.int8)
        self._lost[place] = (rows - small * _of_channels(scales, rows)).mean(dim=others)
        return replace(slot, rows=small, scales=scales, restore=True)


def restored(slot: Slot) -> Tensor:
    """Return the rows of a slot as they were, as far as they were kept.

    Raises PacketMismatch where values were kept, but not as many as there are bits that say whose, and where coded
    exponents are not those of so many values.
    """
    slot = with_plain_exponents(slot)
    if slot.present is not None:
        return with_zeros(slot.rows, slot.present, slot.shape)
    if slot.scales is not None:
        return slot.rows * _of_channels(slot.scales, slot.rows)
    return slot.rows.float() if slot.restore else slot.rows


def _of_channels(values: Tensor, rows: Tensor) -> Tensor:
    """Shape one value a channel so that it meets `rows` [N, C, ...]."""
    return values.view(1, -1, *[1] * (rows.dim() - 2))
