"""Names and addresses of the machine that asks."""

import fcntl
import ipaddress
import socket
import struct
from contextlib import suppress

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
