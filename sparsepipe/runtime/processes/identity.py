"""Who a process is among those of its job, as its launcher says it in the environment: read here and nowhere else."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import InputError
from ...util.host.ssh import interface_address

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Identity:
    """A process's rank, and where the ranks of its job meet."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # among the job's processes on this host
    local_world_size: int = 1
    launch: str = "0"  # names this launch among those of the same run
    attempt: int = 0  # how often the launcher has started the job's processes again
    store: tuple[str, int] | None = None  # address and port of the launcher's store; None: a file in the run's folder
    interface: str | None = None  # the network interface by which the other ranks are reached; None: the usual one
    pipeline: int | None = None  # which of the run's pipelines the job is; None: it is all of the run
    ranks: tuple[int, ...] = ()  # of several pipelines: what the job's ranks are called among those of all
    num_ranks: int | None = None  # of several pipelines: how many there are of all, on this host
    hosts: tuple[tuple[int, ...], ...] = ()  # of a job on several hosts: the ranks of each, which meet in a keyed store
    record: str = ""  # what the run's folder is called in its summary, where it is another than the worker's own

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Identity":
        """Read what torchrun sets, and our own launchers besides. Alone, a process is rank 0 of 1.

        Raises InputError for what is no number.
        """

        def number(name: str, default: int) -> int:
            told = environment.get(name, str(default))
            if not told.isascii() or not told.isdigit():
                raise InputError(
                    "environment.not_whole",
                    f"environment variable {name}={told!r}: expected a whole number, as torchrun sets it",
                )
            return int(told)

        rank, world_size = number("RANK", 0), number("WORLD_SIZE", 1)
        several = "SPARSEPIPE_PIPELINE" in environment
        hosts = environment.get("SPARSEPIPE_HOSTS", "").split(";")
        ranks = environment.get("SPARSEPIPE_RANKS", "").split(",") if several else ()
        by_file = environment.get("SPARSEPIPE_RENDEZVOUS", "file") == "file"
        return cls(
            rank,
            world_size,
            local_rank=number("LOCAL_RANK", rank) + number("SPARSEPIPE_FIRST_RANK", 0),
            local_world_size=number("LOCAL_WORLD_SIZE", world_size),
            launch=environment.get("SPARSEPIPE_LAUNCH", "0"),
            attempt=number("TORCHELASTIC_RESTART_COUNT", 0) + number("SPARSEPIPE_FIRST_ATTEMPT", 0),
            store=None if by_file else (environment.get("MASTER_ADDR", _LOOPBACK), number("MASTER_PORT", 0)),
            interface=environment.get("GLOO_SOCKET_IFNAME", "").split(",")[0] or None,
            pipeline=number("SPARSEPIPE_PIPELINE", 0) if several else None,
            ranks=_numbers(",".join(ranks)),
            num_ranks=number("SPARSEPIPE_NUM_RANKS", world_size) if several else None,
            hosts=tuple(_numbers(own) for own in hosts if own),
            record=environment.get("SPARSEPIPE_RECORD", ""),
        )

    @property
    def address(self) -> str:
        """Address at which other ranks reach this host: of its interface, or of its connection to the store."""
        if self.interface and (found := interface_address(self.interface)):
            return found
        master = self.store[0] if self.store else _LOOPBACK
        family, kind, protocol, _, where = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)  # a datagram's: nothing is sent
            return str(probe.getsockname()[0])


def _numbers(told: str) -> tuple[int, ...]:
    return tuple(int(each) for each in told.split(",") if each.isascii() and each.isdigit())
