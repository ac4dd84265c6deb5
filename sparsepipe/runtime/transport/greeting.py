"""Who connects to a rank: its peers, who know a secret, and strangers, who cost nothing but their own connections.

A peer says who it is and what for, with a keyed digest of that: the secret itself never crosses the network. It is of
one listener, which takes each peer's word once: to repeat what was heard is of no use.

All that have connected are listened to at once: whoever proves the secret is let in, whoever says something else is
shut out, and whoever says nothing is shut out after a while, or when too many do so.
"""

import hmac
import selectors
import socket
import struct
import time
from collections.abc import Collection, Iterator
from contextlib import suppress

from ..failures import DeadlinePassed, seconds_left, translated

Way = tuple[int, int]  # (peer, tag): what one connection carries

SECRET_BYTES = 16
_WHO = struct.Struct("=qq")  # rank, tag
_HELLO = struct.Struct(f"={_WHO.size}s32s")  # who, HMAC-SHA256(secret, who)
_SECONDS = 10.0  # for a stranger that connects and says nothing
_MOST_SILENT = 64  # connections that have not said who they are; beyond, the oldest is shut


def who(rank: int, tag: int) -> bytes:
    """Return the bytes that name a rank, and what its connection carries."""
    return _WHO.pack(rank, tag)


def hello(secret: bytes, rank: int, tag: int) -> bytes:
    """Return what a rank says first on a connection to a peer with this secret."""
    own = who(rank, tag)
    return _HELLO.pack(own, hmac.digest(secret, own, "sha256"))


def accept(
    server: socket.socket, secret: bytes, expected: Collection[Way], *, deadline: float, message: str
) -> dict[Way, socket.socket]:
    """Return the connections of all that are `expected`, each of which says `hello` by this secret.

    Raises DeadlinePassed once `deadline` (time.monotonic) has passed: `message`, in which `{peer}` becomes the rank
    that is missing; PeerLost where the system refuses.
    """
    missing, come = set(expected), {}
    silent: dict[socket.socket, tuple[float, bytearray]] = {}  # when it connected, and what it said so far
    server.setblocking(False)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(server, selectors.EVENT_READ)
            while missing:
                peer = min(missing)[0]
                text = message.format(peer=peer)
                if time.monotonic() >= deadline:
                    raise DeadlinePassed(text, peer=peer)
                with translated(text, peer=peer, deadline=deadline):
                    ready = selector.select(min(seconds_left(deadline), _SECONDS))
                    for key, _ in ready:
                        if key.fileobj is server:
                            _let_wait(server, silent, selector)
                        elif isinstance(key.fileobj, socket.socket) and key.fileobj in silent:
                            way = _heard(key.fileobj, silent, selector, secret)
                            if way in missing:
                                missing.remove(way)
                                come[way] = key.fileobj
                            elif key.fileobj not in silent:
                                key.fileobj.close()
                    _shut_silent(silent, selector)
    except BaseException:
        for connection in come.values():
            connection.close()
        raise
    finally:
        for connection in silent:
            connection.close()
    return come


def welcome(server: socket.socket, secret: bytes, *, until: socket.socket) -> Iterator[tuple[Way, socket.socket]]:
    """Yield each connection that says `hello` by this secret, as they come, until `until` can be read.

    It says who called it, and for what; it is blocking, and who takes it closes it.
    """
    silent: dict[socket.socket, tuple[float, bytearray]] = {}
    server.setblocking(False)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(server, selectors.EVENT_READ)
            selector.register(until, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(_SECONDS if silent else None):
                    connection = key.fileobj
                    if connection is until:
                        return
                    if connection is server:
                        _let_wait(server, silent, selector)
                    elif isinstance(connection, socket.socket) and connection in silent:
                        way = _heard(connection, silent, selector, secret)
                        if way is not None:
                            connection.setblocking(True)
                            yield way, connection
                        elif connection not in silent:
                            connection.close()
                _shut_silent(silent, selector)
    finally:
        for connection in silent:
            connection.close()


def _let_wait(
    server: socket.socket, silent: dict[socket.socket, tuple[float, bytearray]], selector: selectors.BaseSelector
) -> None:
    with suppress(BlockingIOError, ConnectionError):  # who connected has gone already
        connection, _ = server.accept()
        connection.setblocking(False)
        silent[connection] = (time.monotonic(), bytearray())
        selector.register(connection, selectors.EVENT_READ)


def _heard(
    connection: socket.socket,
    silent: dict[socket.socket, tuple[float, bytearray]],
    selector: selectors.BaseSelector,
    secret: bytes,
) -> Way | None:
    """Listen to a connection; once it has said all, or has ended, it is silent no more. Return whose and for what."""
    said = silent[connection][1]
    try:
        more = connection.recv(_HELLO.size - len(said))
    except BlockingIOError:
        return None
    except OSError:
        more = b""
    said += more
    if more and len(said) < _HELLO.size:
        return None
    selector.unregister(connection)
    del silent[connection]
    if len(said) < _HELLO.size:
        return None
    own, proof = _HELLO.unpack(said)
    peer, tag = _WHO.unpack(own)
    return (peer, tag) if hmac.compare_digest(proof, hmac.digest(secret, own, "sha256")) else None


def _shut_silent(silent: dict[socket.socket, tuple[float, bytearray]], selector: selectors.BaseSelector) -> None:
    latest = time.monotonic() - _SECONDS
    beyond = len(silent) - _MOST_SILENT
    for place, (connection, (since, _)) in enumerate(list(silent.items())):  # the oldest first
        if since > latest and place >= beyond:
            break
        selector.unregister(connection)
        del silent[connection]
        connection.close()
