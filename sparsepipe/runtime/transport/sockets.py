"""Packets between processes that share no memory: TCP, a connection for each direction of each cut between two ranks.

    sender    a thread writes lengths, header and payload, a frame (wire/frames.py), in one call from where they are
              (if NCCL carries the payload, the header alone)
    receiver  a thread reads the next few into memory of their own while the worker computes; then it stops reading,
              and soon the sender cannot write (back-pressure)

Not gloo's messages: it wakes a thread on both sides to agree on each one before it is sent, and a receive must know the
size, which here only the sender does. At 1 MB that is half of the time.

Each rank listens for as long as it takes its peers to connect, with a secret from the store, and no longer.
A way, of a peer and a tag, is what one connection carries.
"""

import json
import queue
import socket
import ssl
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from ..failures import DeadlinePassed, PacketMismatch, lost, seconds_left, translated, wait_for
from ..wire.encryption import Encryption, tls_of
from ..wire.frames import LENGTHS_BYTES, lengths, read_lengths
from ..wire.handshake import Caller, Listener, call, fill, new_secret
from .packet import HEADER_BYTES, Packet, encode, payload_bytes

Way = tuple[int, int]  # (peer, tag)

DEPTH = 3  # packets of a connection that have come and the worker has not taken
_TO_CLOSE = 1.0  # seconds for a thread to end, where its connection was drained


class Frame:
    """A packet on its way out, whose memory is kept until the system has all of it."""

    def __init__(self, header: Tensor, payload: Tensor) -> None:
        begin = lengths(HEADER_BYTES, payload.nbytes) + header.numpy().tobytes()
        self.left = [memoryview(begin), payload.numpy().data]
        self._end: queue.SimpleQueue[OSError | None] = queue.SimpleQueue()

    def ended(self, error: OSError | None) -> None:
        self.left.clear()
        self._end.put(error)

    def wait(self, limit: timedelta) -> None:
        """Wait, once. Raises OSError if the connection broke, or not all of it was written within `limit`."""
        try:
            error = self._end.get(timeout=limit.total_seconds())
        except queue.Empty:
            raise TimeoutError("it does not read") from None
        if error is not None:
            raise error


class _Outgoing:
    """A connection and the thread that writes to it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._todo: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._write, name="sockets out", daemon=True)
        self.thread.start()

    def send(self, header: Tensor, payload: Tensor) -> Frame:
        sending = Frame(header, payload)
        self._todo.put(sending)
        return sending

    def close(self) -> None:
        self._todo.put(None)

    def _write(self) -> None:
        error: OSError | None = None
        while (sending := self._todo.get()) is not None:
            if error is None:
                error = self._written(sending)
            sending.ended(error)
            del sending  # nor its memory, while the next is waited for
        self._connection.close()

    def _written(self, sending: Frame) -> OSError | None:
        left, connection = sending.left, self._connection
        try:
            while left:
                tls = isinstance(connection, ssl.SSLSocket)  # it sends one buffer at a time
                count = connection.send(left[0]) if tls else connection.sendmsg(left)
                while left and count >= len(left[0]):
                    count -= len(left.pop(0))
                if left:
                    left[0] = left[0][count:]
        except OSError as error:
            return error
        return None


class _Incoming:
    """A connection and the thread that reads from it, `DEPTH` packets ahead of who takes them."""

    def __init__(self, connection: socket.socket, *, pinned: bool, headers_alone: bool) -> None:
        self._connection, self._pinned, self._headers_alone = connection, pinned, headers_alone
        self._arrived: queue.SimpleQueue[tuple[Tensor, Tensor] | Exception] = queue.SimpleQueue()
        self._room = threading.Semaphore(DEPTH)
        self.thread = threading.Thread(target=self._read, name="sockets in", daemon=True)
        self.thread.start()

    def take(self, peer: int, *, deadline: float, message: str) -> tuple[Tensor, Tensor]:
        try:
            found = self._arrived.get(timeout=seconds_left(deadline))
        except queue.Empty:
            raise DeadlinePassed(message, peer=peer) from None
        if isinstance(found, Exception):
            self._arrived.put(found)  # whoever asks again
            if isinstance(found, PacketMismatch):
                raise found
            raise lost(peer, str(found), message) from found
        self._room.release()
        return found

    def close(self) -> None:
        with suppress(OSError):  # its peer may have been first
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)  # TLS's own takes it from who reads
        self._room.release()  # it may wait to hand on what nobody takes any more

    def _read(self) -> None:
        try:
            while True:
                frame = bytearray(LENGTHS_BYTES + HEADER_BYTES)
                fill(self._connection, memoryview(frame))
                of_header, length = read_lengths(frame, most_head=HEADER_BYTES)
                if of_header != HEADER_BYTES:
                    raise PacketMismatch(
                        "packet.header_malformed", f"received a header of {of_header} bytes, which is out of range"
                    )
                header = torch.frombuffer(frame, dtype=torch.int64, offset=LENGTHS_BYTES)
                told = payload_bytes(header)
                if length != (0 if self._headers_alone else told):
                    alone = ", expected alone" if self._headers_alone else ""
                    raise PacketMismatch(
                        "packet.frame_malformed", f"received a frame of {length} bytes with the header {told}{alone}"
                    )
                payload = torch.empty(length, dtype=torch.uint8, pin_memory=self._pinned)
                fill(self._connection, payload.numpy().data)
                self._room.acquire()
                self._arrived.put((header, payload))
                del frame, header, payload  # a peer that sends nothing more would have them kept
        except ValueError as error:  # no frame
            self._arrived.put(PacketMismatch("packet.frame_malformed", str(error)))
        except Exception as error:  # handed on to the worker, who raises it
            self._arrived.put(error)
        finally:
            self._connection.close()


class Sockets:
    """The connections of one rank to and from those that it shares no memory with."""

    def __init__(
        self,
        outgoing: Mapping[Way, socket.socket],
        incoming: Mapping[Way, socket.socket],
        *,
        pinned: bool = False,
        headers_alone: bool = False,
    ) -> None:
        """`headers_alone`: something else carries payloads. `pinned`: receive into memory that a GPU copies from."""
        self.peers = frozenset(peer for peer, _ in (*outgoing, *incoming))
        for connection in (*outgoing.values(), *incoming.values()):
            connection.settimeout(None)
        self._outgoing = {way: _Outgoing(connection) for way, connection in outgoing.items()}
        self._incoming = {
            way: _Incoming(connection, pinned=pinned, headers_alone=headers_alone)
            for way, connection in incoming.items()
        }

    def carries(self, tag: int) -> bool:
        """Return whether packets with this tag leave here, to any peer."""
        return any(own == tag for _, own in self._outgoing)

    def send(self, peer: int, tag: int, header: Tensor, payload: Tensor) -> Frame:
        """Start sending an int64 [512] and a uint8 [n] on the CPU. No one may write to them until that has ended."""
        return self._outgoing[peer, tag].send(header, payload)

    def take(self, peer: int, tag: int, *, deadline: float, message: str) -> tuple[Tensor, Tensor]:
        """Return what `peer` sent next with `tag`. Raises DeadlinePassed (`message`) or PeerLost."""
        return self._incoming[peer, tag].take(peer, deadline=deadline, message=message)

    def close(self) -> None:
        """Close once everything that was sent has ended. Its threads are gone then, unless a peer does not read."""
        both: list[_Outgoing | _Incoming] = [*self._outgoing.values(), *self._incoming.values()]
        for connection in both:
            connection.close()
        for connection in both:
            connection.thread.join(_TO_CLOSE)


class SocketTransport:
    """The member of `Transport` over sockets: header and payload together."""

    def __init__(self, sockets: Sockets) -> None:
        self._sockets = sockets

    def reaches(self, peer: int) -> bool:
        return peer in self._sockets.peers

    def send(self, packet: Packet, peer: int, tag: int, *, deadline: float, message: str) -> "_OnSocket":
        return _OnSocket(peer, self._sockets.send(peer, tag, *encode(packet)))

    def expect(self, peers: Sequence[int], tag: int) -> None:
        """Each connection's thread reads ahead as it is."""

    def receive(self, peer: int, tag: int, *, deadline: float, message: str) -> tuple[Tensor, Tensor]:
        return self._sockets.take(peer, tag, deadline=deadline, message=message)


@dataclass(frozen=True, eq=False)
class _OnSocket:
    """A packet on its way through a socket."""

    peer: int
    frame: Frame

    def wait(self, deadline: float, message: str) -> None:
        wait_for(self.frame, deadline, message, peer=self.peer)


def connect(
    store: dist.Store,
    rank: int,
    outgoing: Collection[Way],
    incoming: Collection[Way],
    *,
    timeout: float,
    pinned: bool = False,
    headers_alone: bool = False,
    address: str = "127.0.0.1",
    encryption: Encryption | None = None,
) -> Sockets:
    """Connect with the peers, who must all come here within `timeout` seconds and reach this host at `address`.

    `encryption`: what is sent goes through TLS. Raises DeadlinePassed or PeerLost.
    """
    if not outgoing and not incoming:
        return Sockets({}, {})
    deadline = time.monotonic() + timeout
    secret, arrived = new_secret(), queue.SimpleQueue[Caller]()
    listener = Listener(address, secret, arrived.put, tls=tls_of(encryption, server_side=True))
    tls = tls_of(encryption, server_side=False)
    calling: dict[Way, socket.socket] = {}
    called: dict[Way, socket.socket] = {}
    try:
        store.set(f"socket/{rank}", json.dumps([listener.host, listener.port, secret.hex()]))
        for peer, tag in sorted(outgoing):
            message = f"rank {rank} waited {timeout:g} s to connect to rank {peer}"
            with translated(message, peer=peer, deadline=deadline):
                store.wait([f"socket/{peer}"], timedelta(seconds=seconds_left(deadline)))
                host, port, its = json.loads(store.get(f"socket/{peer}"))
                who = (rank, tag, 0)
                calling[peer, tag] = call(host, port, bytes.fromhex(its), who, deadline=deadline, tls=tls)
        while missing := set(incoming) - called.keys():
            peer = min(missing)[0]
            try:
                caller = arrived.get(timeout=seconds_left(deadline))
            except queue.Empty:
                message = f"rank {rank} waited {timeout:g} s for rank {peer} to connect"
                raise DeadlinePassed(message, peer=peer) from None
            if caller.who[:2] in missing:
                called[caller.who[:2]] = caller.connection
            else:
                caller.connection.close()
        return Sockets(calling, called, pinned=pinned, headers_alone=headers_alone)
    except BaseException:
        for connection in (*calling.values(), *called.values()):
            connection.close()
        raise
    finally:
        listener.close()
        while not arrived.empty():  # whom nobody waits for any more
            arrived.get().connection.close()
