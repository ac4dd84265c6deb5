"""The coordinator's sockets: who connects is heard only once it has proved that it has the job's secret.

Strangers cost nothing but their own connections: who says something else is shut out, and who says nothing is shut out
after a while, or when too many do so. Lines are bounded, and so is what a peer leaves unread.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from ...errors import InputError
from ...host.keep_alive import keep_alive
from .messages import MOST_BYTES, read_hello
from .proof import REPLY_BYTES, confirmation, nonce, proves

_SECONDS = 10.0  # for a stranger that connects and says nothing
_MOST_SILENT = 64  # connections that have not said who they are; beyond, the oldest is shut
_MOST_UNREAD = 2 * MOST_BYTES
_MOST_HELLO = 256  # bytes


class Handler(Protocol):
    """What a switchboard calls when a rank that proved itself connects, sends a line, or disconnects."""

    def connected(self, peer: "Peer") -> None:
        """A rank has said who it is."""
        ...

    def said(self, peer: "Peer", line: bytes) -> None:
        """A rank has sent a line. Raises InputError for what is none of the protocol: its connection is closed."""
        ...

    def disconnected(self, peer: "Peer") -> None:
        """The connection of a rank that was `connected` has ended."""
        ...


class Switchboard:
    """Makes a `Peer` of each connection, and knows those that have not said who they are."""

    def __init__(self, secret: bytes, handler: Handler, *, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: what follows the greeting goes through that."""
        self.secret, self.handler, self.tls = secret, handler, tls
        self._silent: dict[Peer, None] = {}  # the oldest first
        self._open: set[Peer] = set()

    def __call__(self) -> "Peer":
        peer = Peer(self)
        self._open.add(peer)
        return peer

    def gone(self, peer: "Peer") -> None:
        """A connection has ended."""
        self.heard(peer)
        self._open.discard(peer)

    def shut_all(self) -> None:
        """Close every connection at once."""
        for peer in list(self._open):
            peer.transport.abort()
            if peer.shaking_hands:
                peer.shaking_hands.cancel()

    def await_word(self, peer: "Peer") -> None:
        """Give a stranger some seconds, and the oldest stranger none where there are too many."""
        self._silent[peer] = None
        if len(self._silent) > _MOST_SILENT:
            self.shut(next(iter(self._silent)))
        asyncio.get_running_loop().call_later(_SECONDS, self._shut_if_silent, peer)

    def heard(self, peer: "Peer") -> None:
        """A peer is no stranger any more, or is gone."""
        self._silent.pop(peer, None)

    def shut(self, peer: "Peer") -> None:
        """Close a connection at once."""
        self.heard(peer)
        peer.transport.abort()

    def _shut_if_silent(self, peer: "Peer") -> None:
        if peer in self._silent:
            self.shut(peer)


class Peer(asyncio.Protocol):
    """One connection: a stranger, then a rank that has proved itself, then one that has said who it is."""

    def __init__(self, board: Switchboard) -> None:
        self._board = board
        self._nonce = nonce()
        self._heard = bytearray()
        self._take: Callable[[], bool] = self._take_reply
        self.transport: asyncio.Transport
        self.shaking_hands: asyncio.Task[None] | None = None
        self.who: tuple[int, int, int] | None = None  # pipeline, rank, attempt

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        connection = transport.get_extra_info("socket")
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            keep_alive(connection)
        self._board.await_word(self)
        transport.write(self._nonce)

    def data_received(self, data: bytes) -> None:
        self._heard += data
        if not self.shaking_hands:
            self._take_all()

    def connection_lost(self, error: Exception | None) -> None:
        self._board.gone(self)
        if self.who is not None:
            self._board.handler.disconnected(self)

    def send(self, line: bytes) -> None:
        """Send a line; a peer that reads none of its answers is shut out."""
        if not self.transport.is_closing():
            self.transport.write(line)
            if self.transport.get_write_buffer_size() > _MOST_UNREAD:
                self._board.shut(self)

    def _take_all(self) -> None:
        try:
            while not self.transport.is_closing() and self._take():
                pass
        except InputError:
            self._board.shut(self)

    def _take_reply(self) -> bool:
        if len(self._heard) < REPLY_BYTES:
            return False
        said = bytes(self._heard[:REPLY_BYTES])
        del self._heard[:REPLY_BYTES]
        if not proves(self._board.secret, self._nonce, said):
            raise InputError("call.stranger", "a stranger")
        self._board.heard(self)
        self._take = self._take_hello
        if self._board.tls is not None:
            if self._heard:
                raise InputError("call.in_clear", "said in clear")
            self.transport.pause_reading()  # what comes next is TLS's
            self.shaking_hands = asyncio.get_running_loop().create_task(self._shake_hands(self._board.tls))
        self.transport.write(confirmation(self._board.secret, self._nonce, said))
        return self.shaking_hands is None

    async def _shake_hands(self, tls: ssl.SSLContext) -> None:
        """Go on through TLS, or not at all."""
        loop, seconds = asyncio.get_running_loop(), _SECONDS
        try:
            found = await loop.start_tls(self.transport, self, tls, server_side=True, ssl_handshake_timeout=seconds)
        except OSError:  # ssl.SSLError, TimeoutError and ConnectionError are such
            self._board.shut(self)
            self._board.gone(self)
            return
        assert isinstance(found, asyncio.Transport)
        self.transport, self.shaking_hands = found, None
        self._take_all()  # it may have said something meanwhile

    def _take_hello(self) -> bool:
        line = self._line(_MOST_HELLO)
        if line is None:
            return False
        self.who = read_hello(line)
        self._take = self._take_request
        self._board.handler.connected(self)
        return True

    def _take_request(self) -> bool:
        line = self._line(MOST_BYTES)
        if line is None:
            return False
        self._board.handler.said(self, line)
        return True

    def _line(self, most: int) -> bytes | None:
        end = self._heard.find(b"\n", 0, most)
        if end < 0:
            if len(self._heard) >= most:
                raise InputError("call.too_long", f"a line of more than {most} bytes")
            return None
        line = bytes(self._heard[:end])
        del self._heard[: end + 1]
        return line
