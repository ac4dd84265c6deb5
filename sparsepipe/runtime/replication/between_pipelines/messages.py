"""What ranks of different pipelines say to each other: a few facts, and a payload of bytes, as a frame."""

import json
import socket
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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
