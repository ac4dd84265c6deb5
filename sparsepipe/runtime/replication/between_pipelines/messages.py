"""What ranks of different pipelines say to each other: a few facts, and a payload of bytes.

"sp-1"  length of facts (uint32)  length of payload (uint64)  facts as JSON  payload
"""

import json
import math
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...failures import PacketMismatch, seconds_left

_HEAD = struct.Struct("<4sIQ")
_MAGIC = b"sp-1"
_MOST_FACTS_BYTES = 2**24  # names of tensors, most of all
_LOOK = 0.25  # seconds between two looks whether who is waited for is still there
_READ_BYTES = 2**20

NO_PAYLOAD = torch.empty(0, dtype=torch.uint8)


class CalledOff(RuntimeError):
    """A merge comes to nothing for this rank: somebody whose part it needs is gone, or has not got what it needs."""


class Message(NamedTuple):
    facts: Mapping[str, Any]
    payload: Tensor  # uint8 [n]


def send(connection: socket.socket, facts: Mapping[str, Any], payload: Tensor, *, deadline: float) -> int:
    """Send a message; return its bytes. Raises OSError where the peer is gone, or does not read until `deadline`."""
    said = json.dumps(facts).encode()
    connection.settimeout(seconds_left(deadline))
    connection.sendall(_HEAD.pack(_MAGIC, len(said), payload.nbytes) + said)
    connection.settimeout(seconds_left(deadline))
    connection.sendall(payload.contiguous().view(torch.uint8).numpy().data)
    return _HEAD.size + len(said) + payload.nbytes


def receive(
    connection: socket.socket,
    expected: Callable[[Mapping[str, Any]], int],
    *,
    seconds: float,
    since_begun: bool = False,
    look: Callable[[], None] | None = None,
) -> Message:
    """Return the next message, all of which must have come in `seconds`: from when its first byte has, `since_begun`.

    `expected` tells from the facts how long the payload is: no memory is made for another. `look` is called every now
    and then, and raises where it is of no use to wait on.
    Raises OSError where the peer is gone, TimeoutError where it says nothing, PacketMismatch for what is no message.
    """
    head = bytearray(_HEAD.size)
    deadline = math.inf if since_begun else time.monotonic() + seconds
    _fill(connection, memoryview(head)[:1], deadline, look)
    if since_begun:
        deadline = time.monotonic() + seconds
    _fill(connection, memoryview(head)[1:], deadline, look)
    magic, facts_bytes, payload_bytes = _HEAD.unpack(head)
    if magic != _MAGIC or facts_bytes > _MOST_FACTS_BYTES:
        raise PacketMismatch("message.malformed", "what came is no message between pipelines")
    said = bytearray(facts_bytes)
    _fill(connection, memoryview(said), deadline, look)
    facts = _facts(said)
    wanted = expected(facts)
    if payload_bytes != wanted:
        raise PacketMismatch("message.size_differs", f"a message with {payload_bytes} bytes, expected {wanted}")
    payload = torch.empty(payload_bytes, dtype=torch.uint8)
    _fill(connection, payload.numpy().data, deadline, look)
    return Message(facts, payload)


def _facts(said: bytearray) -> Mapping[str, Any]:
    try:
        facts = json.loads(said)
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise PacketMismatch("message.malformed", "what came is no message between pipelines: its facts are not JSON")
    return facts


def _fill(connection: socket.socket, left: memoryview, deadline: float, look: Callable[[], None] | None) -> None:
    while left:
        wait = None if math.isinf(deadline) else seconds_left(deadline)
        connection.settimeout(min(wait or _LOOK, _LOOK) if look else wait)
        try:
            count = connection.recv_into(left, min(len(left), _READ_BYTES))
        except TimeoutError:
            if time.monotonic() >= deadline:
                raise
            if look:
                look()
            continue
        if count == 0:
            raise ConnectionError("its end of a connection is closed")
        left = left[count:]
