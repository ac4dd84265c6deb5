"""Connections whose other end went without a word, as a host does that loses power: given up after seconds."""

import socket

_OPTIONS = {  # by their names on Linux; other systems have some of them, and defaults of their own
    "TCP_KEEPIDLE": 5,  # seconds of silence before the other end is asked
    "TCP_KEEPINTVL": 3,  # seconds between two such questions
    "TCP_KEEPCNT": 3,  # without an answer: it is gone
    "TCP_USER_TIMEOUT": 14_000,  # milliseconds that what was sent may be unconfirmed
}


def keep_alive(connection: socket.socket) -> None:
    """Have the system ask now and then whether the other end is there; else it waits for it for hours."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
