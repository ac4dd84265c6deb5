"""The two processes that average: `python -m sparsepipe.study.averaging_ranks FOLDER` leaves the seconds there.

They are forked from one that has imported torch, so that it is imported once. They end where stdin closes.
"""

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

import torch

from ..runtime.processes.identity import Identity
from ..runtime.replication.all_reduce import Averaging
from ..runtime.replication.base import ReplicaGroup
from ..runtime.worker.connections import Connections
from ..runtime.worker.join import joined
from ..util.host.background_load import RUN_QUEUE_WAIT, exit_with_parent, num_processors, thread_times, waited_share
from ..util.host.forked import fork
from ..util.io.files import write_json
from ..values.plan import Plan, Stage
from ..values.schedule import compile
from .contention import SECONDS, SIZES, TIMEOUT

_RANKS = (0, 1)
_LAYERS = 8  # that the gradients are of
_REPEATS, _ENOUGH = 20, 5  # averagings of each size; those in which nothing held us up are enough, where so many are


def main(folder: Path) -> int:
    """Fork both ranks and wait for them; return the exit code of one that failed, 0 if none did."""
    ranks = [fork(partial(_measure, folder, rank), session=False) for rank in _RANKS]
    codes: Sequence[int] = [one.wait() for one in ranks]
    return next((code for code in codes if code), 0)


def _measure(folder: Path, rank: int) -> int:
    """Average gradients of each size again and again; rank 0 keeps the median seconds."""
    exit_with_parent()
    os.environ["RANK"] = str(rank)
    plan = Plan((Stage(("all",), _RANKS),))
    identity = Identity.from_environment()
    with joined(identity, run_dir=folder, device="cpu", threads=1, timeout=TIMEOUT / 2) as process:
        connections = Connections.open(compile(plan, 1), process)
        seconds = [_seconds(connections.replicas[0], size) for size in SIZES]
        connections.close()
        if process.rank == 0:
            write_json(folder / SECONDS, {"seconds": seconds})
    return 0


def _seconds(replicas: ReplicaGroup, num_bytes: int) -> float:
    """Return the median seconds of averaging `num_bytes`, over the repeats that no other load delayed."""
    durations = [_once(replicas, num_bytes) for _ in range(_REPEATS)]
    quiet = [seconds for seconds, waited in durations if (waited or 0.0) <= RUN_QUEUE_WAIT]
    return median(quiet if len(quiet) >= _ENOUGH else [seconds for seconds, _ in durations])


def _once(replicas: ReplicaGroup, num_bytes: int) -> tuple[float, float | None]:
    """Average; return the seconds, and the share of them that our threads waited for a processor.

    If stages keep every processor at work, averaging takes what the two processes need of them, if that is more.
    """
    weights = [torch.zeros(num_bytes // 4 // _LAYERS) for _ in range(_LAYERS)]
    gradients = [torch.ones_like(weight) for weight in weights]
    replicas.process.barrier("averaging")
    threads, start, process_times = thread_times(), time.perf_counter(), time.process_time()
    averaging = Averaging(weights, None, replicas)
    averaging.complete(gradients)
    del gradients
    averaging.mean(2, what="averaging")
    seconds, work = time.perf_counter() - start, time.process_time() - process_times
    return max(seconds, 2 * work / num_processors()), waited_share(threads, thread_times())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
