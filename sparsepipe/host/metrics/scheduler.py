"""Linux' scheduler counters of one process: how long it ran and waited, how often it changed hands (/proc/PID)."""

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from ..background_load import cpu_seconds, processor_seconds, processors_of, thread_times

_PROC = Path("/proc")
_SWITCHES = {"voluntary_ctxt_switches": "given up", "nonvoluntary_ctxt_switches": "taken off"}


def scheduled(pid: int, ours: Collection[int] = ()) -> Mapping[str, float]:
    """Return totals of a process and of the processors that it may use, as far as the system tells them.

    "ran" and "waited": seconds of its threads on processors and in the run queue. "busy" and "stolen": seconds of its
    processors at work for others than it and `ours` (ids), and given to other virtual machines; "busy anywhere": of all
    processors. "given up" and "taken off": how often its threads left a processor, by themselves or not.
    """
    threads = thread_times(pid)
    if not threads:
        return {}
    found: dict[str, float] = {
        "ran": sum(ran for ran, _ in threads.values()),
        "waited": sum(wait for _, wait in threads.values()),
    }
    own = processors_of(pid)
    used = {other: cpu_seconds(other) for other in ours}
    beside = sum(seconds for other, seconds in used.items() if processors_of(other) & own)
    busy, stolen = processor_seconds(own)
    anywhere, _ = processor_seconds(range(os.cpu_count() or 1))
    if busy is not None and stolen is not None and anywhere is not None:
        found |= {"busy": busy - found["ran"] - beside, "stolen": stolen}
        found |= {"busy anywhere": anywhere - found["ran"] - sum(used.values())}
    return {**found, **_switches(pid)}


def _switches(pid: int) -> Mapping[str, float]:
    found: dict[str, float] = {}
    with suppress(OSError):
        for folder in (_PROC / str(pid) / "task").iterdir():
            with suppress(OSError, ValueError):  # a thread that has just ended
                for line in (folder / "status").read_text().splitlines():
                    key, _, value = line.partition(":")
                    if key in _SWITCHES:
                        found[_SWITCHES[key]] = found.get(_SWITCHES[key], 0.0) + int(value)
    return found
