"""Connections between processes that share a secret: each proves that it has it, and neither says it.

    listener ── WORD, nonce ───────────────────────────────────────► caller
    listener ◄─ nonce, who, HMAC(secret, "caller", all of this) ──── caller      who calls and what for: three numbers
    listener ── HMAC(secret, "listener", all of this) ─────────────► caller
    listener ◄═══════════════════════ TLS 1.3 ═════════════════════► caller      if the job encrypts, from here on
    listener ◄═ nonce, who ═════════════════════════════════════════ caller      again: no one in between changed it

So neither a recorded handshake nor a process that took the port of another is of use without the secret. A listener
hears all unauthenticated connections at once, and none costs it more than a descriptor for some seconds.

Standard library alone, and any Python from 3.7 on: this file is also sent to hosts without sparsepipe.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import selectors
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

WORD = b"spw1"  # of this version of the protocol: both ends say the same, or part
SECONDS = 10.0  # for a connection that does not authenticate itself
_MOST_SILENT = 64  # such connections; beyond, the oldest is shut
_NONCE_BYTES, PROOF_BYTES = 16, 32
_WHO = struct.Struct("!iiq")
OPENING_BYTES = len(WORD) + _NONCE_BYTES
NAME_BYTES = _NONCE_BYTES + _WHO.size  # a caller's nonce, and who it is
_BACKLOG = 1024
_PAUSE = 0.1  # seconds, if this process has no descriptor left
_LOOK = 0.25  # seconds between two looks whether it is of use to wait on
_LONGEST = 1e6  # seconds of one wait
_READ_BYTES = 2**16  # as much as a core's own cache holds between the kernel's copy and the next


class Caller(NamedTuple):
    """A caller that has proved to have the secret."""

    connection: socket.socket
    who: tuple[int, int, int]
    name: bytes  # as it came: within TLS it comes again


def new_secret() -> bytes:
    """Return a secret for a listener, or a job."""
    return os.urandom(32)


def opening() -> bytes:
    """Return what a listener says first."""
    return WORD + os.urandom(_NONCE_BYTES)


def reply(secret: bytes, heard: bytes, who: tuple[int, int, int]) -> bytes:
    """Return what a caller replies to an opening."""
    name = os.urandom(_NONCE_BYTES) + _WHO.pack(*who)
    return name + _proof(secret, b"caller", heard, name)


def confirmation(secret: bytes, said: bytes, name: bytes) -> bytes:
    """Return what a listener answers to a reply whose proof is right."""
    return _proof(secret, b"listener", said, name)


def call(
    host: str,
    port: int,
    secret: bytes,
    who: tuple[int, int, int],
    *,
    deadline: float,
    tls: ssl.SSLContext | None = None,
) -> socket.socket:
    """Return a connection to the process that listens there, once both ends have proved to have the secret.

    Its timeout is some of what is left until `deadline` (time.monotonic). `tls`: what follows goes through that.
    Raises OSError.
    """
    connection = socket.create_connection((host, port), timeout=_left(deadline))
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        heard = _received(connection, OPENING_BYTES, deadline)
        if not heard.startswith(WORD):
            raise ConnectionError("the process that listens there is none of this version of sparsepipe")
        said = reply(secret, heard, who)
        connection.sendall(said)
        name = said[:NAME_BYTES]
        if not hmac.compare_digest(_received(connection, PROOF_BYTES, deadline), confirmation(secret, heard, name)):
            raise ConnectionError("the process that listens there does not prove to have the secret")
        if tls is not None:
            connection.settimeout(_left(deadline))
            connection = tls.wrap_socket(connection)
            connection.sendall(name)
    except BaseException:
        connection.close()
        raise
    return connection


class Listener:
    """Listens at an address until it is closed; calls `take` with each caller that has proved to have the secret.

    A thread does so, another one for each caller that shakes hands for TLS. `take` closes the connection.
    """

    def __init__(
        self,
        host: str,
        secret: bytes,
        take: Callable[[Caller], None],
        *,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Listen at once. `tls`: callers are taken when that is shaken hands on. Raises OSError."""
        self._secret, self._take, self._tls = secret, take, tls
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._server = socket.socket(family, kind)
        try:
            self._server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._server.bind(where)
            self._server.listen(_BACKLOG)
        except BaseException:
            self._server.close()
            raise
        self._server.setblocking(False)
        self.host, self.port = self._server.getsockname()[:2]
        self._silent: dict[socket.socket, _Silent] = {}  # the oldest first
        self._stopped, self._stop = socket.socketpair()
        self._closed = False
        self._thread = threading.Thread(target=self._listen, name="listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more. Callers that were taken stay."""
        self._closed = True
        self._stop.close()
        self._thread.join()

    def _listen(self) -> None:
        selector = selectors.DefaultSelector()
        with self._server, self._stopped, selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._stopped, selectors.EVENT_READ)
            try:
                while not self._closed:
                    for key, _ in selector.select(SECONDS if self._silent else None):
                        if key.fileobj is self._server:
                            self._accept(selector)
                        elif key.fileobj in self._silent:
                            self._hear(key.fileobj, selector)
                    self._shut_silent(selector)
            finally:
                for connection in self._silent:
                    connection.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = self._server.accept()
        except (BlockingIOError, ConnectionError):  # who connected has gone already
            return
        except OSError:
            time.sleep(_PAUSE)
            return
        connection.setblocking(False)
        silent = self._silent[connection] = _Silent()
        selector.register(connection, selectors.EVENT_READ)
        try:
            connection.send(silent.opening)
        except OSError:
            self._forget(connection, selector).close()

    def _hear(self, connection: socket.socket, selector: selectors.BaseSelector) -> None:
        """Take what an unauthenticated connection says; it is none any more once it has said all, or has ended."""
        silent = self._silent[connection]
        try:
            more = connection.recv(NAME_BYTES + PROOF_BYTES - len(silent.heard))
        except BlockingIOError:
            return
        except OSError:
            more = b""
        silent.heard += more
        if more and len(silent.heard) < NAME_BYTES + PROOF_BYTES:
            return
        self._forget(connection, selector)
        name, proof = bytes(silent.heard[:NAME_BYTES]), bytes(silent.heard[NAME_BYTES:])
        if not hmac.compare_digest(proof, _proof(self._secret, b"caller", silent.opening, name)):
            connection.close()
            return
        try:
            connection.setblocking(True)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(confirmation(self._secret, silent.opening, name))
        except OSError:
            connection.close()
            return
        caller = Caller(connection, _WHO.unpack(name[_NONCE_BYTES:]), name)
        try:
            if self._tls is None:
                self._take(caller)
            else:
                work = threading.Thread(target=self._secure, args=(caller, self._tls), name="TLS", daemon=True)
                work.start()
        except RuntimeError:  # there can be no other thread: a limit of this process, which does not end the others
            connection.close()

    def _secure(self, caller: Caller, tls: ssl.SSLContext) -> None:
        """Shake hands for TLS with a caller, which says its name again within; take it, or shut it out."""
        connection = caller.connection
        try:
            connection.settimeout(SECONDS)
            connection = tls.wrap_socket(connection, server_side=True)
            again = _received(connection, NAME_BYTES, time.monotonic() + SECONDS)
            if self._closed or not hmac.compare_digest(again, caller.name):
                raise ConnectionError("a connection is not whose it was said to be")
            connection.settimeout(None)
        except OSError:
            connection.close()
            return
        self._take(caller._replace(connection=connection))

    def _forget(self, connection: socket.socket, selector: selectors.BaseSelector) -> socket.socket:
        selector.unregister(connection)
        del self._silent[connection]
        return connection

    def _shut_silent(self, selector: selectors.BaseSelector) -> None:
        latest, beyond = time.monotonic() - SECONDS, len(self._silent) - _MOST_SILENT
        for place, (connection, silent) in enumerate(list(self._silent.items())):
            if silent.since > latest and place >= beyond:
                break
            self._forget(connection, selector).close()


class _Silent:
    """State of an unauthenticated connection."""

    def __init__(self) -> None:
        self.since, self.opening, self.heard = time.monotonic(), opening(), bytearray()


def fill(
    connection: socket.socket,
    left: memoryview,
    *,
    deadline: float | None = None,
    look: Callable[[], None] | None = None,
) -> None:
    """Receive until `left` is full. `look` is called every now and then, and raises if waiting is of no use any more.

    Raises OSError, also if the connection ends before, or at `deadline` (time.monotonic; None: none, the connection's
    own timeout is left as it is).
    """
    while left:
        if deadline is not None:
            connection.settimeout(min(_left(deadline), _LOOK) if look else _left(deadline))
        try:
            count = connection.recv_into(left, min(len(left), _READ_BYTES))
        except TimeoutError:
            if deadline is None or time.monotonic() >= deadline:
                raise
            if look is not None:
                look()
            continue
        if not count:
            raise ConnectionError("its end of a connection is closed")
        left = left[count:]


def _received(connection: socket.socket, count: int, deadline: float) -> bytes:
    found = bytearray(count)
    fill(connection, memoryview(found), deadline=deadline)
    return bytes(found)


def _left(deadline: float) -> float:
    return min(max(deadline - time.monotonic(), 0.001), _LONGEST)


def _proof(secret: bytes, side: bytes, heard: bytes, name: bytes) -> bytes:
    return hmac.new(secret, side + heard + name, hashlib.sha256).digest()
