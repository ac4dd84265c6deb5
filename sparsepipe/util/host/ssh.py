"""The system's `ssh`: keys, aliases and jump hosts are those of the user's own ssh_config; no password is asked for."""

import fcntl
import ipaddress
import re
import shlex
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Self

from ...errors import InputError

_ALIVE_SECONDS, _ALIVE_COUNT = 5, 3  # after 15 s without an answer the connection is given up
_OPTIONS = (
    "BatchMode=yes",  # never asks: who has no key there is told so
    f"ServerAliveInterval={_ALIVE_SECONDS}",
    f"ServerAliveCountMax={_ALIVE_COUNT}",
    "ForwardAgent=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
)
_CAUSES = {  # what ssh says → what it means, and what to do
    "Permission denied": "the host accepts none of your keys; add one to its authorized_keys (ssh-copy-id {0})",
    "Host key verification failed": "its key is unknown or differs from known_hosts; check it by hand: ssh {0}",
    "Could not resolve hostname": "unknown host name; correct the cluster file, or add the host to ssh_config",
    "Connection refused": 'no sshd listens there; start it, or set its port in the cluster file: ssh = "host:2222"',
    "not responding": "it stopped answering; check that it is running and reachable",
    "timed out": "it does not answer; check that it is running and reachable",
    "No route to host": "it cannot be reached; check that it is running and on a network of this machine",
    "Network is unreachable": "no network of this machine leads to it",
}
_LONGEST = 300  # characters of what ssh says that are passed on
_MOST_PORT = 65_535
_NOT_RUN, _NOT_FOUND = 126, 127  # exit codes of a shell, and of env
_FORM = re.compile(  # brackets around digits, commas and dashes alone are a range of Slurm's, as in gpu[1-3]
    r"(?:ssh://)?(?:(?P<user>[^/]+)@)?(?:\[(?P<bracketed>(?=[^\]]*[:.A-Za-z])[^\[\]]+)\]|(?P<plain>[^\[\]:@/]+))"
    r"(?::(?P<port>[0-9]{1,5}))?"
)


class Destination(NamedTuple):
    """Destination of `ssh`: user name ("": the default), a host without brackets, and a port (None: the default)."""

    user: str
    host: str
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `host`, `user@host`, `host:port`, `[IPv6]:port` or `ssh://user@host:port`.

        Raises InputError for another form, and for a port that is none.

        >>> Destination.parse("me@[2001:db8::1]:2222")
        Destination(user='me', host='2001:db8::1', port=2222)
        """
        user, _, host = text.rpartition("@")
        if _is_ipv6(host):
            return cls(user, host)
        match = _FORM.fullmatch(text.removesuffix("/") if text.startswith("ssh://") else text)
        port = int(match["port"]) if match and match["port"] else None
        if match is None or port is not None and not 1 <= port <= _MOST_PORT:
            raise InputError(
                "ssh.destination_malformed", f"{text[:_LONGEST]!r}: expected host, user@host, host:port or [IPv6]:port"
            )
        return cls(match["user"] or "", match["bracketed"] or match["plain"], port)

    @property
    def words(self) -> list[str]:
        """The words of a command line that name it to `ssh`, as in `ssh -p 2222 me@host`."""
        port = [] if self.port is None else ["-p", str(self.port)]
        return [*port, f"{self.user}@{self.host}" if self.user else self.host]

    def __str__(self) -> str:
        user = f"{self.user}@" if self.user else ""
        host = f"[{self.host}]" if self.port is not None and ":" in self.host else self.host
        return f"{user}{host}" if self.port is None else f"{user}{host}:{self.port}"


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def ssh_command(destination: str, words: Sequence[str], *, connect_seconds: float = 10.0) -> list[str]:
    """Return the command that runs `words` on a host, standard input and output being those of the command there.

    Each word arrives as it is: `ssh` hands a line to the user's shell there, in which the words are quoted. A leading
    ~/ is left to that shell: the home folder is the one there.
    """
    options = [
        word for option in (*_OPTIONS, f"ConnectTimeout={max(1, round(connect_seconds))}") for word in ("-o", option)
    ]
    *port, host = Destination.parse(destination).words
    return ["ssh", "-T", *options, *port, "--", host, " ".join(map(_quoted, words))]


def _quoted(word: str) -> str:
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") and word != "~/" else shlex.quote(word)


def ssh_failure(destination: str, said: str) -> str:
    """Return why `ssh` ended with code 255, in a line with the remedy, from what it said on standard error."""
    called = " ".join(Destination.parse(destination).words)
    for text, cause in _CAUSES.items():
        if text in said:
            return f"ssh {called}: {cause.format(called)}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1][:_LONGEST] if lines else "the connection ended"
    return f"ssh {called}: {last}; try it by hand: ssh {called}"


def command_failure(code: int, interpreter: str, said: str) -> str | None:
    """Return why a shell did not run a Python, from its exit code and what it said; None if it did.

    127 is also what a Python ends with that lacks a shared library.
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    why = f" ({lines[-1][:_LONGEST]})" if lines else ""
    if code == _NOT_FOUND:
        return f"no Python at {interpreter} on that host{why}; name its interpreter in the cluster file"
    if code == _NOT_RUN:
        return f"{interpreter} cannot be run on that host{why}; name a Python in the cluster file"
    return None


_INTERFACE_ADDRESS = 0x8915  # Linux's SIOCGIFADDR


def is_loopback(host: str) -> bool:
    """Return whether a host's name or address is the loopback of whoever uses it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_here(host: str) -> bool:
    """Return whether a host's name or address is this machine's: its loopback, or the name that it has itself."""
    return is_loopback(host) or host == socket.gethostname()


def interface_address(name: str) -> str | None:
    """Return the IPv4 address of a network interface of this machine, None if it has none."""
    asked = struct.pack("256s", name.encode()[:15])
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _INTERFACE_ADDRESS, asked)[20:24])
    return None
