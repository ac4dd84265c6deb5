"""Packets between adjacent stages: taken in while the worker computes, sends kept until done, every wait limited.

Each cut and direction has a way of its own from rank to rank, so that neither the two directions nor the several cuts
between a pair of ranks can be taken for each other, and a header cannot be for another's payload.

    ranks that share memory      the header, through a pipe (`pipes`), says where the payload is (`shared_memory`)
    GPUs of their own, by NCCL   the header through a socket, the payload from device to device, on a link of its own
                                 (`nccl`): its order is then that of the headers
    other ranks                  header and payload through a socket (`sockets`), from pinned memory if it was a GPU's
    stages of one rank           nothing is sent: packets wait in a queue in memory
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from torch import Tensor

from ..failures import PacketMismatch
from .packet import Packet, arrives_at, decode


class Sending(Protocol):
    """A packet on its way, whose memory is kept until the peer has it or the system has all of it."""

    def wait(self, deadline: float, message: str) -> None:
        """Wait, once, until `deadline` (time.monotonic). Raises DeadlinePassed (`message`) or PeerLost."""
        ...


class Transport(Protocol):
    """A way for packets between this rank and some of the others: sockets, shared memory, NCCL.

    A tag distinguishes packets of one cut and direction from others between the same two ranks: those with the same tag
    come in the order in which they were sent, and do not wait for those with another.
    """

    def reaches(self, peer: int) -> bool:
        """Return whether packets to and from `peer` go this way."""
        ...

    def send(self, packet: Packet, peer: int, tag: int, *, deadline: float, message: str) -> Sending:
        """Start sending; return what to wait for. Its tensors must not change before that has ended.

        Waits at most until `deadline`. Raises DeadlinePassed (`message`) or PeerLost.
        """
        ...

    def expect(self, peers: Sequence[int], tag: int) -> None:
        """Say from whom the next packets with a tag will come, one after the other: some of it may be done ahead."""
        ...

    def receive(self, peer: int, tag: int, *, deadline: float, message: str) -> tuple[Tensor, Tensor]:
        """Return header (int64 [512]) and payload (uint8 [n]) of the next packet that `peer` sent with a tag.

        The payload may lie in memory that goes back to the sender when its last view is gone. Raises DeadlinePassed
        (`message`), PeerLost, or PacketMismatch for what is no packet.
        """
        ...


class PacketSource(Protocol):
    """The packets that a stage will receive, in the order of the action list."""

    def peer(self) -> int:
        """The rank that sends the next packet."""
        ...

    def take(self, minibatch: int, *, timeout: float, action: str) -> Packet:
        """Return the packet of `minibatch`, which must be next, within `timeout` seconds.

        `action` is who asks, for messages. Raises DeadlinePassed, PeerLost or PacketMismatch.
        """
        ...


_DIRECTIONS = ("forward", "backward")


def tag_of(direction: int, cut: int) -> int:
    """Return what distinguishes the packets of one direction and cut from others between the same ranks."""
    return 2 * cut + direction


class Inbox:
    """The packets of one direction and cut that an epoch will bring from other ranks, in the order of the action list.

    `expected` lists (peer, minibatch). Each comes by the first of `transports` that reaches its peer. `number`
    says what a minibatch is called in packets, if that is not known before it sets out.
    """

    def __init__(
        self,
        expected: Sequence[tuple[int, int]],
        *,
        direction: int,
        boundary: int,
        cut: int = 0,
        transports: Sequence[Transport],
        number: Callable[[int], int] | None = None,
    ) -> None:
        self._number = number
        self._expected = tuple(expected)
        self._direction, self._boundary = direction, boundary
        self._tag = tag_of(direction, cut)
        self._transports = tuple(transports)
        self._taken = 0
        for transport in self._transports:
            transport.expect([peer for peer, _ in self._expected if transport.reaches(peer)], self._tag)

    def take(self, minibatch: int, *, timeout: float, action: str) -> Packet:
        """Return the packet of `minibatch`, which must be next. Raises DeadlinePassed, PeerLost or PacketMismatch."""
        peer, due = self._expected[self._taken]
        due = self._number(due) if self._number else due
        if due != minibatch:
            raise PacketMismatch(
                "packet.other_minibatch",
                f"{action} needs minibatch {minibatch}, but {due} from rank {peer} comes next",
                action=action,
                minibatch=minibatch,
                due=due,
                peer=peer,
            )
        message = (
            f"{action} waited {timeout:g} s for the {_DIRECTIONS[self._direction]} of minibatch {minibatch} "
            f"from rank {peer}"
        )
        carrier, deadline = _carrier(self._transports, peer), time.monotonic() + timeout
        header, payload = carrier.receive(peer, self._tag, deadline=deadline, message=message)
        self._taken += 1
        if (left := arrives_at(header) - time.monotonic()) > 0:
            time.sleep(left)
        return self._checked(decode(header, payload), peer, minibatch)

    def peer(self) -> int:
        """The rank that sends the next packet."""
        return self._expected[self._taken][0]

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
            raise PacketMismatch("packet.sides_differ", f"the packet from rank {peer} does not match: {sides}")
        return packet


class LocalQueue:
    """Queue from one stage of this rank to its next stage, in order; nothing is sent."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._packets: deque[Packet] = deque()

    def put(self, packet: Packet) -> None:
        """Leave a packet, free of the graph that made its rows."""
        slots = tuple(replace(slot, rows=slot.rows.detach()) for slot in packet.slots)
        self._packets.append(replace(packet, slots=slots, kept=()))

    def take(self, minibatch: int, *, timeout: float, action: str) -> Packet:
        """Return the packet of `minibatch`, which must be next: the rank's own list has put it there before."""
        found = self._packets.popleft() if self._packets else None
        if found is None or found.minibatch != minibatch:
            there = "nothing" if found is None else f"minibatch {found.minibatch}"
            raise PacketMismatch(
                "packet.other_minibatch",
                f"{action} needs minibatch {minibatch}, but {there} is in the queue",
                action=action,
                minibatch=minibatch,
            )
        return found

    def peer(self) -> int:
        return self._rank


class JoinedSource:
    """Packets of a neighbouring stage, each with those that this rank's other stages kept for the same minibatch."""

    def __init__(self, neighbour: PacketSource, queues: Sequence[tuple[int, LocalQueue]]) -> None:
        """`queues`: (stage that the packets are from, its queue) each."""
        self._neighbour, self._queues = neighbour, tuple(queues)

    def take(self, minibatch: int, *, timeout: float, action: str) -> Packet:
        packet = self._neighbour.take(minibatch, timeout=timeout, action=action)
        staying = ((k, queue.take(minibatch, timeout=timeout, action=action)) for k, queue in self._queues)
        return replace(packet, kept=tuple(staying))

    def peer(self) -> int:
        return self._neighbour.peer()


class Outbox:
    """Packets on their way out of this rank: sent without waiting, their memory kept until the peer has them."""

    def __init__(self, transports: Sequence[Transport], *, limit: int = 8) -> None:
        self._transports, self._limit = tuple(transports), limit  # packets under way; the schedule bounds them too
        self._under_way: deque[_Sent] = deque()

    def send(self, packet: Packet, peer: int, *, timeout: float, action: str, cut: int = 0) -> None:
        """Start sending; wait for the oldest packet only where too many are under way."""
        while len(self._under_way) >= self._limit:
            self._finish_oldest(time.monotonic() + timeout, timeout)
        message = f"{action} waited {timeout:g} s for rank {peer} to read its packet's header"
        deadline, tag = time.monotonic() + timeout, tag_of(packet.direction, cut)
        carrier = _carrier(self._transports, peer)
        sending = carrier.send(packet, peer, tag, deadline=deadline, message=message)
        self._under_way.append(_Sent(peer, action, sending))

    def finish(self, *, timeout: float) -> None:
        """Wait until everything sent has been taken. Raises DeadlinePassed or PeerLost."""
        deadline = time.monotonic() + timeout
        while self._under_way:
            self._finish_oldest(deadline, timeout)

    def _finish_oldest(self, deadline: float, timeout: float) -> None:
        sent = self._under_way.popleft()
        sent.sending.wait(deadline, f"{sent.action} waited {timeout:g} s for rank {sent.peer} to take its packet")


class _Sent(NamedTuple):
    """A packet under way."""

    peer: int
    action: str
    sending: Sending


def _carrier(transports: Sequence[Transport], peer: int) -> Transport:
    return next(transport for transport in transports if transport.reaches(peer))
