"""Frames over a connection, with deadlines: what ranks say to each other, to a store and to a coordinator."""

import json
import math
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...util.io.fields import Check, fields, integer, text
from ...util.io.files import read_json, write_atomic
from ..failures import PacketMismatch, seconds_left
from .frames import LENGTHS_BYTES, MOST_BYTES, lengths, read_head, read_lengths
from .handshake import call, fill

COORDINATOR = Path("control") / "coordinator.json"  # in a run's folder
STORE = Path("control") / "store.json"  # in that of a host
_FIELDS: Mapping[str, Check] = {
    "host": text,
    "port": lambda value, what: integer(value, what, least=1, most=65535),
    "secret": text,
    "pipelines": lambda value, what: integer(value, what, least=1),
}


@dataclass(frozen=True)
class ListenerAddress:
    """Content of the address file."""

    host: str
    port: int
    secret: bytes
    num_pipelines: int = 1  # of the run

    @classmethod
    def read(cls, path: Path) -> "ListenerAddress":
        """Read it. Raises InputError if it does not exist yet, lacks a field, or is damaged."""
        told = fields(_FIELDS)(read_json(path, what="address"), str(path))
        try:
            return cls(told["host"], told["port"], bytes.fromhex(told["secret"]), told["pipelines"])
        except ValueError:
            raise InputError("address.secret_damaged", f"{path}: the secret is damaged; start the job again") from None

    def write(self, path: Path, *, make_folder: bool = False) -> None:
        """Write it. Without `make_folder` its folder must be there."""
        told = {"host": self.host, "port": self.port, "secret": self.secret.hex(), "pipelines": self.num_pipelines}
        write_atomic(path, json.dumps(told) + "\n", make_folder=make_folder, private=True)


Head = Mapping[str, Any]  # of a message, a JSON object

_NOTHING = memoryview(b"")


def send(connection: socket.socket, head: bytes, payload: memoryview = _NOTHING, *, deadline: float) -> int:
    """Send a message; return its bytes. Raises OSError if the peer is gone, or does not read until `deadline`."""
    connection.settimeout(seconds_left(deadline))
    connection.sendall(lengths(len(head), payload.nbytes) + head)
    if payload.nbytes:
        connection.settimeout(seconds_left(deadline))
        connection.sendall(payload)
    return LENGTHS_BYTES + len(head) + payload.nbytes


def receive(
    connection: socket.socket,
    payload_bytes: Callable[[Head], int],
    *,
    most_head: int,
    seconds: float,
    since_begun: bool = False,
    look: Callable[[], None] | None = None,
) -> tuple[Head, NDArray[np.uint8]]:
    """Return head and payload (uint8 [n]) of the next message, all of which must have come in `seconds`.

    From when its first byte has, if `since_begun`. `payload_bytes` tells from the head how long the payload is: no
    memory is made for another. `look` is called every now and then, and raises if it is of no use to wait on.
    Raises OSError if the peer is gone, TimeoutError if it says nothing, PacketMismatch for what is no message.
    """
    begin = bytearray(LENGTHS_BYTES)
    left = memoryview(begin)
    if since_begun:
        fill(connection, left[:1], deadline=math.inf, look=look)
        left = left[1:]
    deadline = time.monotonic() + seconds
    fill(connection, left, deadline=deadline, look=look)
    try:
        of_head, of_payload = read_lengths(begin, most_head=most_head)
        said = bytearray(of_head)
        fill(connection, memoryview(said), deadline=deadline, look=look)
        head = read_head(said)
    except ValueError as error:
        raise PacketMismatch("message.malformed", str(error)) from None
    wanted = payload_bytes(head)
    if of_payload != wanted:
        raise PacketMismatch("message.size_differs", f"a message has {of_payload} bytes, expected {wanted}")
    payload = np.empty(of_payload, dtype=np.uint8)
    fill(connection, payload.data, deadline=deadline, look=look)
    return head, payload


class Requests:
    """A connection to a switchboard, on which one request at a time is made."""

    def __init__(
        self,
        address: ListenerAddress,
        who: tuple[int, int, int],
        *,
        deadline: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Connect, with the handshake. `tls`: what follows goes through that. Raises OSError."""
        self._socket = call(address.host, address.port, address.secret, who, deadline=deadline, tls=tls)

    def request(self, id: int, head: bytes, *, deadline: float) -> Head:
        """Return the answer to a message with this id.

        Raises OSError, also where none comes until `deadline`, and PacketMismatch for what is no answer.
        """
        send(self._socket, head, deadline=deadline)
        while True:
            left = seconds_left(deadline)
            answer, _ = receive(self._socket, lambda head: 0, most_head=MOST_BYTES, seconds=left)
            if answer.get("id") == id:
                return answer

    def close(self) -> None:
        """Close it."""
        self._socket.close()
