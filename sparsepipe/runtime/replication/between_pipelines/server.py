"""What a rank offers the other pipelines' ranks: a port that answers those who know its secret."""

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from torch import Tensor

from ...failures import DeadlinePassed, PacketMismatch, PeerLost
from ...pipelines.base import Address
from ...wire.encryption import Encryption, tls_of
from ...wire.handshake import Caller, Listener, new_secret
from .messages import NO_PAYLOAD, CalledOff, Message, receive, send

_MOST_CONNECTIONS = 1024
_TO_CLOSE = 5.0  # seconds for answers under way, when the server closes

Answer = tuple[Mapping[str, Any], Tensor]  # facts and payload


class Handler(Protocol):
    """Answers one kind of request. Called by a thread for each connection."""

    def payload_bytes(self, facts: Mapping[str, Any]) -> int:
        """Return how long the payload of a request with these facts is. Raises PacketMismatch if they say nothing
        that this rank knows of.
        """
        ...

    def answer(self, request: Message) -> Answer:
        """Raises CalledOff if there is none."""
        ...


class Server:
    """Listens until it is closed, and answers each connection by a thread of its own.

    Who connects hears first which tensors there are, and how many elements each has.
    """

    def __init__(
        self,
        host: str,
        sizes: Mapping[str, int],
        handlers: Mapping[str, Handler],
        *,
        timeout: float,
        encryption: Encryption | None = None,
    ) -> None:
        """`handlers` by the "what" of a request. A request that has begun must have come within `timeout` seconds.
        `encryption`: what follows the handshake goes through TLS.
        """
        self._sizes, self._handlers, self._timeout = dict(sizes), dict(handlers), timeout
        self._idle = threading.Condition()
        self._connections: set[socket.socket] = set()
        self._busy = 0  # requests that have come and are not answered yet
        secret = new_secret()
        self._listener = Listener(host, secret, self._begin, tls=tls_of(encryption, server_side=True))
        self.address = Address(host, self._listener.port, secret.hex())

    def close(self) -> None:
        """Answer what was asked, and listen no more."""
        with self._idle:
            self._idle.wait_for(lambda: not self._busy, timeout=_TO_CLOSE)
        self._listener.close()
        with self._idle:
            for connection in self._connections:
                with suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)  # TLS's own takes it from who reads

    def _begin(self, caller: Caller) -> None:
        connection = caller.connection
        with self._idle:
            room = len(self._connections) < _MOST_CONNECTIONS
            if room:
                self._connections.add(connection)
        if room:
            threading.Thread(target=self._serve, args=(connection,), name="averages: answer", daemon=True).start()
        else:
            connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            self._send(connection, {"tensors": self._sizes}, NO_PAYLOAD)
            while True:
                request = receive(connection, self._payload_bytes, seconds=self._timeout, since_begun=True)
                with self._counted():
                    self._answer(connection, request)
        except (OSError, PacketMismatch):
            pass  # it has gone, or speaks another language
        finally:
            with self._idle:
                self._connections.discard(connection)
            connection.close()

    def _answer(self, connection: socket.socket, request: Message) -> None:
        facts: Mapping[str, Any]
        try:
            facts, payload = self._handlers[request.facts["what"]].answer(request)
        except (CalledOff, DeadlinePassed, PeerLost) as error:
            facts, payload = {"called_off": str(error)}, NO_PAYLOAD
        self._send(connection, facts, payload)

    def _send(self, connection: socket.socket, facts: Mapping[str, Any], payload: Tensor) -> None:
        send(connection, facts, payload, deadline=time.monotonic() + self._timeout)

    def _payload_bytes(self, facts: Mapping[str, Any]) -> int:
        what = facts.get("what")
        if not isinstance(what, str) or what not in self._handlers:
            raise PacketMismatch("message.kind_unknown", f"a request has the unknown kind {what!r}")
        return self._handlers[what].payload_bytes(facts)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a request as under way while it is answered."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        with self._idle:
            self._busy += more
            self._idle.notify_all()
