"""What ranks of different pipelines say to each other: a few facts, and a payload of bytes, as a frame."""

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ...wire import messages

_MOST_FACTS_BYTES = 2**24  # names of tensors, most of all

NO_PAYLOAD = torch.empty(0, dtype=torch.uint8)


class CalledOff(RuntimeError):
    """A merge comes to nothing for this rank: somebody whose part it needs is gone, or has not got what it needs."""


class Message(NamedTuple):
    facts: Mapping[str, Any]
    payload: Tensor  # uint8 [n]


def send(connection: socket.socket, facts: Mapping[str, Any], payload: Tensor, *, deadline: float) -> int:
    """Send a message; return its bytes. Raises OSError if the peer is gone, or does not read until `deadline`."""
    content = payload.contiguous().view(torch.uint8).numpy().data
    return messages.send(connection, json.dumps(facts).encode(), content, deadline=deadline)


def receive(
    connection: socket.socket,
    expected: Callable[[Mapping[str, Any]], int],
    *,
    seconds: float,
    since_begun: bool = False,
    look: Callable[[], None] | None = None,
) -> Message:
    """Return the next message: see `wire.messages.receive`."""
    facts, payload = messages.receive(
        connection, expected, most_head=_MOST_FACTS_BYTES, seconds=seconds, since_begun=since_begun, look=look
    )
    return Message(facts, torch.from_numpy(payload) if payload.size else NO_PAYLOAD)


WEIGHT, BUFFER = "weight:", "buffer:"  # as checkpoints name them
REACHED = "reached:"  # of a weight, one number: whether the loss reaches it. By name it comes before the weights
_MOST_SHARES = 1000  # that are remembered


# Tensors by name as one flat vector: what a rank contributes, merges and takes back in one piece
class Layout:
    """Positions of named tensors in a float32 vector on the CPU, ordered by name."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.shapes = {name: tensors[name].shape for name in sorted(tensors)}
        self.places: dict[str, slice] = {}
        start = 0
        for name, shape in self.shapes.items():
            self.places[name] = slice(start, start + shape.numel())
            start += shape.numel()
        self.num_elements = start
        first = next((place.start for name, place in self.places.items() if name.startswith(WEIGHT)), start)
        self.weights = slice(first, start)  # all weights: their names come after the buffers'
        self._shares: dict[tuple[Sequence[str], int, int], list[slice]] = {}  # by what was asked for

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.places)

    @property
    def sizes(self) -> dict[str, int]:
        """Elements of each tensor, by name."""
        return {name: place.stop - place.start for name, place in self.places.items()}

    def flat(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return a copy of the tensors as one vector."""
        if not self.places:
            return torch.empty(0)
        return torch.cat([tensors[name].detach().reshape(-1).float() for name in self.places]).cpu()

    @torch.no_grad()
    def add(self, tensors: Mapping[str, Tensor], flat: Tensor) -> None:
        """Add a vector to the tensors, in place."""
        for name, tensor in tensors.items():
            _unwatched(name, tensor).add_(self._part(name, flat, tensor))

    @torch.no_grad()
    def copy(self, tensors: Mapping[str, Tensor], flat: Tensor) -> None:
        """Set the tensors, in place, to what a vector has."""
        for name, tensor in tensors.items():
            _unwatched(name, tensor).copy_(self._part(name, flat, tensor))

    def parts(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views of a vector, each in its tensor's shape."""
        return {name: flat[place].view(self.shapes[name]) for name, place in self.places.items()}

    def _part(self, name: str, flat: Tensor, like: Tensor) -> Tensor:
        return flat[self.places[name]].view(self.shapes[name]).to(like.device, like.dtype)

    def shares(self, names: Sequence[str], index: int, count: int) -> list[slice]:
        """Return where in the vector the share `index` of `count` of each named tensor lies.

        Each member of a merge reduces one share of every tensor: which elements they are is the same however a pipeline
        is cut.
        """
        asked = (tuple(names), index, count)
        if asked not in self._shares:
            if len(self._shares) >= _MOST_SHARES:
                self._shares.clear()
            self._shares[asked] = [_share(self.places[name], index, count) for name in names]
        return self._shares[asked]


def _share(place: slice, index: int, count: int) -> slice:
    size = place.stop - place.start
    return slice(place.start + size * index // count, place.start + size * (index + 1) // count)


def _unwatched(name: str, tensor: Tensor) -> Tensor:
    """Return a tensor as it may be changed while minibatches are in flight.

    A batch norm keeps its running statistics for the backward, which then has no use for them, as they were in the
    forward: autograd must not notice that they change. Weights in flight are never changed.
    """
    return tensor.data if name.startswith(BUFFER) else tensor


def taken(flat: Tensor, slices: Sequence[slice]) -> Tensor:
    """Return a copy of some slices of a vector, one after the other."""
    return torch.cat([flat[place] for place in slices]) if slices else flat[:0].clone()


def put(flat: Tensor, slices: Sequence[slice], values: Tensor) -> None:
    """Write into some slices of a vector, in place, what `values` has one after the other."""
    if slices:
        parts = values.split([place.stop - place.start for place in slices])
        torch._foreach_copy_([flat[place] for place in slices], list(parts))


_FLOAT_BYTES = 4
_LARGEST = 127.0


# How numbers travel that are averaged: as they are, or as 8-bit integers whose rounding is made good later
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
