"""Memory that processes of one host share: payloads cross from one to another in it, with one copy and no socket.

    sender    lends a free buffer, writes the payload there, and says in the packet's header (`pipes`) which one it was
    receiver  maps the buffer when it first hears of it; rows are views of it, and the last of them gives it back

A buffer is an anonymous file (memfd), which has no name and belongs to no folder: when its last process is gone, killed
or not, so is the memory. Other processes open it through /proc, where the kernel asks whether they are the same user's;
ranks that cannot (other hosts, other containers, no Linux) find out when they meet, and send through sockets. The same
door leads to pipes.

    | taken | given back | ... 64 bytes | payload, capacity bytes |

Both counts are the receiver's to write, and how often the buffer was lent is the sender's to know: no word of memory
has two writers.

Headers of packets between the processes of one host: through pipes, one from each process to each other.

A write wakes the peer where it waits in `take`, and no thread next to it: with few cores, half of what a packet of a
megabyte costs beyond its copy is threads that wake each other. Whoever waits, to read or to write, reads what all peers
have sent, so that no two wait for each other to read; and the end of a pipe is the end of its peer.
"""

import fcntl
import json
import mmap
import os
import select
import stat
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ..failures import DeadlinePassed, PacketMismatch, PeerLost, lost, translated
from .packet import HEADER_BYTES, Packet, encode, payload_bytes, place_of, set_place

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
        """Return whether `peer` is gone, or has left the job."""
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
        """Read what has arrived, or what arrives first within `seconds`."""
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


_HEAD = 64  # bytes before the payload, which is aligned to them
_TAKEN, _GIVEN_BACK = 0, 1
_LOOK_AGAIN = 0.0002  # seconds, for what a peer says in a buffer: only evaluation ever waits for it
_NOTHING = torch.empty(0, dtype=torch.uint8)


def _map(fd: int, size: int) -> mmap.mmap:
    """Map a buffer with its pages at hand: none has to be brought in when a payload is written or read."""
    return mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)


class Buffer:
    """Memory for one peer, lent for one payload after the other."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("sparsepipe")
        self.lent = 0
        self.grow(0)

    @property
    def is_free(self) -> bool:
        return int(self.counts[_GIVEN_BACK]) == self.lent

    def grow(self, capacity: int) -> None:
        """Make room for payloads of at least `capacity` bytes. Only of a free buffer: the receiver maps it again."""
        whole = -(-(_HEAD + capacity) // mmap.PAGESIZE) * mmap.PAGESIZE
        os.ftruncate(self.fd, whole)
        self.capacity, self.memory = whole - _HEAD, _map(self.fd, whole)
        self.counts = np.frombuffer(self.memory, dtype=np.int64, count=2)


class BufferLease:
    """A buffer for one payload to one peer, chosen once its size is known: call it with the bytes."""

    def __init__(self, buffers: list[Buffer]) -> None:
        self._buffers = buffers
        self._buffer: Buffer | None = None
        self._number = 0

    def __call__(self, size: int) -> Tensor:
        """Return uint8 [size] of the smallest free buffer that has it, else of the largest free, else of a new one."""
        free = sorted((buffer for buffer in self._buffers if buffer.is_free), key=lambda buffer: buffer.capacity)
        found = next((buffer for buffer in free if buffer.capacity >= size), free[-1] if free else None)
        if found is None:
            found = Buffer()
            self._buffers.append(found)
        if found.capacity < size:
            found.grow(size * 5 // 4)  # sizes change from minibatch to minibatch
        found.lent += 1
        self._buffer, self._number = found, found.lent
        return torch.frombuffer(found.memory, dtype=torch.uint8, count=size, offset=_HEAD)

    @property
    def place(self) -> tuple[int, int] | None:
        """Location of the payload for the receiver: file descriptor and capacity. None if nothing was lent."""
        return (self._buffer.fd, self._buffer.capacity) if self._buffer else None

    @property
    def taken(self) -> bool:
        """Return whether the receiver has the payload, or there is none."""
        return self._buffer is None or int(self._buffer.counts[_TAKEN]) >= self._number


class SharedMemory:
    """Memory shared with `peers` (rank → process id) in both directions; `pipes` bring the headers."""

    def __init__(self, peers: Mapping[int, int], pipes: Pipes | None = None) -> None:
        self.peers = dict(peers)
        self.pipes = pipes or Pipes({}, {})
        self.held_bytes = 0  # of payloads that came and are still in use here
        self._own: defaultdict[int, list[Buffer]] = defaultdict(list)  # by the peer they are lent to
        self._theirs: dict[tuple[int, int], mmap.mmap] = {}  # (peer, its file descriptor) → as mapped here

    def lend(self, peer: int) -> BufferLease | None:
        """Return what gives memory for the next payload to `peer`. None: it shares none."""
        return BufferLease(self._own[peer]) if peer in self.peers else None

    def receive(self, peer: int, fd: int, capacity: int, size: int) -> Tensor:
        """Return the payload, uint8 [size], that `peer` has put in its buffer `fd`.

        The buffer goes back to its owner when neither the tensor nor a view of it is left. Raises PeerLost.
        """
        memory = self._theirs.get((peer, fd))
        if memory is None or len(memory) != _HEAD + capacity:
            memory = self._theirs[peer, fd] = self._mapped(peer, fd, _HEAD + capacity)
        if size > capacity:
            raise PacketMismatch(
                "shared_memory.size_differs", f"rank {peer} reports {size} bytes in its buffer of {capacity}"
            )
        counts = np.frombuffer(memory, dtype=np.int64, count=2)
        counts[_TAKEN] += 1
        view = memoryview(memory)[_HEAD : _HEAD + size]
        weakref.finalize(view, self._give_back, counts, size).atexit = False
        self.held_bytes += size
        return torch.frombuffer(view, dtype=torch.uint8)

    def _mapped(self, peer: int, fd: int, length: int) -> mmap.mmap:
        own = _open(self.peers[peer], fd, os.O_RDWR, peer=peer)
        try:
            if not 0 < length <= os.fstat(own).st_size:
                raise PacketMismatch(
                    "shared_memory.size_differs",
                    f"rank {peer} reports a buffer of {length} bytes, but it has {os.fstat(own).st_size}",
                )
            return _map(own, length)
        finally:
            os.close(own)

    def _give_back(self, counts: np.ndarray, size: int) -> None:
        self.held_bytes -= size
        counts[_GIVEN_BACK] += 1

    def close(self) -> None:
        """Let go of the buffers. Those that a peer has mapped live on until it lets go of them too."""
        for buffer in (buffer for buffers in self._own.values() for buffer in buffers):
            os.close(buffer.fd)
        self._own.clear()
        self._theirs.clear()
        self.pipes.close()


class SharedMemoryTransport:
    """The member of `Transport` between ranks that share memory: a header through a pipe says where the payload is.

    Coordinates stay as they are: to pack them would save no bytes that are sent.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory

    def reaches(self, peer: int) -> bool:
        return peer in self._memory.peers

    def send(self, packet: Packet, peer: int, tag: int, *, deadline: float, message: str) -> "_InBuffer":
        lease = self._memory.lend(peer)
        assert lease is not None, "only a peer that shares memory is sent to"
        header, _ = encode(packet, memory=lease, packed=False)
        if lease.place:
            set_place(header, *lease.place)
        self._memory.pipes.put(peer, tag, header, deadline=deadline, message=message)
        return _InBuffer(peer, lease, self._memory.pipes)

    def expect(self, peers: Sequence[int], tag: int) -> None:
        """Nothing is done ahead: what has been sent has arrived."""

    def receive(self, peer: int, tag: int, *, deadline: float, message: str) -> tuple[Tensor, Tensor]:
        header = self._memory.pipes.take(peer, tag, deadline=deadline, message=message)
        place = place_of(header)
        return header, self._memory.receive(peer, *place, payload_bytes(header)) if place else _NOTHING


@dataclass(frozen=True, eq=False)
class _InBuffer:
    """A packet that the peer has not read yet, or has: its payload lies in a buffer."""

    peer: int
    lease: BufferLease
    pipes: Pipes

    def wait(self, deadline: float, message: str) -> None:
        while not self.lease.taken:
            if time.monotonic() >= deadline:
                raise DeadlinePassed(message, peer=self.peer)
            if self.pipes.ended(self.peer) and not self.lease.taken:
                raise lost(self.peer, "it ended before it took a packet", message)
            time.sleep(_LOOK_AGAIN)


def meet(store: dist.Store, rank: int, ranks: Iterable[int]) -> SharedMemory | None:
    """Find out with which other ranks this one can share memory: by trying, both ways. None if with no one.

    Every rank of `ranks` must come here, within the store's time; a system without memfd has nothing to show.
    Raises DeadlinePassed or PeerLost, with nothing left open.
    """
    opened: set[int] = set()
    try:
        return _met(store, rank, [peer for peer in ranks if peer != rank], opened)
    except BaseException:
        for fd in opened:
            os.close(fd)
        raise


def _met(store: dist.Store, rank: int, others: Sequence[int], opened: set[int]) -> SharedMemory | None:
    """Do what `meet` does. `opened` gets the file descriptors as they are opened."""
    own, secret = -1, os.urandom(16)
    ends: dict[int, tuple[int, int]] = {}  # of the pipe from each peer: what is read here, what the peer opens
    if hasattr(os, "memfd_create"):
        own = os.memfd_create("sparsepipe-hello")
        opened.add(own)
        os.write(own, secret)
        for peer in others:
            ends[peer] = make_pipe()
            opened.update(ends[peer])
    doors = {str(peer): end for peer, (_, end) in ends.items()}
    store.set(f"memory/{rank}", json.dumps({"pid": os.getpid(), "fd": own, "secret": secret.hex(), "pipes": doors}))
    seen, outgoing = {}, {}
    for peer in others:
        theirs = json.loads(_told(store, rank, "memory", peer))
        if _reads(theirs["pid"], theirs["fd"], bytes.fromhex(theirs["secret"])):
            outgoing[peer] = _open(theirs["pid"], theirs["pipes"][str(rank)], os.O_WRONLY, peer=peer)
            opened.add(outgoing[peer])
            seen[peer] = theirs["pid"]
    store.set(f"memory-seen/{rank}", " ".join(map(str, seen)))
    sees = {peer: _told(store, rank, "memory-seen", peer).decode().split() for peer in others}
    both = {peer: pid for peer, pid in seen.items() if str(rank) in sees[peer]}
    # Everybody has looked: a pipe that only its peer can write to ends with its peer.
    of_no_use = [ends[peer][0] for peer in ends if peer not in both] + [outgoing[k] for k in seen if k not in both]
    for fd in (own, *(end for _, end in ends.values()), *of_no_use):
        if fd >= 0:
            os.close(fd)
    if not both:
        return None
    return SharedMemory(both, Pipes({peer: ends[peer][0] for peer in both}, {peer: outgoing[peer] for peer in both}))


def _open(pid: int, fd: int, how: int, *, peer: int) -> int:
    """Open again what `peer`, another process, has open. Raises PeerLost."""
    try:
        return os.open(f"/proc/{pid}/fd/{fd}", how | os.O_CLOEXEC)
    except OSError as error:
        raise PeerLost(f"lost rank {peer}: {error.strerror} where its memory was") from error


def _told(store: dist.Store, rank: int, what: str, peer: int) -> bytes:
    """Return what `peer` says in the store. Raises DeadlinePassed after the store's own time, or PeerLost."""
    seconds = store.timeout.total_seconds()  # type: ignore[attr-defined]  # torch has it, its stubs leave it out
    message = f"rank {rank} waited {seconds:g} s for rank {peer} to say what memory it shares"
    with translated(message, peer=peer, deadline=time.monotonic() + seconds):
        return store.get(f"{what}/{peer}")


def _reads(pid: int, fd: int, secret: bytes) -> bool:
    """Return whether a file that another process has open is one that this process can open, map and find the secret
    in.

    On another host the number is that of another process, whose pipe may be there: reading that could last for ever.
    """
    path = Path(f"/proc/{pid}/fd/{fd}")
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return False
        with path.open("r+b", buffering=0) as found:
            return found.read(len(secret) + 1) == secret
    except OSError:
        return False
