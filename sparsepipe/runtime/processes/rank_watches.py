"""What the machine says of each rank of a run whose process is on it, read every two seconds."""

import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from ...errors import InputError
from ...util.host.machine_watch import MachineWatch
from .gpu_file import gpu_of

SECONDS = 2.0  # that a reading is about: as long as `sparsepipe interference measure` measures


class RankWatches:
    """Reads the ranks of a run by the process ids in its logs; one that was started again is reread.

    On GPUs a rank is read from when it has told which GPU is its own, with that one's gauges. The other ranks are no
    intruders.
    """

    def __init__(self, logs: Path, *, on_gpus: bool) -> None:
        self.metrics: dict[int, dict[str, float]] = {}  # the newest reading of each rank
        self._logs, self._on_gpus = logs, on_gpus
        self._watches: dict[int, MachineWatch] = {}
        self._due = 0.0

    def look(self, ranks: Collection[int]) -> bool:
        """Take a reading of each of the ranks, if the last is two seconds old; return whether it is."""
        if time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + SECONDS
        pids = {rank: self._pid(rank) for rank in ranks}
        for rank, pid in pids.items():
            self._read(rank, pid, ours={other for other in pids.values() if other and other != pid})
        return True

    def close(self) -> None:
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()

    def _pid(self, rank: int) -> int | None:
        with suppress(OSError, ValueError):  # it is about to start, or on another host
            return int((self._logs / f"rank{rank}.pid").read_text())
        return None

    def _read(self, rank: int, pid: int | None, *, ours: Collection[int]) -> None:
        watch = self._watches.get(rank)
        if watch is not None and watch.pid == pid:
            try:
                self.metrics[rank] = watch.read()
                return
            except InputError:  # it has ended
                pid = None
        self.metrics.pop(rank, None)
        if watch is not None:
            self._watches.pop(rank).close()
        gpu = gpu_of(self._logs, rank) if self._on_gpus else None
        if pid is not None and (gpu or not self._on_gpus):
            self._watches[rank] = MachineWatch(pid, ours=ours, gpu=gpu)
