"""Headers of packets between the processes of one host: through pipes, one from each process to each other.

A write wakes the peer where it waits in `take`, and no thread beside it: with few cores, half of what a packet of a
megabyte costs beyond its copy is threads that wake each other. Whoever waits, to read or to write, reads what all peers
have sent, so that no two wait for each other to read; and the end of a pipe is the end of its peer.
"""

import fcntl
import os
import select
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from contextlib import suppress

import torch
from torch import Tensor

from ..failures import DeadlinePassed, lost
from .packet import HEADER_BYTES

_TAG_BYTES = 8
_FRAME_BYTES = _TAG_BYTES + HEADER_BYTES
_PIPE_BYTES = 2**18  # some forty headers: more than a schedule has under way
_READ_BYTES = 16 * _FRAME_BYTES
_CLOSED = "its end of a pipe is closed"
_LONGEST_LOOK = 3600.0  # seconds: the kernel counts milliseconds in 32 bits


def make_pipe() -> tuple[int, int]:
    """Return the ends of a new pipe, to read and to write, as roomy as the system lets it be."""
    ends = os.pipe()
    with suppress(OSError):  # the user has too many: whoever writes then waits a little more often
        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return ends


class Pipes:
    """The open ends of the pipes from and to each peer (rank → file descriptor), and what has been read from them.

    Headers with different tags (of several cuts, or both directions) do not wait for each other.
    """

    def __init__(self, incoming: Mapping[int, int], outgoing: Mapping[int, int]) -> None:
        self._peers = {fd: peer for peer, fd in incoming.items()}
        self._outgoing = dict(outgoing)
        self._arrived: defaultdict[tuple[int, int], deque[Tensor]] = defaultdict(deque)  # by (peer, tag)
        self._begun: defaultdict[int, bytearray] = defaultdict(bytearray)  # by peer: a header that is not all here
        self._ended: set[int] = set()
        self._poll = select.poll()
        for fd in (*self._peers, *self._outgoing.values()):
            os.set_blocking(fd, False)
        for fd in self._peers:
            self._poll.register(fd, select.POLLIN)

    def put(self, peer: int, tag: int, header: Tensor, *, deadline: float, message: str) -> None:
        """Send an int64 [512] to `peer`. Raises DeadlinePassed (`message`) or PeerLost."""
        fd = self._outgoing[peer]
        left = tag.to_bytes(_TAG_BYTES, "little") + header.numpy().tobytes()
        while left:
            try:
                left = left[os.write(fd, left) :]
            except BlockingIOError:
                self._poll.register(fd, select.POLLOUT)
                try:
                    self._wait(peer, deadline, message)
                finally:
                    self._poll.unregister(fd)
            except BrokenPipeError:
                raise lost(peer, _CLOSED, message) from None

    def take(self, peer: int, tag: int, *, deadline: float, message: str) -> Tensor:
        """Return the next int64 [512] that `peer` sent with `tag`. Raises DeadlinePassed (`message`) or PeerLost."""
        arrived = self._arrived[peer, tag]
        while not arrived:
            if peer in self._ended:
                raise lost(peer, _CLOSED, message)
            self._wait(peer, deadline, message)
        return arrived.popleft()

    def ended(self, peer: int) -> bool:
        """Whether `peer` is gone, or has left the job."""
        self._look(0)
        return peer in self._ended

    def close(self) -> None:
        for fd in (*self._peers, *self._outgoing.values()):
            os.close(fd)
        self._peers.clear()
        self._outgoing.clear()

    def _wait(self, peer: int, deadline: float, message: str) -> None:
        """Wait until something can be done and read what can be read. Raises DeadlinePassed in the name of `peer`."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise DeadlinePassed(message, peer=peer)
        self._look(min(left, _LONGEST_LOOK))

    def _look(self, seconds: float) -> None:
        """Read what is there, or comes first within `seconds`."""
        for fd, _ in self._poll.poll(1000 * seconds):
            if fd in self._peers:
                self._read(fd, self._peers[fd])

    def _read(self, fd: int, peer: int) -> None:
        found = os.read(fd, _READ_BYTES)
        if not found:
            self._ended.add(peer)
            self._poll.unregister(fd)
            return
        begun = self._begun[peer]
        begun += found
        while len(begun) >= _FRAME_BYTES:
            tag = int.from_bytes(begun[:_TAG_BYTES], "little")
            header = torch.frombuffer(begun[_TAG_BYTES:_FRAME_BYTES], dtype=torch.int64)
            self._arrived[peer, tag].append(header)
            begun = begun[_FRAME_BYTES:]
        self._begun[peer] = begun
