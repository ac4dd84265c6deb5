"""A port of this machine that stays free from when it is chosen until a process that starts binds it."""

import secrets
import socket
from pathlib import Path

_FROM = 10_000  # above those of well-known services
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")  # Linux's: of the ports that it gives by itself
_USUAL = 32_768  # where that begins, where nobody tells


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free, none of those that the system gives to whoever asks for any."""
    try:
        end = int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        end = _USUAL
    end = end if end > 2 * _FROM else _USUAL
    while True:
        port = _FROM + secrets.randbelow(end - _FROM)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
