"""TLS between the hosts of a job: a certificate that is made for it, which both ends show, and no other is taken.

    caller   ── hello, as without ───────────────► listener     rank, tag, digest by the job's secret: in clear
    caller   ◄═════════════ TLS 1.3 ═════════════► listener     from here on; each end shows the job's certificate
    caller   ══ who calls, and what for ══════════► listener     once more, where nobody in between can have changed it

The certificate with its key is in the run's folder on each host, for its owner alone to read, and came there as the
secret did: through the launcher's own connection. It signs itself, so what it says of dates and names says nothing.
"""

import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import InputError
from ..io.files import write_atomic

CERTIFICATE = Path("control") / "certificate.pem"  # in a run's folder
_NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME: the clock of a host may be an hour off


class Stream(Protocol):
    """What is used of a connection by who sends packets, or by who receives them: a socket, or one within TLS."""

    def sendmsg(self, buffers: Sequence[memoryview], /) -> int: ...

    def recv_into(self, buffer: memoryview, nbytes: int, /) -> int: ...

    def settimeout(self, value: float | None, /) -> None: ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Encryption:
    """The certificate and its key, in a file."""

    path: Path

    @classmethod
    def of_run(cls, run_dir: Path) -> "Encryption":
        """Return that of a run's folder. Raises InputError where it is not there, or damaged."""
        found = cls(run_dir / CERTIFICATE)
        found.context(server_side=False)
        return found

    @classmethod
    def write(cls, run_dir: Path, certificate: str) -> "Encryption":
        """Write a certificate with its key, in PEM, for the workers of this host."""
        write_atomic(run_dir / CERTIFICATE, certificate, make_folder=True, private=True)
        return cls.of_run(run_dir)

    def context(self, *, server_side: bool) -> ssl.SSLContext:
        """Return what one end of connections goes by. Raises InputError where the file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # it is the job's, not a host's
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)
        if server_side:
            context.num_tickets = 0  # the caller reads nothing: with some unread, its end would cut off what it sent
        try:
            context.load_cert_chain(self.path)
            context.load_verify_locations(self.path)
        except OSError as error:  # ssl.SSLError is one
            raise InputError(
                "encryption.no_certificate",
                f"{self.path}: no certificate that can be used ({error}); launch the run again",
            ) from None
        return context

    def calling(self, connection: socket.socket, who: bytes) -> "EncryptedStream":
        """Return the caller's end of a connection that says `who` it is first."""
        return EncryptedStream(self._wrapped(connection, server_side=False), who)

    def called(self, connection: socket.socket, who: bytes) -> "EncryptedStream":
        """Return the listener's end of a connection from whom `who` says, and from nobody else."""
        return EncryptedStream(self._wrapped(connection, server_side=True), who)

    def _wrapped(self, connection: socket.socket, *, server_side: bool) -> ssl.SSLSocket:
        context = self.context(server_side=server_side)
        connection.settimeout(None)
        return context.wrap_socket(connection, server_side=server_side, do_handshake_on_connect=False)


class EncryptedStream:
    """A connection within TLS, which shakes hands when it is first used.

    Not before: each rank calls all others before it looks who has called, so all would wait for each other's hands.
    It belongs to one thread, but for `shutdown`.
    """

    def __init__(self, connection: ssl.SSLSocket, who: bytes) -> None:
        self._connection, self._who, self._begun = connection, who, False

    def sendmsg(self, buffers: Sequence[memoryview], /) -> int:
        """Send the first of the buffers, whole. Raises OSError."""
        self._begin()
        return self._connection.send(buffers[0])

    def recv_into(self, buffer: memoryview, nbytes: int, /) -> int:
        """Receive up to `nbytes` and return how many; 0 at the end. Raises OSError."""
        self._begin()
        return self._connection.recv_into(buffer, nbytes)

    def settimeout(self, value: float | None, /) -> None:
        self._connection.settimeout(value)

    def shutdown(self, how: int, /) -> None:
        self._connection.shutdown(how)

    def close(self) -> None:
        self._connection.close()

    def _begin(self) -> None:
        if self._begun:
            return
        self._connection.do_handshake()
        if self._connection.server_side:
            self._check_who()
        else:
            self._connection.sendall(self._who)
        self._begun = True

    def _check_who(self) -> None:
        heard = b""
        while len(heard) < len(self._who):
            more: Any = self._connection.recv(len(self._who) - len(heard))
            if not more:
                raise ConnectionError("its end of a connection is closed")
            heard += more
        if heard != self._who:
            raise ConnectionError("a connection is not whose it was said to be")
