"""Features and gradients made smaller to cross a boundary.

bfloat16, float16   half precision
int8                8-bit integers scaled by channel
zeros               without the values that are zero: nothing is lost
lossless            likewise, and with the exponents of the others coded

If nothing else is asked for, what leaves a CPU through a socket goes lossless: on MinkVGG16's cuts that is a quarter
to a half less to send, for 1 to 2% of a minibatch's time. Through shared memory nothing is sent.

Values with their exponents coded, to the bit: most values of a tensor have one of few exponents.

    float32   | sign, exponent 7..1 | exponent 0, mantissa | mantissa | mantissa |   a byte each
              |       coded         |     as it is         |    as they are      |
              |                 upper, uint8               |    rows, int16      |

The first byte of an activation or gradient holds 2 or 3 bits of information, the others close to 8 each. So the few
most frequent first bytes get codes of 2 or 4 bits, whichever is less in all, and each of the others an escape and a
byte of its own, behind the codes.

    coded     | bits of a code | codes at the end that are no value's | the bytes that have a code, in its order |
              | codes, the first in a byte's lowest bits | bytes that have none |

A value takes 0.82 (activations) or 0.87 (gradients) of its bytes; Huffman codes would take 0.03 less of them, and two
to three times as long.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor

from ..failures import PacketMismatch
from .packet import Slot, aligned_bytes, bits_length

_PACKING = 0x0102040810204080  # times 8 bytes of 0 or 1: byte k moves to bit 56 + k
# [256]: the 8 bytes of 0 or 1 that are the bits of each byte, the lowest first
_UNPACKED = ((torch.arange(256)[:, None] >> torch.arange(8)) & 1).to(torch.uint8).view(torch.int64).flatten()


def without_zeros(slot: Slot) -> Slot:
    """Return the slot of a float32 tensor with `present` and only the values that are not zero.

    The slot as it is, if that is smaller. Not zero is what has any bit set: -0.0 and NaN are kept as they are.
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


_WIDTHS = (2, 4)  # bits of a code
_LOOKED_AT = 2**14  # values, to find the frequent ones

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

    Raises PacketMismatch if values were kept, but not as many as there are bits that say whose, and if coded
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


def with_coded_exponents(slot: Slot) -> Slot:
    """Return the slot of a float32 tensor with `upper` and the lower halves of its values: on the CPU, which codes.

    The slot as it is, if that is smaller.
    """
    values = slot.rows.detach().cpu().contiguous()
    bits = values.view(-1).numpy().view(np.uint32)
    upper = torch.from_numpy(np.concatenate([_byte(bits, 2), _coded(_byte(bits, 3))]))
    lower = torch.from_numpy(bits.astype(np.int16)).view(values.shape)
    small = replace(slot, rows=lower, upper=upper, present=None if slot.present is None else slot.present.cpu())
    return small if aligned_bytes(small.sections) < aligned_bytes(slot.sections) else slot


def with_plain_exponents(slot: Slot) -> Slot:
    """Return the slot with its values float32 again, on the device of their lower halves.

    Raises PacketMismatch if the coded bytes are not those of as many values.
    """
    if slot.upper is None:
        return slot
    count = slot.rows.numel()
    third, coded = np.split(slot.upper.cpu().numpy(), [count])
    halves = np.left_shift(_decoded(coded, count), 8, dtype=np.uint16)
    halves |= third
    bits = np.left_shift(halves, 16, dtype=np.uint32)
    bits |= slot.rows.cpu().view(-1).numpy().view(np.uint16)
    values = torch.from_numpy(bits.view(np.float32)).view(slot.rows.shape)
    return replace(slot, rows=values.to(slot.rows.device), upper=None)


def _byte(bits: np.ndarray, place: int) -> np.ndarray:
    """Return byte `place` of each of so many unsigned integers, 0 the lowest: uint8 [n]."""
    found: np.ndarray = np.right_shift(bits, 8 * place, out=np.empty(len(bits), np.uint8), casting="unsafe")
    return found


def _coded(plain: np.ndarray) -> np.ndarray:
    """Code uint8 [n]."""
    counts = np.bincount(plain[:: 1 + len(plain) // _LOOKED_AT], minlength=256)
    frequent = np.argsort(-counts, kind="stable").astype(np.uint8)
    width = min(_WIDTHS, key=lambda width: width * counts.sum() + 8 * counts[frequent[2**width - 1 :]].sum())
    escape, in_byte = 2**width - 1, 8 // width
    table = np.full(256, escape, np.uint8)
    table[frequent[:escape]] = np.arange(escape)
    padding = -len(plain) % in_byte
    codes = plain.tobytes().translate(table.tobytes()) + bytes(padding)  # twice as fast as indexing
    others = plain[np.flatnonzero(np.frombuffer(codes, np.uint8, len(plain)) == escape)]
    words = np.frombuffer(codes, f"<u{in_byte}")  # those of a byte: the k-th is to go from bit 8 k to bit width * k
    packed = words.copy()
    for k in range(1, in_byte):
        packed |= words >> k * (8 - width)
    return np.concatenate([np.array([width, padding], np.uint8), frequent[:escape], _byte(packed, 0), others])


def _decoded(coded: np.ndarray, count: int) -> np.ndarray:
    """Return the uint8 [count] that were coded."""
    damaged = PacketMismatch(
        "packet.coding_damaged", f"{len(coded)} bytes of compressed exponents do not encode {count} values"
    )
    width, padding = coded[:2].tolist() if len(coded) >= 2 else (0, 0)
    if width not in _WIDTHS or padding != -count % (8 // width):
        raise damaged
    escape, in_byte = 2**width - 1, 8 // width
    frequent, packed, others = np.split(coded[2:], np.cumsum([escape, (count + padding) // in_byte]))
    if in_byte * len(packed) != count + padding:
        raise damaged
    unused = np.setdiff1d(np.arange(256), frequent)[0]  # stands for an escape
    symbols = np.append(frequent, np.uint8(unused))
    places = np.arange(256)[:, None] >> width * np.arange(in_byte) & escape
    table = symbols[places].view(f"u{in_byte}").ravel()
    plain: np.ndarray = table.take(packed).view(np.uint8)[:count]
    escaped = np.flatnonzero(plain == unused)
    if len(escaped) != len(others):
        raise damaged
    plain[escaped] = others
    return plain
