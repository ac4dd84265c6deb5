"""Which limit of the machine caused an error: a full disk, memory, open files, the size of a file, threads.

Libraries report it in many forms.

A SIGKILL that none of our processes sent is explained by the kernel's counters of out-of-memory kills. The supervisor
loads this file by itself: it imports the standard library alone.
"""

import errno
import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ERRNO = re.compile(r"\(os error (\d+)\)|\[Errno (\d+)\]")  # Rust's and Python's words
_SAID = {  # what C and C++ code says where it gives no number
    errno.ENOSPC: ("no space left on device",),
    errno.EDQUOT: ("disk quota exceeded",),
    errno.EFBIG: ("file too large",),
    errno.EMFILE: ("too many open files",),
    errno.ENOMEM: ("cannot allocate memory", "can't allocate memory", "bad_alloc", "not enough memory"),
    errno.EAGAIN: ("resource temporarily unavailable", "can't start new thread", "thread creation failed"),
}


def limit_met(error: BaseException, *, where: Path | None = None) -> str | None:
    """Return a sentence naming the limit that `error`, or an exception that caused it, ran into; None: it is no limit.

    `where` is the folder that was written to, for a full disk whose error names no file.
    """
    for one in causes(error):
        number = _number(one)
        if number is not None:
            named = getattr(one, "filename", None)
            return _sentence(number, where if named is None else Path(os.fsdecode(named)))
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error`, or an exception that caused it, is an allocation that failed, also on a GPU."""
    return any(_number(one) == errno.ENOMEM or type(one).__name__ == "OutOfMemoryError" for one in causes(error))


def limit_in(text: str, *, where: Path | None = None) -> str | None:
    """Return the same sentence for a process that left nothing but a log, from the end of that log."""
    number = _number_in(text)
    return None if number is None else _sentence(number, where)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception and all that it comes from, the nearest first."""
    cause: BaseException | None = error
    seen = set[int]()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _number(error: BaseException) -> int | None:
    """Return the error number of a limit, None if the exception itself speaks of none."""
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    if isinstance(error, OSError) and error.errno is not None:
        if error.errno == errno.ENFILE:
            return errno.EMFILE
        return error.errno if error.errno in _SAID and not isinstance(error, BlockingIOError) else None
    return _number_in(str(error))


def _number_in(text: str) -> int | None:
    if found := _ERRNO.search(text):
        number = int(found[1] or found[2])
        return number if number in _SAID else None
    lowered = text.lower()
    return next((number for number, words in _SAID.items() if any(word in lowered for word in words)), None)


def _sentence(number: int, where: Path | None) -> str:
    if number == errno.ENOSPC:
        return f"No space left on device: the disk of {where or 'its files'} is full; free some space on it"
    if number == errno.EDQUOT:
        return (
            f"Disk quota exceeded: your share of the disk of {where or 'its files'} is used up; free some space on it"
        )
    if number == errno.EFBIG:
        name = "a file" if where is None else f"a file in {where}" if where.is_dir() else f"{where}"
        return f"File too large: {name} would exceed the file size limit{_limit('RLIMIT_FSIZE', '-f', 'bytes')}"
    if number == errno.EMFILE:
        return f"Too many open files: no more can be opened{_limit('RLIMIT_NOFILE', '-n', 'files')}"
    if number == errno.EAGAIN:
        limits = _memory() or _limit("RLIMIT_NPROC", "-u", "processes")
        what = "no thread or process could be started: too little memory or too many processes"
        return f"Resource temporarily unavailable: {what}{limits}"
    return f"Cannot allocate memory: not enough is available{_memory()}"


def _memory() -> str:
    return _limit("RLIMIT_AS", "-v", "bytes of address space")


def _limit(name: str, option: str, unit: str) -> str:
    """The limit that is set for this process, in brackets; nothing if there is none."""
    most = resource.getrlimit(getattr(resource, name))[0]
    return "" if most == resource.RLIM_INFINITY else f" (ulimit {option}: {most:,} {unit})"


_MEMINFO = Path("/proc/meminfo")
_CONTAINER = Path("/sys/fs/cgroup")
_NEARLY_ALL = 0.03  # of all memory, below which what is left may end a process


def available_bytes() -> float:
    """Return the bytes that new processes can allocate; infinity where the system does not say."""
    return min(_of_machine(), _of_container())


def short_of_memory() -> str | None:
    """Return how much memory is left if it is nearly used up, here or in the container; None if it is not."""
    for left, total in ((_of_machine(), _of_machine("MemTotal")), (_of_container(), _limit_of_container())):
        if left < _NEARLY_ALL * total < float("inf"):
            return f"{left / 1e6:,.0f} of {total / 1e6:,.0f} MB were left"
    return None


def _of_machine(row: str = "MemAvailable") -> float:
    try:
        rows = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        return float(rows[row].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return float("inf")


def _limit_of_container(folder: Path = _CONTAINER) -> float:
    try:
        return float((folder / "memory.max").read_text())
    except (OSError, ValueError):  # no container, or "max"
        return float("inf")


def _of_container(folder: Path = _CONTAINER) -> float:
    limit = _limit_of_container(folder)
    try:
        used = float((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return float("inf")
    if limit == float("inf"):
        return limit
    try:  # what is kept of files that nobody reads any more is given up for whoever needs memory
        rows = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return limit - used + float(rows["inactive_file"])
    except (OSError, ValueError, KeyError):
        return limit - used


_GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class MemoryKills:
    """Out-of-memory kills so far: in this process's control group, and on the whole machine; None if unknown."""

    group: int | None
    machine: int | None

    @classmethod
    def now(cls) -> "MemoryKills":
        return cls(_of_group(), _counted(Path("/proc/vmstat")))

    def since(self, before: "MemoryKills") -> str | None:
        """Return a clause on kills since `before`; None if there were none, or none are counted."""
        if _more(self.group, before.group):
            return "by the kernel, because memory ran out (oom_kill of its control group rose)"
        if _more(self.machine, before.machine):
            return "perhaps by the kernel, because memory ran out (oom_kill of this machine rose)"
        return None


def _more(now: int | None, before: int | None) -> bool:
    return now is not None and before is not None and now > before


def _of_group() -> int | None:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        number, names, path = line.split(":", 2)
        if number == "0" and not names:
            found = _counted(_GROUPS / path.lstrip("/") / "memory.events")
        elif "memory" in names.split(","):
            found = _counted(_GROUPS / "memory" / path.lstrip("/") / "memory.oom_control")
        else:
            continue
        if found is not None:
            return found
    return None


def _counted(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
