"""What a predictor expects of a running job's ranks, by what the machine says of each rank's process meanwhile."""

import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from ..cluster import Cluster
from ..errors import InputError
from ..profile import Profile
from ..runtime.processes.gpu_file import gpu_of
from .interference.machine import MachineWatch
from .interference.predictor import Predictor
from .variants import variant
from .variants.base import LayerFactors

_ANY_GPU = 0  # NVML's first: before a run's ranks have told which are theirs, any says which gauges there are
_SECONDS = 2.0  # that a reading is about: as long as `sparsepipe interference measure` measures


def check_predictor(replan: str | None, predictor: Predictor | None, *, needed: bool, device: str = "cpu") -> None:
    """Raise InputError where a variant lacks a predictor, has no use for one, or has one from other metrics.

    `needed`: whether the run's layers really compute, so that variants that ask a predictor cannot do without.
    `device`: that the run computes on, "cpu", "cuda" or "cuda:1"; on GPUs the metrics are theirs, too.
    """
    if replan is None:
        if predictor is not None:
            raise InputError("a predictor goes with replan, such as predicted; leave it out, or say how to replan")
        return
    asked = variant(replan)
    if predictor is None:
        if asked.needs_predictor and needed:
            raise InputError(
                f"replan {replan}: needs a predictor of this machine; make one with `sparsepipe interference measure "
                "--predictor FILE`, and give --predictor FILE"
            )
        return
    if not asked.asks_predictor:
        raise InputError(f"replan {replan}: asks no predictor; leave it out, or replan by predicted or epoch")
    with MachineWatch(gpu=None if device == "cpu" else _ANY_GPU) as here:
        predictor.check_metrics(here.read())


class Predictions:
    """Reads what the machine says of each rank every two seconds; `of` asks the predictor by the newest reading.

    Ranks on this machine alone are read, by the process ids in the run's logs; a rank that was started again is read
    anew. On GPUs (`device` is not "cpu") a rank is read from when it has told which GPU is its own, with that one's
    gauges. The other ranks are no intruders.
    """

    def __init__(
        self, predictor: Predictor, run_dir: Path, profile: Profile, cluster: Cluster, *, device: str = "cpu"
    ) -> None:
        self._predictor, self._logs, self._on_gpus = predictor, run_dir / "logs", device != "cpu"
        self._profile, self._cluster = profile, cluster
        self._watches: dict[int, MachineWatch] = {}
        self._metrics: dict[int, dict[str, float]] = {}  # the newest reading of each rank
        self._due = 0.0

    def look(self) -> None:
        """Take a reading of each rank, if the last is two seconds old."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _SECONDS
        pids = {device.rank: self._pid(device.rank) for device in self._cluster.devices}
        for rank, pid in pids.items():
            self._read(rank, pid, ours={other for other in pids.values() if other and other != pid})

    def of(self, rank: int) -> LayerFactors | None:
        """How many times as long as alone each layer is expected to take on a rank; None where it was not read yet.

        Raises InputError where the machine's metrics are not those that the predictor learned from.
        """
        if rank not in self._metrics:
            return None
        kind = self._cluster.devices[rank].type.name
        return self._predictor.layer_factors(self._metrics[rank], self._profile, kind)

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
                self._metrics[rank] = watch.read()
                return
            except InputError:  # it has ended
                pid = None
        self._metrics.pop(rank, None)
        if watch is not None:
            self._watches.pop(rank).close()
        gpu = gpu_of(self._logs, rank) if self._on_gpus else None
        if pid is not None and (gpu or not self._on_gpus):
            self._watches[rank] = MachineWatch(pid, ours=ours, gpu=gpu)
