"""The listener's end of messages: a handler in an event loop receives the messages of callers, one after the other.

Messages are bounded, and so is what a caller leaves unread.
"""

import asyncio
import hmac
import socket
import ssl
from functools import partial
from typing import Any, Protocol

from ...errors import InputError
from .frames import MOST_BYTES, Frame, FrameBuffer, lengths
from .handshake import SECONDS, Caller, Listener

_MOST_UNREAD = 2 * MOST_BYTES
_KEEP_ALIVE = {  # by their names on Linux; other systems have some of them, and defaults of their own
    "TCP_KEEPIDLE": 5,  # seconds of silence before the other end is asked
    "TCP_KEEPINTVL": 3,  # seconds between two such questions
    "TCP_KEEPCNT": 3,  # without an answer: it is gone
    "TCP_USER_TIMEOUT": 14_000,  # milliseconds that what was sent may be unconfirmed
}


class Handler(Protocol):
    """Callbacks of a switchboard: a caller connects, sends a message, or disconnects."""

    def connected(self, peer: "Peer") -> None:
        """Take up a caller. Raises InputError for one that no one knows: its connection is closed."""
        ...

    def said(self, peer: "Peer", message: dict[str, Any]) -> None:
        """Take what a caller says. Raises InputError for what is none of the protocol: its connection is closed."""
        ...

    def disconnected(self, peer: "Peer") -> None:
        """Forget a caller that was `connected`."""
        ...


class Switchboard:
    """Listens at an address, in the event loop that it is given, and makes a `Peer` of each caller."""

    def __init__(
        self,
        host: str,
        secret: bytes,
        handler: Handler,
        loop: asyncio.AbstractEventLoop,
        *,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Listen at once. `tls`: what follows the handshake goes through that. Raises OSError."""
        self.handler, self.tls = handler, tls
        self.peers: set[Peer] = set()
        self._loop = loop
        self._connecting: set[asyncio.Task[None]] = set()
        self._listener = Listener(host, secret, self._hand_over, port=port)
        self.address = (self._listener.host, self._listener.port)

    def close(self) -> None:
        """Listen no more, and close every connection at once. In the event loop, or when that is not running."""
        self._listener.close()
        for task in self._connecting:
            task.cancel()
        for peer in list(self.peers):
            peer.shut()

    def _hand_over(self, caller: Caller) -> None:
        try:
            self._loop.call_soon_threadsafe(self._connect, caller)
        except RuntimeError:  # the loop is closed
            caller.connection.close()

    def _connect(self, caller: Caller) -> None:
        task = self._loop.create_task(self._make_peer(caller))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _make_peer(self, caller: Caller) -> None:
        connection = caller.connection
        connection.setblocking(False)
        seconds = SECONDS if self.tls else None
        try:
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                _keep_alive(connection)
            await self._loop.connect_accepted_socket(
                partial(Peer, self, caller), connection, ssl=self.tls, ssl_handshake_timeout=seconds
            )
        except OSError:  # ssl.SSLError, TimeoutError and ConnectionError are such
            connection.close()


class Peer(asyncio.Protocol):
    """A caller."""

    def __init__(self, board: Switchboard, caller: Caller) -> None:
        self.who = caller.who
        self._board = board
        self._again = caller.name if board.tls else b""  # what it has to say within TLS
        self._heard = FrameBuffer(most_head=MOST_BYTES, most_payload=0)
        self._known = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._board.peers.add(self)
        if not self._again:
            self._take(b"")

    def data_received(self, data: bytes) -> None:
        if self._again:
            count = min(len(data), len(self._again))
            if not hmac.compare_digest(data[:count], self._again[:count]):
                self.shut()
                return
            self._again, data = self._again[count:], data[count:]
        if not self._again:
            self._take(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._board.peers.discard(self)
        if self._known:
            self._board.handler.disconnected(self)

    def send(self, head: bytes) -> None:
        """Send a message; a caller that reads none of its answers is shut out."""
        if not self._transport.is_closing():
            self._transport.write(lengths(len(head), 0) + head)
            if self._transport.get_write_buffer_size() > _MOST_UNREAD:
                self.shut()

    def shut(self) -> None:
        """Close its connection at once."""
        self._transport.abort()

    def _take(self, data: bytes) -> None:
        handler = self._board.handler
        try:
            if not self._known:
                handler.connected(self)
                self._known = True
            self._heard.add(data)
            while not self._transport.is_closing() and (frame := self._next()):
                handler.said(self, frame.head)
        except InputError:
            self.shut()

    def _next(self) -> Frame | None:
        try:
            return self._heard.take_frame()
        except ValueError as error:
            raise InputError("call.malformed", str(error)) from None


def _keep_alive(connection: socket.socket) -> None:
    """Have the system ask now and then whether the other end is alive; else it waits for it for hours.

    A host that loses power goes without a word. Not on ranks' connections: one that computes does not read for long.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
