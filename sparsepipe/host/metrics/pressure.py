"""Linux' pressure stall information: how long tasks waited for processors, memory and disks (/proc/pressure)."""

import re
from collections.abc import Mapping
from pathlib import Path

_FOLDER = Path("/proc/pressure")
_TOTAL = re.compile(r"(some|full) .*\btotal=(\d+)")


def stalled_seconds(folder: Path = _FOLDER) -> Mapping[str, float]:
    """Return the seconds since boot in which some, or all, tasks waited for each resource; empty where none is told.

    The names are such as "cpu some". "cpu full" is left out: it means nothing for a whole machine.
    """
    found = {}
    for resource in ("cpu", "memory", "io"):
        try:
            text = (folder / resource).read_text()
        except OSError:  # another system, or a kernel without it
            continue
        for which, microseconds in _TOTAL.findall(text):
            if (resource, which) != ("cpu", "full"):
                found[f"{resource} {which}"] = int(microseconds) / 1e6
    return found
