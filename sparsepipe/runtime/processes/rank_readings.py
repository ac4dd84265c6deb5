"""What each rank's machine says, from the rank's host to whoever asks a predictor about the run.

record   control/readings           somebody asks for it  ──►  host   its ranks are read (rank_readings.py)
         logs/rankN.machine.json                          ◄──         logs/rankN.machine.json, again every two seconds
"""

import json
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...util.host.machine_watch import MachineWatch
from ...util.io.fields import number, shown
from ...util.io.files import write_atomic
from ..commands import FOLDER, read_own

PATTERN = "logs/rank*.machine.json"  # in a run's folder
_ASKED = "readings"
_MOST_BYTES = 2**16
_STALE_SECONDS = 10.0  # the rank has ended, or its host is lost


def ask(run_dir: Path) -> None:
    """Have the hosts of a run read the machine for their ranks. Raises OSError."""
    (run_dir / FOLDER).mkdir(mode=0o700, exist_ok=True)
    write_atomic(run_dir / FOLDER / _ASKED, "", make_folder=False)


def are_asked_for(run_dir: Path) -> bool:
    return (run_dir / FOLDER / _ASKED).exists()


def forget(run_dir: Path) -> None:
    """Take back what an earlier launch was asked for, and remove what was read then."""
    for path in (run_dir / FOLDER / _ASKED, *run_dir.glob(PATTERN)):
        path.unlink(missing_ok=True)


def write(logs: Path, rank: int, metrics: Mapping[str, float]) -> None:
    """Leave a rank's newest reading for who takes it to the record."""
    with suppress(OSError):  # a full disk: nobody is told then, and the run meets it by itself
        write_atomic(_path(logs, rank), json.dumps(dict(metrics)) + "\n", synced=False, make_folder=False)


def newest(logs: Path, rank: int) -> dict[str, float] | None:
    """Return what a rank's host has read of it in the last seconds; None if it told of nothing.

    Raises InputError in a line for a file that is none.
    """
    path = _path(logs, rank)
    try:
        if time.time() - path.stat().st_mtime > _STALE_SECONDS:
            return None
        found = json.loads(read_own(path, most_bytes=_MOST_BYTES))
    except OSError:
        return None
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError("readings.malformed", f"{path}: {error}") from None
    if not isinstance(found, dict):
        raise InputError("readings.malformed", f"{path}: contains {shown(found)}, expected an object with numbers")
    return {name: number(value, f"{path}: {shown(name)}") for name, value in found.items()}


def _path(logs: Path, rank: int) -> Path:
    return logs / f"rank{rank}.machine.json"


def uuid_of(device: Any) -> str:
    """Return the UUID of a torch.device that is a GPU."""
    import torch

    return str(torch.cuda.get_device_properties(device).uuid)


def tell_gpu(logs: Path, rank: int, device: Any) -> None:
    """Write down which GPU a rank computes on."""
    with suppress(OSError):  # a full disk: nobody watches its GPU then
        (logs / f"rank{rank}.gpu").write_text(f"{uuid_of(device)}\n")


def forget_gpu(logs: Path, rank: int) -> None:
    """Remove what a worker of that rank wrote before."""
    (logs / f"rank{rank}.gpu").unlink(missing_ok=True)


def gpu_of(logs: Path, rank: int) -> str | None:
    """Return the UUID of the GPU that a rank computes on; None if it has not told of one."""
    with suppress(OSError, ValueError):
        return (logs / f"rank{rank}.gpu").read_text().strip() or None
    return None


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
