"""What a rank offers the other pipelines' ranks: a port that answers those who know its secret."""

import hmac
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from torch import Tensor

from ...encryption import Encryption
from ...failures import DeadlinePassed, PacketMismatch, PeerLost
from ...pipelines.base import Address
from ...transport.greeting import SECRET_BYTES, Way, hello, welcome
from .messages import NO_PAYLOAD, CalledOff, Message, receive, send

_MOST_CONNECTIONS = 1024
_BACKLOG = 128
_TO_CLOSE = 5.0  # seconds for answers under way, when the server closes

Answer = tuple[Mapping[str, Any], Tensor]  # facts and payload


class Handler(Protocol):
    """Answers one kind of request. Called by a thread for each connection."""

    def payload_bytes(self, facts: Mapping[str, Any]) -> int:
        """Return how long the payload of a request with these facts is. Raises PacketMismatch where they say nothing
        that this rank knows of.
        """
        ...

    def answer(self, request: Message) -> Answer:
        """Raises CalledOff where there is none."""
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
        `encryption`: what follows the greeting goes through TLS.
        """
        self._sizes, self._handlers, self._timeout = dict(sizes), dict(handlers), timeout
        self._tls = encryption.context(server_side=True) if encryption else None
        self._secret = secrets.token_bytes(SECRET_BYTES)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        self.address = Address(host, self._socket.getsockname()[1], self._secret.hex())
        self._stopped, self._stop = socket.socketpair()
        self._idle = threading.Condition()
        self._connections: set[socket.socket] = set()
        self._busy = 0  # requests that have come and are not answered yet
        self._thread = threading.Thread(target=self._listen, name="averages: listen", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer what was asked, and listen no more."""
        deadline = time.monotonic() + _TO_CLOSE
        with self._idle:
            self._idle.wait_for(lambda: not self._busy, timeout=_TO_CLOSE)
        self._stop.close()
        self._thread.join(max(deadline - time.monotonic(), 1.0))
        with self._idle:
            for connection in self._connections:
                with suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)  # TLS's own takes it from who reads

    def _listen(self) -> None:
        with self._socket, self._stopped:
            for way, connection in welcome(self._socket, self._secret, until=self._stopped):
                with self._idle:
                    room = len(self._connections) < _MOST_CONNECTIONS
                    if room:
                        self._connections.add(connection)
                if not room:
                    connection.close()
                    continue
                given = (connection, way)
                threading.Thread(target=self._serve, args=given, name="averages: answer", daemon=True).start()

    def _serve(self, connection: socket.socket, way: Way) -> None:
        called = connection
        try:
            called.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = self._within_tls(called, way)
            self._send(connection, {"tensors": self._sizes}, NO_PAYLOAD)
            while True:
                request = receive(connection, self._payload_bytes, seconds=self._timeout, since_begun=True)
                with self._counted():
                    self._answer(connection, request)
        except (OSError, PacketMismatch):
            pass  # it has gone, or speaks another language
        finally:
            with self._idle:
                self._connections -= {called, connection}
            connection.close()

    def _within_tls(self, called: socket.socket, way: Way) -> socket.socket:
        """Return what is heard of a connection, and answered: TLS, where that is asked for, once hands are shaken.

        Whoever called says so once more within: nobody in between can have led the call here. Raises OSError.
        """
        if self._tls is None:
            return called
        called.settimeout(self._timeout)
        connection = self._tls.wrap_socket(called, server_side=True)
        with self._idle:
            self._connections.add(connection)  # the other has no descriptor any more
        greeting, said = hello(self._secret, *way), b""
        while len(said) < len(greeting) and (more := connection.recv(len(greeting) - len(said))):
            said += more
        if not hmac.compare_digest(said, greeting):
            connection.close()
            raise ConnectionError("a connection is not whose it was said to be")
        return connection

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
            raise PacketMismatch("message.kind_unknown", f"a request for {what!r}")
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
