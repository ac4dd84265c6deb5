"""What carries packets from one rank to another, and where a stage receives them."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from .packet import Packet


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
