"""Measure how long two processes of this machine take to average gradients with the runtime's own all-reduce.

Gloo's messages between two processes of a machine cost both of them processor time: to copy into the socket and out of
it, to add, and to pack and unpack gradients. A socket that carries bytes one way, while the other side only
reads, is faster than that by a factor.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from ..cluster import Link
from ..errors import InputError
from ..files import read_json, write_json
from ..host.background_load import RUN_QUEUE_WAIT, num_processors, thread_times, waited_share
from ..host.python_path import python_command, python_environment
from ..plan import Plan, Stage
from ..runtime.processes.identity import Identity
from ..runtime.replication.all_reduce import Averaging
from ..runtime.replication.replica_group import ReplicaGroup
from ..runtime.worker.connections import Connections
from ..runtime.worker.join import joined
from ..schedule import compile
from .loopback import loopback_link

_SIZES = (2**12, 2**24)  # bytes of gradients: the smaller tells the latency, the larger the bandwidth
_LAYERS = 8  # that the gradients are of
_REPEATS, _ENOUGH = 20, 5  # averagings of each size; those in which nothing held us up are enough, where so many are
_TIMEOUT = 120.0  # seconds for both processes to start, meet and measure


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
        command = python_command(__name__, folder)
        both = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in (0, 1)]
        try:
            codes = [one.wait(timeout=_TIMEOUT) for one in both]
        except subprocess.TimeoutExpired:
            raise InputError(f"two processes that average did not end within {_TIMEOUT:g} s; try again") from None
        finally:
            for one in both:
                one.kill()
                one.wait()
        if any(codes):
            raise InputError(f"two processes that average ended with exit codes {codes}; what they said is above")
        small, large = read_json(Path(folder) / "seconds.json")["seconds"]
    latency = small / 2  # two messages of half the bytes
    return Link(_SIZES[1] / max(large - small, 1e-9), latency)


def _measure(folder: Path) -> None:
    """In one of the two processes: average gradients of each size again and again; rank 0 keeps the median seconds."""
    plan = Plan((Stage(("all",), (0, 1)),))
    identity, options = Identity.from_environment(), {"device": "cpu", "threads": 1, "timeout": _TIMEOUT / 2}
    with joined(identity, run_dir=folder, **options) as process:
        connections = Connections.open(compile(plan, 1), process)
        seconds = [_seconds(connections.replicas[0], size) for size in _SIZES]
        connections.close()
        if process.rank == 0:
            write_json(folder / "seconds.json", {"seconds": seconds})


def _seconds(replicas: ReplicaGroup, num_bytes: int) -> float:
    """Return the median seconds of averaging `num_bytes`, over the repeats that no other load held up."""
    found = [_once(replicas, num_bytes) for _ in range(_REPEATS)]
    quiet = [seconds for seconds, waited in found if (waited or 0.0) <= RUN_QUEUE_WAIT]
    return median(quiet if len(quiet) >= _ENOUGH else [seconds for seconds, _ in found])


def _once(replicas: ReplicaGroup, num_bytes: int) -> tuple[float, float | None]:
    """Average; return the seconds, and the share of them that our threads waited for a processor.

    Where stages keep every processor at work, averaging takes what the two processes need of them, if that is more.
    """
    weights = [torch.zeros(num_bytes // 4 // _LAYERS) for _ in range(_LAYERS)]
    gradients = [torch.ones_like(weight) for weight in weights]
    replicas.process.barrier("averaging")
    threads, start, own = thread_times(), time.perf_counter(), time.process_time()
    averaging = Averaging(weights, None, replicas)
    averaging.complete(gradients)
    del gradients
    averaging.mean(2, what="averaging")
    seconds, work = time.perf_counter() - start, time.process_time() - own
    return max(seconds, 2 * work / num_processors()), waited_share(threads, thread_times())


if __name__ == "__main__":
    _measure(Path(sys.argv[1]))
