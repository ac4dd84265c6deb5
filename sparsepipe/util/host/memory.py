"""How much memory this machine, or the container that this process is in, still has."""

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CONTAINER = Path("/sys/fs/cgroup")


def available_bytes() -> float:
    """Return the bytes that new processes can allocate; infinity where the system does not say."""
    return min(_of_machine(), _of_container())


def _of_machine() -> float:
    try:
        rows = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        return float(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return float("inf")


def _of_container(folder: Path = _CONTAINER) -> float:
    try:
        limit, used = (float((folder / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no container, or "max"
        return float("inf")
    try:  # what is kept of files that nobody reads any more is given up for whoever needs memory
        rows = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return limit - used + float(rows["inactive_file"])
    except (OSError, ValueError, KeyError):
        return limit - used
