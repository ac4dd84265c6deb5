"""How much memory this machine, or the container that this process is in, still has."""

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_LIMIT, _USED = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))


def available_bytes() -> float:
    """Return the bytes that new processes can allocate; infinity where the system does not say."""
    return min(_of_machine(), _of_container())


def _of_machine() -> float:
    try:
        rows = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        return float(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return float("inf")


def _of_container() -> float:
    try:
        return float(_LIMIT.read_text()) - float(_USED.read_text())
    except (OSError, ValueError):  # no container, or "max"
        return float("inf")
