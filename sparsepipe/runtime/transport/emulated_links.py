"""Links slower than this machine's own: when a packet that leaves now would be there, as the simulator has it."""

import fcntl
import mmap
import time
from pathlib import Path

import numpy as np

from ...cluster import Cluster
from ...costs import ports


class Links:
    """The links of a cluster whose ranks are processes of one host.

    A port carries one transfer after the other, whoever sends them. So when each is free stands in a file that all
    ranks map: seconds of time.monotonic, which they share.
    """

    def __init__(self, path: Path, cluster: Cluster) -> None:
        self._path, self._cluster = path, cluster
        devices, directions = range(len(cluster.devices)), (True, False)
        pairs = [(a, b, forward) for a in devices for b in devices if a != b for forward in directions]
        names = dict.fromkeys(port for pair in pairs for port in ports(cluster, *pair[:2], forward=pair[2]))
        self._place = {port: k for k, port in enumerate(names)}
        path.parent.mkdir(parents=True, exist_ok=True)
        size = 8 * max(len(names), 1)
        with path.open("a+b") as file:
            file.truncate(size)
            self._free = np.frombuffer(mmap.mmap(file.fileno(), size))

    def send(self, rank: int, peer: int, num_bytes: int, *, forward: bool) -> float:
        """Start a transfer as soon as both ports are free. Returns when it ends."""
        both = [self._place[port] for port in ports(self._cluster, rank, peer, forward=forward)]
        seconds = self._cluster.link(rank, peer).transfer_time(num_bytes)
        with self._path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            end = max(time.monotonic(), *self._free[both]) + seconds
            self._free[both] = end
        return float(end)
