"""Packets between adjacent stages: taken in while the worker computes, sends kept until done, every wait limited.

Each cut and direction has a way of its own from rank to rank, so that neither the two directions nor the several cuts
between a pair of ranks can be taken for each other, and a header cannot be for another's payload.

    ranks that share memory      the header, through a pipe (`pipes`), says where the payload is (`shared_memory`)
    GPUs of their own, by NCCL   the header through a socket, the payload from device to device, on a wire of its own:
                                 its order is then that of the headers
    other ranks                  header and payload through a socket (`sockets`), from pinned memory if it was a GPU's
    stages of one rank           nothing is sent: packets stay in memory, on a shelf
"""

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..failures import DeadlinePassed, PacketMismatch, PeerLost, seconds_left, translated, wait_for
from .packet import Packet, arrives_at, decode, encode, payload_bytes, place_of, set_place
from .shared_memory import BufferLease, SharedMemory
from .sockets import DEPTH, Sockets

_NOTHING = torch.empty(0, dtype=torch.uint8)
_DIRECTIONS = ("forward", "backward")
_LOOK_AGAIN = 0.0002  # seconds, for what a peer says in shared memory: only evaluation ever waits for it


def tag_of(direction: int, cut: int) -> int:
    """Return what tells the packets of one direction and cut from the others between the same ranks."""
    return 2 * cut + direction


@dataclass(frozen=True)
class NcclLink:
    """What carries the payloads of one cut in one direction from device to device: a group that carries nothing else.

    NCCL knows no tags, and two ranks that each send before they receive would wait for each other on one communicator.
    """

    group: Any
    device: torch.device


class Inbox:
    """The packets of one direction that one segment of the schedule will bring, in the order of the action list.

    `expected` lists (peer, minibatch). They come through `memory` from peers that share it, from others by `sockets`.
    """

    def __init__(
        self,
        expected: Sequence[tuple[int, int]],
        *,
        direction: int,
        boundary: int,
        cut: int = 0,
        memory: SharedMemory | None = None,
        sockets: Sockets | None = None,
    ) -> None:
        self._expected = tuple(expected)
        self._direction, self._boundary = direction, boundary
        self._tag = tag_of(direction, cut)
        self._memory, self._sockets = memory, sockets
        self._taken = 0

    def take(self, minibatch: int, *, timeout: float, action: str) -> Packet:
        """Return the packet of `minibatch`, which must be next. Raises DeadlinePassed, PeerLost or PacketMismatch."""
        peer, due = self._expected[self._taken]
        if due != minibatch:
            raise PacketMismatch(f"{action} asks for minibatch {minibatch}, but {due} from rank {peer} comes next")
        message = (
            f"{action} waited {timeout:g} s for the {_DIRECTIONS[self._direction]} of minibatch {minibatch} "
            f"from rank {peer}"
        )
        header, payload = self._receive(peer, time.monotonic() + timeout, message)
        self._taken += 1
        if (left := arrives_at(header) - time.monotonic()) > 0:
            time.sleep(left)
        return self._checked(decode(header, payload), peer, minibatch)

    def peer(self) -> int:
        """The rank that sends the next packet."""
        return self._expected[self._taken][0]

    def _receive(self, peer: int, deadline: float, message: str) -> tuple[Tensor, Tensor]:
        """Return the next packet's header and payload."""
        if self._memory and peer in self._memory.peers:
            header = self._memory.pipes.take(peer, self._tag, deadline=deadline, message=message)
            place = place_of(header)
            return header, self._memory.receive(peer, *place, payload_bytes(header)) if place else _NOTHING
        return self._from_socket(peer, deadline, message)

    def _from_socket(self, peer: int, deadline: float, message: str) -> tuple[Tensor, Tensor]:
        assert self._sockets is not None
        return self._sockets.take(peer, self._tag, deadline=deadline, message=message)

    def _checked(self, packet: Packet, peer: int, minibatch: int) -> Packet:
        got = (packet.direction, packet.minibatch, packet.boundary)
        due = (self._direction, minibatch, self._boundary)
        if got != due:
            named = ("direction", "minibatch", "boundary")
            sides = "; ".join(
                f"{name} {theirs} sent, {ours} expected"
                for name, theirs, ours in zip(named, got, due, strict=True)
                if theirs != ours
            )
            raise PacketMismatch(f"packet from rank {peer}: {sides}")
        return packet


class WireInbox(Inbox):
    """An Inbox whose payloads come over a wire, each received as soon as its header says how large it is.

    A thread does that. A receive for more than is sent does not end on a wire, and one that waits for long occupies
    the GPU: so none is posted before its header is here.
    """

    def __init__(self, wire: NcclLink, expected: Sequence[tuple[int, int]], **options: Any) -> None:
        super().__init__(expected, **options)
        self._wire = wire
        self._arrived: queue.Queue[tuple[Tensor, Tensor] | BaseException] = queue.Queue(maxsize=DEPTH)
        if self._expected:
            threading.Thread(target=self._bring, name=f"inbox {_DIRECTIONS[self._direction]}", daemon=True).start()

    def _receive(self, peer: int, deadline: float, message: str) -> tuple[Tensor, Tensor]:
        try:
            found = self._arrived.get(timeout=seconds_left(deadline))
        except queue.Empty:
            raise DeadlinePassed(message, peer=peer) from None
        if isinstance(found, BaseException):
            with translated(message, peer=peer):
                raise found
        return found

    def _bring(self) -> None:
        message = f"receives of the {_DIRECTIONS[self._direction]}"
        try:
            for peer, _ in self._expected:
                header, _ = self._from_socket(peer, math.inf, message)
                payload = torch.empty(payload_bytes(header), dtype=torch.uint8, device=self._wire.device)
                if len(payload):
                    receiving = dist.irecv(payload, peer, group=self._wire.group)
                    assert receiving is not None, "both ranks are of the group"
                    receiving.wait()
                self._arrived.put((header, payload))
        except BaseException as error:  # handed on to the worker, who raises it
            self._arrived.put(error)


class LocalQueue:
    """An Inbox without a wire: what one stage of this rank puts there for the next, in order."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._packets: deque[Packet] = deque()

    def put(self, packet: Packet) -> None:
        """Lay a packet down, free of the graph that made its rows."""
        slots = tuple(replace(slot, rows=slot.rows.detach()) for slot in packet.slots)
        self._packets.append(replace(packet, slots=slots))

    def take(self, minibatch: int, *, timeout: float, action: str) -> Packet:
        """Return the packet of `minibatch`, which must be next: the rank's own list has put it there before."""
        found = self._packets.popleft() if self._packets else None
        if found is None or found.minibatch != minibatch:
            there = "nothing" if found is None else f"minibatch {found.minibatch}"
            raise PacketMismatch(f"{action} asks for minibatch {minibatch}, but {there} is on the shelf")
        return found

    def peer(self) -> int:
        return self._rank


class Outbox:
    """Packets on their way out of this rank: sent without waiting, their memory kept until the peer has them."""

    def __init__(self, *, limit: int = 8, memory: SharedMemory | None = None, sockets: Sockets | None = None) -> None:
        self._limit = limit  # packets under way; the schedule bounds them too
        self._memory, self._sockets = memory, sockets
        self._under_way: deque[_Sent] = deque()

    def send(
        self, packet: Packet, peer: int, *, timeout: float, action: str, cut: int = 0, wire: NcclLink | None = None
    ) -> None:
        """Start sending; wait for the oldest packet only where too many are under way."""
        while len(self._under_way) >= self._limit:
            self._finish_oldest(time.monotonic() + timeout, timeout)
        tag = tag_of(packet.direction, cut)
        if self._memory and (lending := self._memory.lend(peer)):
            message = f"{action} waited {timeout:g} s for rank {peer} to read its packet's header"
            header, deadline = _lent(packet, lending), time.monotonic() + timeout
            self._memory.pipes.put(peer, tag, header, deadline=deadline, message=message)
            self._under_way.append(_Sent(peer, action, shared=lending))
            return
        assert self._sockets is not None
        if wire is None:
            self._under_way.append(_Sent(peer, action, [self._sockets.send(peer, tag, *encode(packet))]))
            return
        header, payload = encode(packet, device=wire.device)
        works: list[Any] = [self._sockets.send(peer, tag, header, _NOTHING)]
        if len(payload):
            with translated(f"sending for {action}", peer=peer):
                works.append(dist.isend(payload, peer, group=wire.group))
        self._under_way.append(_Sent(peer, action, works, payload))

    def finish(self, *, timeout: float) -> None:
        """End a segment: wait until everything sent has been taken. Raises DeadlinePassed or PeerLost."""
        deadline = time.monotonic() + timeout
        while self._under_way:
            self._finish_oldest(deadline, timeout)

    def _finish_oldest(self, deadline: float, timeout: float) -> None:
        sent = self._under_way.popleft()
        message = f"{sent.action} waited {timeout:g} s for rank {sent.peer} to take its packet"
        for work in sent.works:
            wait_for(work, deadline, message, peer=sent.peer)
        while sent.shared and not sent.shared.taken:
            if time.monotonic() >= deadline:
                raise DeadlinePassed(message, peer=sent.peer)
            if self._memory and self._memory.pipes.ended(sent.peer) and not sent.shared.taken:
                raise PeerLost(f"lost rank {sent.peer} before it took the packet of {sent.action}")
            time.sleep(_LOOK_AGAIN)


@dataclass(frozen=True, eq=False)
class _Sent:
    """A packet under way: what carries it, and its memory where that does not keep it, or what it was written to."""

    peer: int
    action: str
    works: Sequence[Any] = ()
    payload: Tensor = _NOTHING
    shared: BufferLease | None = None


def _lent(packet: Packet, lending: BufferLease) -> Tensor:
    """Write a packet's payload where the peer can read it; return the header, which says where."""
    header, _ = encode(packet, memory=lending, packed=False)  # nothing is sent: to pack saves nothing
    if lending.place:
        set_place(header, *lending.place)
    return header
