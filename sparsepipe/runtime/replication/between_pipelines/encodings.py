"""How numbers travel that are averaged: as they are, or as 8-bit integers whose rounding is made good later."""

from typing import Protocol

import torch
from torch import Tensor

from .layout import WEIGHT

_FLOAT_BYTES = 4
_LARGEST = 127.0


class Encoding(Protocol):
    """Turns pieces of tensors, float32 [n], into bytes, uint8 [a multiple of 4], and back."""

    def num_bytes(self, name: str, count: int) -> int:
        """Return the bytes of a piece of `count` elements of a tensor."""
        ...

    def contributed(self, name: str, place: slice, values: Tensor) -> Tensor:
        """Encode a piece that this rank contributes. `place`: where it lies in the rank's vector."""
        ...

    def reduced(self, name: str, place: slice, values: Tensor) -> Tensor:
        """Encode a mean that this rank has worked out."""
        ...

    def decode(self, name: str, encoded: Tensor, count: int) -> Tensor: ...


class Exact:
    """The member of `Encoding` that leaves float32 as they are."""

    def num_bytes(self, name: str, count: int) -> int:
        return count * _FLOAT_BYTES

    def contributed(self, name: str, place: slice, values: Tensor) -> Tensor:
        return values.contiguous().view(torch.uint8)

    def reduced(self, name: str, place: slice, values: Tensor) -> Tensor:
        return values.contiguous().view(torch.uint8)

    def decode(self, name: str, encoded: Tensor, count: int) -> Tensor:
        return encoded.view(torch.float32)


class EightBits:
    """The member of `Encoding` for weights as 8-bit integers with a float32 scale for each piece; buffers as they are.

    What rounding lost of a piece is added to the next one of the same elements (error feedback: Karimireddy et al.,
    "Error Feedback Fixes SignSGD", ICML 2019), of what is contributed and of what is reduced alike.
    """

    bits = 8

    def __init__(self, num_elements: int, *, error_feedback: bool) -> None:
        self._exact = Exact()
        size = num_elements if error_feedback else 0
        self._feedback = error_feedback
        self._lost_of_contributed, self._lost_of_reduced = torch.zeros(size), torch.zeros(size)

    def num_bytes(self, name: str, count: int) -> int:
        if not name.startswith(WEIGHT) or not count:
            return self._exact.num_bytes(name, count)
        return _FLOAT_BYTES + -(-count // _FLOAT_BYTES) * _FLOAT_BYTES

    def contributed(self, name: str, place: slice, values: Tensor) -> Tensor:
        return self._encode(name, place, values, self._lost_of_contributed)

    def reduced(self, name: str, place: slice, values: Tensor) -> Tensor:
        return self._encode(name, place, values, self._lost_of_reduced)

    def decode(self, name: str, encoded: Tensor, count: int) -> Tensor:
        if not name.startswith(WEIGHT) or not count:
            return self._exact.decode(name, encoded, count)
        scale = encoded[:_FLOAT_BYTES].view(torch.float32)
        return encoded[_FLOAT_BYTES : _FLOAT_BYTES + count].view(torch.int8).float() * scale

    def _encode(self, name: str, place: slice, values: Tensor, lost: Tensor) -> Tensor:
        count = len(values)
        if not name.startswith(WEIGHT) or not count:
            return self._exact.contributed(name, place, values)
        if self._feedback:
            values = values + lost[place]
        scale = values.abs().max() / _LARGEST
        rounded = (values / scale).round_().nan_to_num_() if scale > 0 else torch.zeros_like(values)
        encoded = torch.zeros(self.num_bytes(name, count), dtype=torch.uint8)
        encoded[:_FLOAT_BYTES] = scale.reshape(1).view(torch.uint8)
        encoded[_FLOAT_BYTES : _FLOAT_BYTES + count] = rounded.to(torch.int8).view(torch.uint8)
        if self._feedback:
            lost[place] = values - self.decode(name, encoded, count)
        return encoded
