"""Messages as frames: lengths, a head that says what it is, and bytes. Lengths are bounded before memory is made.

    frame    WORD | bytes of head 4 | bytes of payload 8 | head | payload     head: a JSON object, or a packet's header

Through a login shell frames are cut into chunks. Whatever else a shell, or a program that it began, prints lies between
two chunks and is passed over.

    chunk    MARK | number 4 | bytes 2 | CRC-32 4 | a part of the frames; so small that it is written in one step

Standard library alone, and any Python from 3.7 on: this file is also sent to hosts without sparsepipe.
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
MOST_PAYLOAD = 2**20  # bytes of a frame through a login shell; what is longer goes in several
_MOST_HEAD = 2**17
MOST_BYTES = 2**22  # of a message to or from a switchboard
_MOST_NOISE = 2**20  # that a login shell may print before the first chunk
_WORD = b"spf3"
_LENGTHS = struct.Struct(">4sIQ")
LENGTHS_BYTES = _LENGTHS.size
_CHUNK = struct.Struct(f">{len(MARK)}sIHI")
_MOST_CHUNK = min(4096, select.PIPE_BUF) - _CHUNK.size  # bytes; nothing comes between those of one write to a pipe


class Frame(NamedTuple):
    """One message: `head["kind"]` says what it is."""

    head: dict[str, Any]
    payload: bytes = b""

    @property
    def kind(self) -> str:
        return str(self.head.get("kind"))


def lengths(of_head: int, of_payload: int) -> bytes:
    """Return what a frame begins with."""
    return _LENGTHS.pack(_WORD, of_head, of_payload)


def read_lengths(said: bytes | bytearray, *, most_head: int, most_payload: int = 2**64) -> tuple[int, int]:
    """Return the bytes of a frame's head and payload. Raises ValueError for what is no frame, or a longer one."""
    word, of_head, of_payload = _LENGTHS.unpack_from(said)
    if word != _WORD:
        raise ValueError("a message that does not begin as one")
    if of_head > most_head or of_payload > most_payload:
        raise ValueError(f"a message of {of_head} and {of_payload} bytes")
    return of_head, of_payload


def read_head(said: bytes | bytearray) -> dict[str, Any]:
    """Return the head of a message. Raises ValueError if it is no JSON object."""
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError("a message that is no JSON object")
    return found


class FrameBuffer:
    """Frames out of bytes as they come."""

    def __init__(self, *, most_head: int, most_payload: int) -> None:
        self._most_head, self._most_payload = most_head, most_payload
        self._content = bytearray()

    @property
    def is_empty(self) -> bool:
        return not self._content

    def add(self, said: bytes | memoryview) -> None:
        """Take what came."""
        self._content += said

    def take_frame(self) -> Frame | None:
        """Return the next frame, None if it has not come yet. Raises ValueError for what is none."""
        if len(self._content) < LENGTHS_BYTES:
            return None
        of_head, of_payload = read_lengths(self._content, most_head=self._most_head, most_payload=self._most_payload)
        middle, end = LENGTHS_BYTES + of_head, LENGTHS_BYTES + of_head + of_payload
        if len(self._content) < end:
            return None
        frame = Frame(read_head(self._content[LENGTHS_BYTES:middle]), bytes(self._content[middle:end]))
        del self._content[:end]
        return frame


class FrameWriter:
    """Writes frames to a descriptor; threads take turns. Raises OSError if the other side is gone."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lock = descriptor, threading.Lock()
        self._number = 0  # of the next chunk

    def send(self, kind: str, payload: bytes = b"", **facts: Any) -> None:
        head = json.dumps({"kind": kind, **facts}).encode()
        assert len(head) <= _MOST_HEAD and len(payload) <= MOST_PAYLOAD
        data = memoryview(lengths(len(head), len(payload)) + head + payload)
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
        self._received = bytearray()  # as read
        self._content = FrameBuffer(most_head=_MOST_HEAD, most_payload=MOST_PAYLOAD)  # of its chunks
        self._number = self._noise = 0  # of the next chunk; bytes before the first one

    def read(self, *, seconds: float | None = None) -> Frame | None:
        """Return the next frame, None at the end.

        Raises ValueError for what is none, and TimeoutError if there is none within so many seconds (None: any time).
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            frame = self._content.take_frame()
            if frame is not None or not self._receive(deadline):
                return frame

    def _receive(self, deadline: float | None) -> bool:
        """Receive a part of the frames, or of something else; return whether there is more to come."""
        if deadline is not None:
            asked = select.poll()
            asked.register(self._descriptor, select.POLLIN)
            if not asked.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
        try:
            data = os.read(self._descriptor, MOST_PAYLOAD)
        except OSError:
            return False
        self._received += data
        self._take_chunks()
        return bool(data)

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
            self._content.add(part)
            end = last
        kept = start if start >= 0 else max(end, len(self._received) - len(MARK) + 1)
        if not self._number and self._content.is_empty:
            self._noise += kept
            if self._noise > _MOST_NOISE:
                raise ValueError("a login shell that prints without end")
        del self._received[:kept]
