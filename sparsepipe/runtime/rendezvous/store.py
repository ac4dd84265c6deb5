"""`KeyedStore`: a store of torch.distributed whose server lets in only those who have the job's secret.

torch's own TCPStore listens on every address of its host and asks no one who they are.
"""

import base64
import threading
import time
from datetime import timedelta
from itertools import count
from typing import Any

import torch.distributed as dist

from ..failures import PacketMismatch
from ..pipelines.messages import encoded
from ..wire.encryption import Encryption, tls_of
from ..wire.messages import ListenerAddress, Requests

_LOOKS = 10  # at the clock of the store's host
_TO_ANSWER = 30.0  # seconds for the way there and back, beyond those that a request may wait


class KeyedStore(dist.Store):
    """One connection to the store; what is kept there under `prefix` is this one's own."""

    def __init__(
        self,
        where: ListenerAddress,
        *,
        rank: int,
        prefix: str = "",
        timeout: float,
        encryption: Encryption | None = None,
    ) -> None:
        """Connect within `timeout` seconds, which is the store's own timeout, too. Raises OSError.

        `encryption`: what is said goes through TLS.
        """
        super().__init__()
        self.set_timeout(timedelta(seconds=timeout))
        self._where, self._rank, self._prefix, self._seconds = where, rank, prefix, timeout
        self._encryption = encryption
        deadline, tls = time.monotonic() + timeout, tls_of(encryption, server_side=False)
        self._connection = Requests(where, (0, rank, 0), deadline=deadline, tls=tls)
        self._lock, self._ids = threading.Lock(), count()

    def again(self) -> "KeyedStore":
        """Return another connection to the same: for a thread of its own, which waits long."""
        options: dict[str, Any] = {"rank": self._rank, "prefix": self._prefix, "timeout": self._seconds}
        return KeyedStore(self._where, **options, encryption=self._encryption)

    def set(self, key: str, value: str | bytes) -> None:
        encoded = value.encode() if isinstance(value, str) else bytes(value)
        self._ask("set", [key], value=base64.b64encode(encoded).decode())

    def get(self, key: str) -> bytes:
        return self._ask("get", [key], seconds=self._timeout.total_seconds())[0]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._ask("wait", keys, seconds=(timeout or self._timeout).total_seconds())

    def check(self, keys: list[str]) -> bool:
        return self._ask("check", keys) == [b"1"]

    def add(self, key: str, amount: int) -> int:
        return int(self._ask("add", [key], amount=amount)[0])

    def delete_key(self, key: str) -> bool:
        return self._ask("delete", [key]) == [b"1"]

    def occupy(self, keys: list[str], seconds: float) -> float:
        """Take all of what `keys` name, each of which one at a time has, for so many seconds once all are free.

        Returns the end of that by the monotonic clock of the store's host. Raises OSError.
        """
        return float(self._ask("occupy", keys, seconds=seconds)[0])

    def ahead_of_here(self, *, monotonic: bool = False) -> float:
        """Return by how many seconds the clock of the store's host is ahead of this one's: of several looks, the best.

        It is off by half the time that the way there and back takes, at most. `monotonic`: of time.monotonic.
        """
        looks, clock = [], time.monotonic if monotonic else time.time
        for _ in range(_LOOKS):
            before = clock()
            there = float(self._ask("clock", [])[monotonic])
            after = clock()
            looks.append((after - before, there - (before + after) / 2))
        return min(looks)[1]

    def close(self) -> None:
        self._connection.close()

    @property
    def _timeout(self) -> timedelta:
        return self.timeout  # type: ignore[attr-defined, no-any-return]  # torch has it, its stubs leave it out

    def _ask(self, op: str, keys: list[str], *, seconds: float = 0.0, **more: Any) -> list[bytes]:
        """Return the values of an answer. Raises RuntimeError if a key did not come, as torch's stores do."""
        named = [self._prefix + key for key in keys]
        with self._lock:
            number, deadline = next(self._ids), time.monotonic() + seconds + _TO_ANSWER
            message = {"id": number, "op": op, "keys": named, "seconds": seconds, **more}
            try:
                answer = self._connection.request(number, encoded(message), deadline=deadline)
            except PacketMismatch as error:
                raise ConnectionError(str(error)) from None
        if answer.get("late"):
            raise RuntimeError(f"the store waited {seconds:g} s for {', '.join(keys[:3])}")
        return [base64.b64decode(value) for value in answer["values"]]
