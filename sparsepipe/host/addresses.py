"""Whether a name or an address is that of the machine that asks."""

import ipaddress
import socket


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is the loopback of whoever uses it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_here(host: str) -> bool:
    """Whether a host's name or address is this machine's: its loopback, or the name that it has itself."""
    return is_loopback(host) or host == socket.gethostname()
