"""What the machine says while a process computes: metrics by name, the same names every time on one machine."""

import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from types import TracebackType

from ...errors import InputError
from .cache_counters import CacheCounters
from .nvml import gpu_metrics
from .pressure import stalled_seconds
from .scheduler import scheduled

_LEAST_SECONDS = 1e-3


class MachineWatch:
    """Watches the machine from the place of one process (its id; this one's where none is given).

    `read` gives the metrics since the last `read`, or since the watch was made. `ours`: ids of processes at the same
    work, which are no intruders. `gpu`: the UUID of the process's GPU, or its number among NVML's, to add its gauges.
    """

    def __init__(self, pid: int | None = None, *, ours: Collection[int] = (), gpu: int | str | None = None) -> None:
        self.pid, self._ours, self._gpu = pid or os.getpid(), tuple(ours), gpu
        self._cache = CacheCounters(self.pid)
        self._at, self._before = time.monotonic(), self._totals()

    def read(self) -> dict[str, float]:
        """Return shares of time and numbers a second since the last reading, by name.

        `waited`: of the time in which the process could work, without a processor. `ran`: processors' worth of its own
        work. `busy`, `busy anywhere`: of others' work where it may run, and on all processors. `pressure …`: shares of
        time in which tasks stalled. Raises InputError for a process that is gone.
        """
        now, totals = time.monotonic(), self._totals()
        if not totals.get("ran") and self._before.get("ran"):
            raise InputError(f"process {self.pid} is gone; watch one that is alive")
        seconds = max(_LEAST_SECONDS, now - self._at)
        grown = {name: max(0.0, total - self._before.get(name, total)) for name, total in totals.items()}
        self._at, self._before = now, totals
        return {**_metrics(grown, seconds), **(gpu_metrics(self._gpu) if self._gpu is not None else {})}

    def close(self) -> None:
        self._cache.close()

    def __enter__(self) -> "MachineWatch":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError):
            self.close()

    def _totals(self) -> dict[str, float]:
        """Counters that only grow, by name."""
        return {
            **scheduled(self.pid, self._ours),
            **{f"pressure {name}": seconds for name, seconds in stalled_seconds().items()},
            **self._cache.read(),
        }


def _metrics(grown: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Turn what counters grew by into shares and rates."""
    if "ran" not in grown:
        return {name: total / seconds for name, total in grown.items()}
    able = grown["ran"] + grown["waited"]
    rates = {name: total / seconds for name, total in grown.items() if name != "waited"}
    return {"waited": grown["waited"] / able if able else 0.0, **rates}
