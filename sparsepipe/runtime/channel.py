"""Packets between adjacent stages: receives posted ahead, sends kept until done, every wait limited.

Each packet is two messages, header and payload, on tags of their own for each cut and direction, so that neither the
two directions nor headers and payloads nor the several cuts between a pair of ranks can be taken for each other. What
goes from one stage of a rank to another of the same stays in memory, on a shelf.

    sender   isend header, isend payload ─────►  Inbox   receives of both are posted before the worker asks for them:
             (kept until the peer has them)              the header's, and as much of the payload's as others needed

Sizes change from minibatch to minibatch, and nobody knows the next. So both sides keep the same book of those that
were (`Sizes`), and by it a payload that is not large comes in one message with its header. What a payload has beyond
the receive that waits for it goes in a message of its own when its header is read.

Where the two ranks share memory, the header is the only message: it says where the payload is (`shared_memory`), and
goes through a pipe (`pipes`), which keeps what nobody has asked for yet.

Other headers go over gloo, each direction on connections of its own. So do payloads, from pinned memory where they come
from a GPU; where every rank has a GPU of its own they go over NCCL, from device to device, on a wire of their own: its
order is then that of the headers.
"""

import queue
import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .failures import DeadlinePassed, PacketMismatch, PeerLost, translated
from .packet import (
    HEADER_BYTES,
    HEADER_INTEGERS,
    Packet,
    arrives_at,
    decode,
    encode,
    payload_bytes,
    place_of,
    set_place,
)
from .shared_memory import Lending, SharedMemory

_NOTHING = torch.empty(0, dtype=torch.uint8)
_DIRECTIONS = ("forward", "backward")
_JOINED_BYTES = 2**21
_LOOK_AGAIN = 0.0002  # seconds, for what a peer says in shared memory: only evaluation ever waits for it
DEPTH = 3  # packets whose receives are posted, or that a wire has brought and the worker has not taken (back-pressure)


def _tags(direction: int, cut: int) -> tuple[int, int, int]:
    """Return the tags of a header, of what is posted ahead of its payload, and of the payload's rest."""
    first = 8 * cut + 4 * direction
    return first + 1, first + 2, first + 3


class Sizes:
    """Of the payloads from one rank to another over one cut in one direction: how much of the next is posted ahead.

    Sender and receiver ask before each packet and learn its size with it. The receiver asks `DEPTH` packets before, so
    that what either answers rests on what both know.
    """

    def __init__(self) -> None:
        self._largest: list[int] = []  # of the packets up to each
        self._asked = 0

    def ahead(self) -> int:
        """Return the bytes posted for the next packet: a quarter more than any known had, 0 where none is known."""
        known = self._asked - DEPTH
        self._asked += 1
        return self._largest[known] * 5 // 4 if known >= 0 else 0

    def learn(self, size: int) -> None:
        self._largest.append(max(size, self._largest[-1] if self._largest else 0))


@dataclass(frozen=True)
class Wire:
    """What carries the payloads of one cut in one direction from device to device: a group that carries nothing else.

    NCCL knows no tags, and two ranks that each send before they receive would wait for each other on one communicator.
    """

    group: Any
    device: torch.device


class Inbox:
    """The packets of one direction that one segment of the schedule will bring, in the order of the action list.

    `expected` lists (peer, minibatch). The receives of the next few are always posted: gloo's own thread takes what
    comes while the worker computes, and no thread of Python's has to run for it.
    """

    def __init__(
        self,
        expected: Sequence[tuple[int, int]],
        *,
        direction: int,
        boundary: int,
        cut: int = 0,
        group: Any = None,
        pinned: bool = False,
        memory: SharedMemory | None = None,
    ) -> None:
        self._expected = tuple(expected)
        self._direction, self._boundary = direction, boundary
        self._group, self._tags = group, _tags(direction, cut)
        self._pinned = pinned  # what a GPU can copy from by itself
        self._memory = memory
        self._taken = 0
        self._sizes: defaultdict[int, Sizes] = defaultdict(Sizes)  # by peer
        self._posted: deque[_Posted] = deque()
        self._open()

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

    def _open(self) -> None:
        self._post_ahead()

    def _post_ahead(self) -> None:
        upcoming = [peer for peer, _ in self._expected[self._taken : self._taken + DEPTH] if not self._sharing(peer)]
        for peer in upcoming[len(self._posted) :]:
            self._post(peer)

    def _sharing(self, peer: int) -> SharedMemory | None:
        """What `peer` sends through, where it shares memory with this rank."""
        return self._memory if self._memory and peer in self._memory.peers else None

    def _post_header(self, peer: int) -> tuple[Tensor, Any]:
        header = torch.empty(HEADER_INTEGERS, dtype=torch.int64)
        return header, self._post_receive(header, peer, self._tags[0])

    def _post_receive(self, buffer: Tensor, peer: int, tag: int) -> Any:
        """Begin to receive from `peer`. Raises PeerLost: gloo refuses at once where the peer is gone."""
        with translated(f"receives of the {_DIRECTIONS[self._direction]}", peer=peer):
            return dist.irecv(buffer, peer, group=self._group, tag=tag)

    def _post(self, peer: int) -> None:
        """Post the receives of a packet's header and of what is known of its payload."""
        ahead = self._sizes[peer].ahead()
        if _is_joined(ahead):
            message = self._buffer(HEADER_BYTES + ahead)
            header, payload = message[:HEADER_BYTES].view(torch.int64), message[HEADER_BYTES:]
            works = [self._post_receive(message, peer, self._tags[0])]
        else:
            header, work = self._post_header(peer)
            payload, works = self._buffer(ahead), [work]
            if ahead:
                works.append(self._post_receive(payload, peer, self._tags[1]))
        self._posted.append(_Posted(header, payload, works))

    def _receive(self, peer: int, deadline: float, message: str) -> tuple[Tensor, Tensor]:
        """Return the next packet's header and payload."""
        self._post_ahead()  # now, when there is nothing to do but wait
        if memory := self._sharing(peer):
            header = memory.pipes.take(peer, self._tags[0], deadline=deadline, message=message)
            place = place_of(header)
            return header, memory.receive(peer, *place, payload_bytes(header)) if place else _NOTHING
        posted = self._posted.popleft()
        for work in reversed(posted.works):  # sent one behind the other: the first wait is for all
            wait_for(work, deadline, message, peer=peer)
        size, ahead, payload = payload_bytes(posted.header), len(posted.payload), posted.payload
        self._sizes[peer].learn(size)
        if size > ahead:
            payload = self._buffer(size)
            payload[:ahead] = posted.payload
            rest = self._post_receive(payload[ahead:], peer, self._tags[2])
            wait_for(rest, deadline, message, peer=peer)
        return posted.header, payload[:size]

    def _buffer(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned)

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


@dataclass(frozen=True, eq=False)
class _Posted:
    """The receives of one packet: of its header and of its payload's first bytes, in one message or two."""

    header: Tensor
    payload: Tensor
    works: Sequence[Any]


class WireInbox(Inbox):
    """An Inbox whose payloads come over a wire, each received as soon as its header says how large it is.

    A thread does that. A receive for more than is sent does not end on a wire, and one that waits for long occupies
    the GPU: so none is posted before its header is here.
    """

    def __init__(self, wire: Wire, expected: Sequence[tuple[int, int]], **options: Any) -> None:
        self._wire = wire
        self._arrived: queue.Queue[tuple[Tensor, Tensor] | BaseException] = queue.Queue(maxsize=DEPTH)
        super().__init__(expected, **options)

    def _open(self) -> None:
        if self._expected:
            threading.Thread(target=self._bring, name=f"inbox {_DIRECTIONS[self._direction]}", daemon=True).start()

    def _receive(self, peer: int, deadline: float, message: str) -> tuple[Tensor, Tensor]:
        try:
            found = self._arrived.get(timeout=max(deadline - time.monotonic(), 0.001))
        except queue.Empty:
            raise DeadlinePassed(message, peer=peer) from None
        if isinstance(found, BaseException):
            with translated(message, peer=peer):
                raise found
        return found

    def _bring(self) -> None:
        headers: deque[tuple[Tensor, Any]] = deque()
        upcoming = iter(self._expected)
        try:
            for peer, _ in self._expected:
                while len(headers) < DEPTH and (following := next(upcoming, None)) is not None:
                    headers.append(self._post_header(following[0]))
                header, work = headers.popleft()
                work.wait()
                payload = torch.empty(payload_bytes(header), dtype=torch.uint8, device=self._wire.device)
                if len(payload):
                    dist.irecv(payload, peer, group=self._wire.group, tag=self._tags[2]).wait()
                self._arrived.put((header, payload))
        except BaseException as error:  # handed on to the worker, who raises it
            self._arrived.put(error)


class Shelf:
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

    def __init__(self, *, limit: int = 8, memory: SharedMemory | None = None) -> None:
        self._limit = limit  # packets under way; the schedule bounds them too
        self._memory = memory
        self._under_way: deque[_Sent] = deque()
        self._sizes: defaultdict[tuple[int, int, int], Sizes] = defaultdict(Sizes)  # by (peer, direction, cut)

    def send(
        self,
        packet: Packet,
        peer: int,
        *,
        timeout: float,
        action: str,
        cut: int = 0,
        group: Any = None,
        wire: Wire | None = None,
    ) -> None:
        """Start sending; wait for the oldest packet only where too many are under way."""
        while len(self._under_way) >= self._limit:
            self._finish_oldest(time.monotonic() + timeout, timeout)
        if self._memory and not wire and (lending := self._memory.lend(peer)):
            message = f"{action} waited {timeout:g} s for rank {peer} to read its packet's header"
            header = _lent(packet, lending)
            tag, deadline = _tags(packet.direction, cut)[0], time.monotonic() + timeout
            self._memory.pipes.put(peer, tag, header, deadline=deadline, message=message)
            self._under_way.append(_Sent(peer, action, shared=lending))
            return
        if wire:
            header, payload = encode(packet, device=wire.device)
            messages, carriers = (header, None, payload if len(payload) else None), (group, group, wire.group)
        else:
            messages = divided(packet, self._sizes[peer, packet.direction, cut])
            carriers = (group, group, group)
        with translated(f"sending for {action}", peer=peer):
            works = [
                (dist.isend(message, peer, group=carrier, tag=tag), message)
                for message, carrier, tag in zip(messages, carriers, _tags(packet.direction, cut), strict=True)
                if message is not None
            ]
        self._under_way.append(_Sent(peer, action, works))

    def finish(self, *, timeout: float) -> None:
        """End a segment: wait until everything sent has been taken. Raises DeadlinePassed or PeerLost."""
        deadline = time.monotonic() + timeout
        while self._under_way:
            self._finish_oldest(deadline, timeout)
        self._sizes.clear()  # the next segment has new inboxes

    def _finish_oldest(self, deadline: float, timeout: float) -> None:
        sent = self._under_way.popleft()
        message = f"{sent.action} waited {timeout:g} s for rank {sent.peer} to take its packet"
        for work, _ in sent.works:
            wait_for(work, deadline, message, peer=sent.peer)
        while sent.shared and not sent.shared.taken:
            if time.monotonic() >= deadline:
                raise DeadlinePassed(message, peer=sent.peer)
            if self._memory and self._memory.pipes.ended(sent.peer) and not sent.shared.taken:
                raise PeerLost(f"lost rank {sent.peer} before it took the packet of {sent.action}")
            time.sleep(_LOOK_AGAIN)


@dataclass(frozen=True, eq=False)
class _Sent:
    """A packet under way: the messages that carry it, each with its memory, or what its payload was written to."""

    peer: int
    action: str
    works: Sequence[tuple[Any, Tensor]] = ()
    shared: Lending | None = None


def divided(packet: Packet, sizes: Sizes) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return a packet's messages, one for each tag. One that is empty is sent where a receive is posted for it."""
    ahead = sizes.ahead()
    if _is_joined(ahead):
        message = _joined(packet)
        header, payload, posted = message[: HEADER_BYTES + ahead], message[HEADER_BYTES:], None
    else:
        header, payload = encode(packet)
        posted = payload[:ahead] if ahead else None
    sizes.learn(len(payload))
    return header, posted, payload[ahead:] if len(payload) > ahead else None


def _is_joined(ahead: int) -> bool:
    """Whether a payload of which so much is posted ahead comes in one message with its header.

    A large one is sent from where it is: to copy it behind its header takes longer than a message does.
    """
    return 0 < ahead <= _JOINED_BYTES


def _joined(packet: Packet) -> Tensor:
    """Return a packet's header and, where it is not inside it, its payload: uint8, one behind the other."""
    whole = torch.empty(HEADER_BYTES, dtype=torch.uint8)

    def behind(size: int) -> Tensor:
        nonlocal whole
        pinned = any(slot.rows.is_cuda for slot in packet.slots)
        whole = torch.empty(HEADER_BYTES + size, dtype=torch.uint8, pin_memory=pinned)
        return whole[HEADER_BYTES:]

    header, _ = encode(packet, memory=behind)
    whole[:HEADER_BYTES] = header.view(torch.uint8)
    return whole


def _lent(packet: Packet, lending: Lending) -> Tensor:
    """Write a packet's payload where the peer can read it; return the header, which says where."""
    header, _ = encode(packet, memory=lending, packed=False)  # nothing is sent: to pack saves nothing
    if lending.place:
        set_place(header, *lending.place)
    return header


def wait_for(work: Any, deadline: float, message: str, *, peer: int) -> None:
    """Wait for one communication until `deadline` (time.monotonic). Raises DeadlinePassed (`message`) or PeerLost."""
    with translated(message, peer=peer, deadline=deadline):
        work.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
