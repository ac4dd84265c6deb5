"""Messages between two programs through a login shell: frames of a JSON object and some bytes, cut into chunks.

    frame    bytes of head, bytes of payload: 4 + 4 | head, JSON | payload
    chunk    MARK | number 4 | bytes 2 | CRC-32 4 | a part of the frames; so small that it is written in one step

Whatever else a shell, or a program that it began, prints lies between two chunks and is passed over. Lengths are
bounded. The standard library alone, and any Python from 3.7 on: this file is also sent to hosts without sparsepipe.
"""

from __future__ import annotations

import json
import os
import select
import struct
import threading
import time
import zlib
from typing import Any, NamedTuple

MARK = b"\0\nspf2\n\0"
MOST_PAYLOAD = 2**20  # bytes; what is longer goes in several
_MOST_HEAD = 2**17
_MOST_NOISE = 2**20  # that a login shell may print before the first chunk
_LENGTHS = struct.Struct(">II")
_CHUNK = struct.Struct(f">{len(MARK)}sIHI")
_MOST_CHUNK = min(4096, select.PIPE_BUF) - _CHUNK.size  # bytes; nothing comes between those of one write to a pipe


class Frame(NamedTuple):
    """One message: `head["kind"]` says what it is."""

    head: dict[str, Any]
    payload: bytes = b""

    @property
    def kind(self) -> str:
        return str(self.head.get("kind"))


class FrameWriter:
    """Writes frames to a descriptor; threads take turns. Raises OSError if the other side is gone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lock = descriptor, threading.Lock()
        self._number = 0  # of the next chunk

    def send(self, kind: str, payload: bytes = b"", **facts: Any) -> None:
        head = json.dumps({"kind": kind, **facts}).encode()
        assert len(head) <= _MOST_HEAD and len(payload) <= MOST_PAYLOAD
        data = memoryview(_LENGTHS.pack(len(head), len(payload)) + head + payload)
        with self._lock:
            for start in range(0, len(data), _MOST_CHUNK):
                self._write_chunk(bytes(data[start : start + _MOST_CHUNK]))

    def _write_chunk(self, part: bytes) -> None:
        chunk = _CHUNK.pack(MARK, self._number, len(part), zlib.crc32(part)) + part
        self._number = (self._number + 1) % 2**32
        while chunk:
            chunk = chunk[os.write(self._descriptor, chunk) :]


class FrameReader:
    """Reads frames from a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._received, self._content = bytearray(), bytearray()  # as read, and what is in its chunks
        self._number = self._noise = 0  # of the next chunk; bytes before the first one

    def read(self, *, seconds: float | None = None) -> Frame | None:
        """Return the next frame, None at the end.

        Raises ValueError for what is none, and TimeoutError if there is none within so many seconds (None: any time).
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        if not self._await(_LENGTHS.size, deadline):
            return None
        of_head, of_payload = _LENGTHS.unpack_from(self._content)
        if of_head > _MOST_HEAD or of_payload > MOST_PAYLOAD:
            raise ValueError(f"a message of {of_head} and {of_payload} bytes")
        if not self._await(_LENGTHS.size + of_head + of_payload, deadline):
            return None
        head = bytes(self._content[_LENGTHS.size : _LENGTHS.size + of_head])
        payload = bytes(self._content[_LENGTHS.size + of_head : _LENGTHS.size + of_head + of_payload])
        del self._content[: _LENGTHS.size + of_head + of_payload]
        try:
            found = json.loads(head)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ValueError("a message that is no JSON object")
        return Frame(found, payload)

    def _await(self, count: int, deadline: float | None) -> bool:
        """Receive until so many bytes of frames are there; return whether they are."""
        while len(self._content) < count:
            if deadline is not None:
                asked = select.poll()
                asked.register(self._descriptor, select.POLLIN)
                if not asked.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise TimeoutError
            try:
                data = os.read(self._descriptor, MOST_PAYLOAD)
            except OSError:
                return False
            if not data:
                return False
            self._received += data
            self._take_chunks()
        return True

    def _take_chunks(self) -> None:
        """Move what is in whole chunks to the content. What lies between them is of somebody else."""
        end = 0  # of what was taken, or passed over
        while True:
            start = self._received.find(MARK, end)
            if start < 0 or start + _CHUNK.size > len(self._received):
                break
            _, number, length, checksum = _CHUNK.unpack_from(self._received, start)
            first, last = start + _CHUNK.size, start + _CHUNK.size + length
            whole = last <= len(self._received)
            possible = 1 <= length <= _MOST_CHUNK
            if possible and not whole and number == self._number:
                break  # the rest is on its way
            part = bytes(self._received[first:last])
            if not possible or not whole or zlib.crc32(part) != checksum:
                end = start + 1  # no chunk, or one that was torn
                continue
            if number != self._number:
                raise ValueError("a part of a message is lost: something there reads or prints in between")
            self._number = (number + 1) % 2**32
            self._content += part
            end = last
        kept = start if start >= 0 else max(end, len(self._received) - len(MARK) + 1)
        if not self._number and not self._content:
            self._noise += kept
            if self._noise > _MOST_NOISE:
                raise ValueError("a login shell that prints without end")
        del self._received[:kept]
