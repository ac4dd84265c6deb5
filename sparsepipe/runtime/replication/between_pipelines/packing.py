"""Named tensors of any kind as one payload, with what they are in the facts."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...failures import PacketMismatch
from .messages import NO_PAYLOAD, Message

_KINDS = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
_TYPES = {str(kind).removeprefix("torch."): kind for kind in _KINDS}
_MOST_BYTES = 2**38  # of a rank's tensors: more is no network


def packed(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], Tensor]:
    """Return facts that describe the tensors, and their bytes, uint8 [n]."""
    told = [[name, str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in tensors.items()]
    pieces = [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors.values()]
    return {"tensors": told}, torch.cat(pieces) if pieces else NO_PAYLOAD


def packed_bytes(facts: Mapping[str, Any]) -> int:
    """Return how long the payload is that these facts describe. Raises PacketMismatch if they describe none."""
    total = sum(math.prod(shape) * kind.itemsize for _, kind, shape in _described(facts))
    if total > _MOST_BYTES:
        raise PacketMismatch("tensors.too_large", f"tensors of {total} bytes")
    return total


def unpacked(message: Message) -> dict[str, Tensor]:
    """Return the tensors of a message, by name."""
    found, start = {}, 0
    for name, kind, shape in _described(message.facts):
        end = start + math.prod(shape) * kind.itemsize
        found[name] = message.payload[start:end].clone().view(kind).view(shape)
        start = end
    return found


def _described(facts: Mapping[str, Any]) -> list[tuple[str, torch.dtype, list[int]]]:
    try:
        told = [(str(name), _TYPES[kind], [int(size) for size in shape]) for name, kind, shape in facts["tensors"]]
    except (KeyError, TypeError, ValueError):
        raise PacketMismatch("tensors.undescribed", "tensors that are not described") from None
    if any(size < 0 for _, _, shape in told for size in shape):
        raise PacketMismatch("tensors.size_negative", "tensors with sizes below 0")
    return told
