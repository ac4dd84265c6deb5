"""How numbers travel that are averaged: as they are, or as 8-bit integers whose rounding is made good later."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from .layout import WEIGHT, taken

_FLOAT_BYTES = 4
_LARGEST = 127.0


class Encoding(Protocol):
    """Turns pieces of tensors, one after the other in a vector of float32, into bytes, uint8 [a multiple of 4]."""

    def num_bytes(self, name: str, count: int) -> int:
        """Return the bytes of a piece of `count` elements of a tensor."""
        ...

    def contributed(self, names: Sequence[str], places: Sequence[slice], values: Tensor) -> Tensor:
        """Encode pieces that this rank contributes: where `places` say, in its vector `values`."""
        ...

    def reduced(self, names: Sequence[str], places: Sequence[slice], means: Tensor) -> list[Tensor]:
        """Encode pieces of a mean that this rank has worked out, of which `means` has one after the other. `places`
        are where they lie in its vector. Returns each piece.
        """
        ...

    def decode(self, names: Sequence[str], counts: Sequence[int], encoded: Tensor) -> Tensor:
        """Return the pieces, one after the other."""
        ...


class Exact:
    """The member of `Encoding` that leaves float32 as they are."""

    def num_bytes(self, name: str, count: int) -> int:
        return count * _FLOAT_BYTES

    def contributed(self, names: Sequence[str], places: Sequence[slice], values: Tensor) -> Tensor:
        return taken(values, places).view(torch.uint8)

    def reduced(self, names: Sequence[str], places: Sequence[slice], means: Tensor) -> list[Tensor]:
        sizes = [_FLOAT_BYTES * (place.stop - place.start) for place in places]
        return list(means.contiguous().view(torch.uint8).split(sizes))

    def decode(self, names: Sequence[str], counts: Sequence[int], encoded: Tensor) -> Tensor:
        return encoded.view(torch.float32)


class EightBits:
    """The member of `Encoding` for weights as 8-bit integers with a float32 scale for each piece; buffers as they are.

    What rounding lost of a piece is added to the next one of the same elements (error feedback: Karimireddy et al.,
    "Error Feedback Fixes SignSGD", ICML 2019), both of what is contributed and of what is reduced.
    """

    bits = 8

    def __init__(self, num_elements: int, *, error_feedback: bool) -> None:
        size = num_elements if error_feedback else 0
        self._feedback = error_feedback
        self._lost_of_contributed, self._lost_of_reduced = torch.zeros(size), torch.zeros(size)

    def num_bytes(self, name: str, count: int) -> int:
        if not name.startswith(WEIGHT) or not count:
            return count * _FLOAT_BYTES
        return _FLOAT_BYTES + -(-count // _FLOAT_BYTES) * _FLOAT_BYTES

    def contributed(self, names: Sequence[str], places: Sequence[slice], values: Tensor) -> Tensor:
        lost = self._lost_of_contributed
        pieces = [self._encode(name, place, values[place], lost) for name, place in zip(names, places, strict=True)]
        return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.uint8)

    def reduced(self, names: Sequence[str], places: Sequence[slice], means: Tensor) -> list[Tensor]:
        parts = means.split([place.stop - place.start for place in places])
        every = zip(names, places, parts, strict=True)
        return [self._encode(name, place, part, self._lost_of_reduced) for name, place, part in every]

    def decode(self, names: Sequence[str], counts: Sequence[int], encoded: Tensor) -> Tensor:
        parts = encoded.split([self.num_bytes(name, count) for name, count in zip(names, counts, strict=True)])
        every = zip(names, counts, parts, strict=True)
        pieces = [self._decode(name, count, part) for name, count, part in every]
        return torch.cat(pieces) if pieces else torch.empty(0)

    def _encode(self, name: str, place: slice, values: Tensor, lost: Tensor) -> Tensor:
        count = len(values)
        if not name.startswith(WEIGHT) or not count:
            return values.contiguous().view(torch.uint8)
        if self._feedback:
            values = values + lost[place]
        scale = values.abs().max() / _LARGEST
        rounded = (values / scale).round_().nan_to_num_() if scale > 0 else torch.zeros_like(values)
        encoded = torch.zeros(self.num_bytes(name, count), dtype=torch.uint8)
        encoded[:_FLOAT_BYTES] = scale.reshape(1).view(torch.uint8)
        encoded[_FLOAT_BYTES : _FLOAT_BYTES + count] = rounded.to(torch.int8).view(torch.uint8)
        if self._feedback:
            lost[place] = values - self._decode(name, count, encoded)
        return encoded

    def _decode(self, name: str, count: int, encoded: Tensor) -> Tensor:
        if not name.startswith(WEIGHT) or not count:
            return encoded.view(torch.float32)
        scale = encoded[:_FLOAT_BYTES].view(torch.float32)
        return encoded[_FLOAT_BYTES : _FLOAT_BYTES + count].view(torch.int8).float() * scale
