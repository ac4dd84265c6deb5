"""The store's server: what ranks tell each other by name before they are connected, and who waits for what.

It listens on one address. Who connects is heard once it has proved that it has the job's secret (wire/handshake.py).

rank → store    {"id": 7, "op": "wait", "keys": ["ready/3"], "seconds": 60}     others: set, get, check, add, …
store → rank    {"id": 7, "values": []}     {"id": 7, "late": true}             values are in base 64
"""

import asyncio
import base64
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import InputError
from ...util.io.fields import each, fields, integer, number, one_of, text
from ..pipelines.messages import encoded
from ..wire.encryption import Encryption, tls_of
from ..wire.switchboard import Peer, Switchboard

_MOST_KEYS, _MOST_BYTES = 10**6, 2**28  # of all that is kept: a rank's mistake costs the host no more
_MOST_WAIT = 7 * 86400.0
_REQUEST = fields(
    {
        "id": lambda value, what: integer(value, what, most=10**15),
        "op": one_of("set", "get", "wait", "check", "add", "delete", "clock", "occupy"),
        "keys": each(text),
        "value": text,
        "amount": lambda value, what: integer(value, what, least=-(10**15), most=10**15),
        "seconds": number,
    }
)


@dataclass(eq=False)
class _Waiting:
    """A request that is answered when all its keys exist, or told that it is late."""

    peer: Peer
    id: int
    keys: tuple[str, ...]
    tells: bool  # the values, too
    timer: asyncio.TimerHandle | None = None


class _Values:
    """Stored values and waiting clients: the handler of a switchboard."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._bytes = 0
        self._waiting: set[_Waiting] = set()

    def connected(self, peer: Peer) -> None:
        pass

    def disconnected(self, peer: Peer) -> None:
        for one in [one for one in self._waiting if one.peer is peer]:
            self._forget(one)

    def said(self, peer: Peer, message: dict[str, Any]) -> None:
        told = _REQUEST(message, "request")
        keys, id = tuple(told["keys"]), told["id"]
        match told["op"]:
            case "set":
                self._keep(keys[0], _decoded(told["value"]))
                _answer(peer, id)
            case "add":
                total = int(self._values.get(keys[0], b"0")) + told["amount"]
                self._keep(keys[0], str(total).encode())
                _answer(peer, id, [str(total).encode()])
            case "check":
                _answer(peer, id, [b"1" if all(key in self._values for key in keys) else b"0"])
            case "delete":
                found = self._values.pop(keys[0], None)
                self._bytes -= len(found or b"")
                _answer(peer, id, [b"0" if found is None else b"1"])
            case "clock":
                _answer(peer, id, [repr(now).encode() for now in (time.time(), time.monotonic())])
            case "occupy":
                _answer(peer, id, [repr(self._occupy(keys, told["seconds"])).encode()])
            case "get" | "wait" as op:
                self._wait(peer, id, keys, tells=op == "get", seconds=min(max(told["seconds"], 0.0), _MOST_WAIT))

    def _keep(self, key: str, value: bytes) -> None:
        self._bytes += len(value) - len(self._values.get(key, b""))
        self._values[key] = value
        if len(self._values) > _MOST_KEYS or self._bytes > _MOST_BYTES:
            raise InputError("store.full", "the coordination store is full; start the job again")
        for one in [one for one in self._waiting if key in one.keys]:
            if all(each in self._values for each in one.keys):
                self._forget(one)
                _answer(one.peer, one.id, [self._values[each] for each in one.keys] if one.tells else ())

    def _occupy(self, keys: tuple[str, ...], seconds: float) -> float:
        """Take what is used by one at a time for some seconds, once it is free; return when that ends."""
        free = [float(self._values.get(key, b"0")) for key in keys]
        end = max([time.monotonic(), *free]) + min(max(seconds, 0.0), _MOST_WAIT)
        for key in keys:
            self._keep(key, repr(end).encode())
        return end

    def _wait(self, peer: Peer, id: int, keys: tuple[str, ...], *, tells: bool, seconds: float) -> None:
        if all(key in self._values for key in keys):
            _answer(peer, id, [self._values[key] for key in keys] if tells else ())
            return
        one = _Waiting(peer, id, keys, tells)
        one.timer = asyncio.get_running_loop().call_later(seconds, self._late, one)
        self._waiting.add(one)

    def _late(self, one: _Waiting) -> None:
        self._forget(one)
        one.peer.send(encoded({"id": one.id, "late": True}))

    def _forget(self, one: _Waiting) -> None:
        if one.timer is not None:
            one.timer.cancel()
        self._waiting.discard(one)


class StoreServer:
    """Serves a store at `host`, in a thread, until `close` or the end of this process."""

    def __init__(self, host: str, secret: bytes, *, encryption: Encryption | None = None) -> None:
        """`encryption`: what is said goes through TLS. Raises OSError if the address is not available."""
        self._loop = asyncio.new_event_loop()
        tls = tls_of(encryption, server_side=True)
        self._board = Switchboard(host, secret, _Values(), self._loop, tls=tls)
        self.port: int = self._board.address[1]
        self._thread = threading.Thread(target=self._serve, name="store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no more; what is connected is closed."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._board.close()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()


def _answer(peer: Peer, id: int, values: Sequence[bytes] = ()) -> None:
    peer.send(encoded({"id": id, "values": [base64.b64encode(value).decode() for value in values]}))


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise InputError("store.not_base64", "a value is not valid base64") from None
