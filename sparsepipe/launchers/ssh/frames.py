"""What the controller and the agents say to each other through `ssh`: frames of a JSON object and some bytes.

    magic line, then  | bytes of head, bytes of payload: 4 + 4 | head, JSON | payload |  …

The magic line comes first, since a login shell may print whatever it likes before. Lengths are bounded.
"""

import json
import os
import struct
import threading
from typing import Any, NamedTuple

from ...errors import InputError
from ...io.fields import fields

MAGIC = b"\nsparsepipe-frames-1\n"
MOST_PAYLOAD = 2**20  # bytes; what is longer goes in several
_MOST_HEAD = 2**17
_MOST_NOISE = 2**20  # that a login shell may print
_LENGTHS = struct.Struct(">II")
_OBJECT = fields({})


class Frame(NamedTuple):
    """One message: `head["kind"]` says what it is."""

    head: dict[str, Any]
    payload: bytes = b""

    @property
    def kind(self) -> str:
        return str(self.head.get("kind"))


class FrameWriter:
    """Writes frames to a descriptor; threads take turns. Raises OSError where the other side is gone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lock = descriptor, threading.Lock()
        self._before = MAGIC  # of the first frame

    def send(self, kind: str, payload: bytes = b"", **facts: Any) -> None:
        head = json.dumps({"kind": kind, **facts}).encode()
        assert len(head) <= _MOST_HEAD and len(payload) <= MOST_PAYLOAD
        with self._lock:
            begun, self._before = self._before, b""
            self._write(begun + _LENGTHS.pack(len(head), len(payload)) + head + payload)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]


class FrameReader:
    """Reads frames from a descriptor, blocking."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._heard, self._begun = descriptor, bytearray(), False

    def read(self) -> Frame | None:
        """Return the next frame, None at the end. Raises InputError for what is none."""
        if not self._begun and not self._pass_over_noise():
            return None
        lengths = self._take(_LENGTHS.size)
        if lengths is None:
            return None
        of_head, of_payload = _LENGTHS.unpack(lengths)
        if of_head > _MOST_HEAD or of_payload > MOST_PAYLOAD:
            raise InputError(f"a message of {of_head} and {of_payload} bytes")
        head, payload = self._take(of_head), self._take(of_payload)
        if head is None or payload is None:
            return None
        try:
            return Frame(dict(_OBJECT(json.loads(head), "message")), payload)
        except (ValueError, RecursionError):
            raise InputError("a message that is no JSON object") from None

    def _pass_over_noise(self) -> bool:
        while (found := self._heard.find(MAGIC)) < 0:
            if len(self._heard) > _MOST_NOISE:
                raise InputError("a login shell that prints without end")
            if not self._receive():
                return False
        del self._heard[: found + len(MAGIC)]
        self._begun = True
        return True

    def _take(self, count: int) -> bytes | None:
        while len(self._heard) < count:
            if not self._receive():
                return None
        found = bytes(self._heard[:count])
        del self._heard[:count]
        return found

    def _receive(self) -> bool:
        try:
            data = os.read(self._descriptor, MOST_PAYLOAD)
        except OSError:
            return False
        self._heard += data
        return bool(data)
