"""Links slower than those that are here: when a packet that leaves now would be there, as the simulator has it.

A port carries one transfer after the other, whoever sends them, so every rank must know when each is free:

    ranks of one host       in a file that all map: seconds of time.monotonic, which they share
    ranks of several        in the job's store, by the monotonic clock of its host; how far that is ahead of a rank's
                            own each rank has told there

Between hosts what a packet carries crosses their network meanwhile: it has come when both are over.
"""

import fcntl
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import numpy as np

from ...cluster import Cluster
from ...costs import ports
from ...host.file_locks import lock_file
from ..failures import translated
from ..processes.mapped_file import mapped_file
from ..processes.process import Process
from ..rendezvous.store import KeyedStore


class Links(Protocol):
    """The links of a cluster."""

    def send(self, device: int, peer: int, num_bytes: int, *, forward: bool, to: int) -> float:
        """Start a transfer from a device to another one as soon as both ports are free.

        Returns when it ends, by the time.monotonic of the rank `to`, which receives it. Raises DeadlinePassed or
        PeerLost.
        """
        ...


def links_of(process: Process, cluster: Cluster, *, run_dir: Path) -> Links:
    """Return what this rank knows of a cluster's links, together with the others of its job. They all come here."""
    if len(process.hosts) > 1 and isinstance(process.store, KeyedStore):
        return LinksOverHosts(process.store.again(), cluster, rank=process.rank)
    return LinksOfHost(run_dir / "logs" / ".ports", cluster)


class LinksOfHost:
    """The links of a cluster whose ranks are processes of one host."""

    def __init__(self, path: Path, cluster: Cluster) -> None:
        self._path, self._cluster = path, cluster
        devices, directions = range(len(cluster.devices)), (True, False)
        pairs = [(a, b, forward) for a in devices for b in devices if a != b for forward in directions]
        names = dict.fromkeys(port for pair in pairs for port in ports(cluster, *pair[:2], forward=pair[2]))
        self._place = {port: k for k, port in enumerate(names)}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._free = np.frombuffer(mapped_file(path, 8 * max(len(names), 1)))

    def send(self, device: int, peer: int, num_bytes: int, *, forward: bool, to: int = 0) -> float:
        both = [self._place[port] for port in ports(self._cluster, device, peer, forward=forward)]
        seconds = self._cluster.link(device, peer).transfer_time(num_bytes)
        with self._path.open("rb") as file:
            lock_file(file.fileno(), fcntl.LOCK_EX, path=self._path, remedy="choose a run_dir on another disk")
            end = max(time.monotonic(), *self._free[both]) + seconds
            self._free[both] = end
        return float(end)


class LinksOverHosts:
    """The links of a cluster whose ranks are on several hosts.

    Each transfer asks the store once, for about as long as a word takes there and back, and as far as half of that are
    the clocks told apart.
    """

    def __init__(self, store: KeyedStore, cluster: Cluster, *, rank: int) -> None:
        """`store`: a connection to it of this rank's own. Raises PeerLost."""
        self._store, self._cluster, self._rank = store, cluster, rank
        self._ahead: dict[int, float] = {}  # of the receivers' clocks: the store's
        with self._told():
            store.set(_clock_of(rank), repr(store.ahead_of_here(monotonic=True)))

    def send(self, device: int, peer: int, num_bytes: int, *, forward: bool, to: int) -> float:
        both = [f"port/{'/'.join(map(str, port))}" for port in ports(self._cluster, device, peer, forward=forward)]
        with self._told():
            end = self._store.occupy(both, self._cluster.link(device, peer).transfer_time(num_bytes))
            if to not in self._ahead:
                self._ahead[to] = float(self._store.get(_clock_of(to)))
        return end - self._ahead[to]

    def _told(self) -> AbstractContextManager[None]:
        return translated(f"rank {self._rank} waited for the store, which has the links' ports", peer=-1)


def _clock_of(rank: int) -> str:
    return f"clock/{rank}"
