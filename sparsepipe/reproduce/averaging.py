"""Measure how long two processes of this machine take to average gradients with the runtime's own all-reduce.

Gloo's messages between two processes of a machine cost both of them processor time: to copy into the socket and out of
it, to add, and to pack and unpack gradients. A socket that carries bytes one way, while the other side only
reads, is faster than that by a factor.
"""

import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

from ..cluster import Link
from ..errors import InputError
from ..host.python_path import python_command, python_environment
from ..io.files import read_json

_REPEATS = 9

SIZES = (2**12, 2**24)  # bytes of gradients: the smaller tells the latency, the larger the bandwidth
SECONDS = "seconds.json"  # the medians for both sizes, where the two processes leave them
TIMEOUT = 120.0  # seconds for both processes to start, meet and measure


def local_link() -> Link:
    """Measure now the link between two processes of a local run: what planners may count on, whatever goes over it.

    Its latency is that of a packet's header, its bandwidth the lower one of packets and of averaging.
    Raises InputError where two processes cannot run.
    """
    packets, gradients = loopback_link(), averaging_link()
    return Link(min(packets.bandwidth, gradients.bandwidth), packets.latency)


def averaging_link() -> Link:
    """Measure now the link by which `costs.averaging_time` says what averaging between two processes takes.

    Raises InputError where two processes cannot run.
    """
    with tempfile.TemporaryDirectory(prefix="sparsepipe-averaging-") as folder:
        environment = python_environment(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
        command = python_command("sparsepipe.reproduce.averaging_ranks", folder)
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as both:  # they end where stdin closes
            try:
                code = both.wait(timeout=TIMEOUT)
            except subprocess.TimeoutExpired:
                raise InputError(
                    "averaging.timeout", f"two processes that average did not end within {TIMEOUT:g} s; try again"
                ) from None
        if code:
            raise InputError(
                "averaging.failed", f"two processes that average ended with exit code {code}; what they said is above"
            )
        small, large = read_json(Path(folder) / SECONDS)["seconds"]
    latency = small / 2  # two messages of half the bytes
    return Link(SIZES[1] / max(large - small, 1e-9), latency)


_SMALL, _LARGE = 64, 4 * 2**20  # bytes: one tells the latency, the other the bandwidth


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
