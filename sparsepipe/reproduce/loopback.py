"""Measure TCP over the loopback interface: the link between two processes of a local run."""

import socket
import threading
import time
from statistics import median

from ..cluster import Link

_SMALL, _LARGE = 64, 4 * 2**20  # bytes: one tells the latency, the other the bandwidth
_REPEATS = 9


def loopback_link() -> Link:
    """Measure TCP over loopback now: latency from small messages, bandwidth from 4 MiB ones.

    It is an upper bound for packets, and gloo's messages, that go through such sockets. Between processes that share
    memory the latency holds for a packet's header, and the bandwidth is a lower bound for its payload.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        echo = threading.Thread(target=_answer, args=(server,), daemon=True)
        echo.start()
        with socket.create_connection(server.getsockname()) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            latency = median(_round_trip(connection, _SMALL) for _ in range(_REPEATS)) / 2
            whole = median(_round_trip(connection, _LARGE) for _ in range(_REPEATS))
        echo.join()
    return Link(bandwidth=_LARGE / max(whole - 2 * latency, 1e-9), latency=latency)


def _round_trip(connection: socket.socket, num_bytes: int) -> float:
    """Seconds to send `num_bytes` and hear one byte back that they have arrived."""
    start = time.perf_counter()
    connection.sendall(num_bytes.to_bytes(8) + bytes(num_bytes))
    connection.recv(1)
    return time.perf_counter() - start


def _answer(server: socket.socket) -> None:
    connection, _ = server.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = bytearray(2**20)
    with connection:
        while head := connection.recv(8, socket.MSG_WAITALL):
            left = int.from_bytes(head)
            while left:
                left -= connection.recv_into(buffer, min(left, len(buffer)))
            connection.sendall(b"!")
