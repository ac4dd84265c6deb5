"""Connections of a rank to those that hold its tensors in other pipelines."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ...failures import DeadlinePassed, PacketMismatch, PeerLost, seconds_left
from ...pipelines.base import Address, Coordinator, Holder
from ...wire.encryption import Encryption, tls_of
from ...wire.handshake import call
from .messages import CalledOff, Message, receive, send


class Link:
    """A connection to a rank of another pipeline: requests and their answers, one after the other."""

    def __init__(self, holder: Holder, *, pipeline: int, deadline: float, encryption: Encryption | None = None) -> None:
        """Connect for a rank of `pipeline`. `encryption`: what follows the handshake goes through TLS.

        Raises OSError, or PacketMismatch if it is no such rank.
        """
        self.holder, self.bytes = holder, 0
        address, tls = holder.address, tls_of(encryption, server_side=False)
        secret, who = bytes.fromhex(address.secret), (pipeline, 0, 0)
        self._connection = call(address.host, address.port, secret, who, deadline=deadline, tls=tls)
        try:
            told = receive(self._connection, lambda facts: 0, seconds=seconds_left(deadline)).facts.get("tensors")
            if not isinstance(told, dict) or not all(isinstance(size, int) for size in told.values()):
                raise PacketMismatch("peer.no_tensors", "a rank's message lacks its list of tensors")
        except BaseException:
            self._connection.close()
            raise
        self.sizes: Mapping[str, int] = told

    def ask(self, facts: Mapping[str, Any], payload: Tensor, *, deadline: float) -> None:
        """Send a request."""
        self.bytes += send(self._connection, facts, payload, deadline=deadline)

    def answer(
        self,
        expected: int | Callable[[Mapping[str, Any]], int],
        *,
        deadline: float,
        look: Callable[[], None] | None = None,
    ) -> Message:
        """Return the answer to the last request, with a payload of `expected` bytes, which its facts may tell.

        Raises CalledOff if the other side has none.
        """

        def payload_bytes(facts: Mapping[str, Any]) -> int:
            if "called_off" in facts:
                raise CalledOff(str(facts["called_off"]))
            return expected if isinstance(expected, int) else expected(facts)

        found = receive(self._connection, payload_bytes, seconds=seconds_left(deadline), look=look)
        self.bytes += found.payload.nbytes
        return found

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True, eq=False)
class Route:
    """A rank of another pipeline, and which of this rank's tensors are exchanged with it, in the order of names."""

    link: Link
    names: tuple[str, ...]


@dataclass(eq=False)
class Peers:
    """Ranks of other pipelines that hold this rank's tensors, with a connection to each."""

    coordinator: Coordinator
    sizes: Mapping[str, int]  # of this rank's tensors
    encryption: Encryption | None = None
    _links: dict[Address, Link] = field(default_factory=dict)

    def routes(self, pipeline: int, names: Sequence[str], *, deadline: float) -> list[Route]:
        """Return the ranks that hold these tensors in a pipeline, each tensor at one of them.

        Raises CalledOff if the pipeline is gone, does not answer, or has no such tensor.
        """
        left, found = set(names), []
        for holder in sorted(self.coordinator.holders(pipeline), key=lambda holder: (holder.rank, holder.layers)):
            with called_off(pipeline):
                link = self.link(holder, deadline)
            here = left & link.sizes.keys()
            for name in here:
                if link.sizes[name] != self.sizes[name]:
                    sizes = f"{link.sizes[name]} elements of {name}, {self.sizes[name]} here"
                    raise CalledOff(f"pipeline {pipeline} has {sizes}")
            left -= here
            if here:
                found.append(Route(link, tuple(sorted(here))))
        if left:
            raise CalledOff(f"pipeline {pipeline} is gone, or has no {min(left)}")
        return found

    def drop(self, links: Sequence[Link]) -> None:
        """Close connections on which an answer may still come that no one wants."""
        for link in links:
            self._links.pop(link.holder.address, None)
            link.close()

    def close(self) -> None:
        self.drop(list(self._links.values()))

    def link(self, holder: Holder, deadline: float) -> Link:
        """Return the connection to a rank. Raises OSError or PacketMismatch if there is none to be had."""
        if holder.address not in self._links:
            own = self.coordinator.pipeline
            self._links[holder.address] = Link(holder, pipeline=own, deadline=deadline, encryption=self.encryption)
        return self._links[holder.address]

    def look(self, pipeline: int, addresses: Sequence[Address]) -> None:
        """Raise CalledOff where a pipeline, or one of its ranks at these addresses, is no longer alive."""
        there = {holder.address for holder in self.coordinator.holders(pipeline)}
        if not there or not there.issuperset(addresses):
            raise CalledOff(f"pipeline {pipeline} is gone")


@contextmanager
def called_off(pipeline: int) -> Iterator[None]:
    """Call a merge off where a rank of a pipeline, inside, is lost, late or not understood."""
    try:
        yield
    except (OSError, PeerLost, DeadlinePassed, PacketMismatch) as error:
        raise CalledOff(f"pipeline {pipeline}: {str(error) or type(error).__name__}") from error
