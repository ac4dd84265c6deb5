"""The lock of a run's folder: one run in a folder at a time, and everybody can see whether a run is alive.

The run's supervisor holds it from before it starts to its end, however it ends. Any process of the same user can hold
it too, by `flock` on the file: then no run is alive, and messages name the process that holds it.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ..errors import InputError
from ..util.io.files import lock_file

LOCK = Path("logs", ".lock")
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a folder of others may have a link or a pipe in its place
_REMEDY = "choose a run folder on another disk"
_TO_LOOK = 0.5  # seconds that whoever looks whether it is held may have it, on a busy machine


def hold(folder: Path) -> int:
    """Lock a run's folder, creating it if needed; return the file descriptor that holds the lock.

    Raises InputError if a run is at work in it, somebody else holds the lock, the folder cannot be made, or its disk
    has no locks.
    """
    try:
        (folder / LOCK).parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
    except OSError as error:
        text = f"{folder}: cannot contain a run ({error.strerror}); choose another {{run_dir}}"
        raise InputError("run_dir.unusable", text, setting="run_dir") from None
    path = folder / LOCK
    try:
        locked = _locks(lock, path) or (guard_of(folder) is None and _locks(lock, path, seconds=_TO_LOOK))
    except InputError:
        os.close(lock)
        raise
    if locked:
        if os.fstat(lock).st_uid == os.geteuid():
            os.fchmod(lock, 0o600)  # one that an earlier version made: nobody else may open it, and so lock it
        return lock
    os.close(lock)
    if guard_of(folder) is None and (who := held_by(folder)):
        raise InputError(
            "run_dir.in_use", f"{folder}: {who}; end that process, or choose another {{run_dir}}", setting="run_dir"
        )
    text = f"{folder}: this run is still running; cancel it first, or choose another {{run_dir}}"
    raise InputError("run_dir.in_use", text, setting="run_dir")


def is_held(folder: Path) -> bool:
    """Return whether a run is alive in the folder, or about to start.

    If the lock is another user's and cannot be opened, or its disk has no locks, the supervisor process is looked for
    instead. Raises OSError if neither can be found out at this moment, as with too many files open.
    """
    try:
        lock = os.open(folder / LOCK, os.O_RDONLY | _FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.ELOOP):
            raise
        return guard_of(folder) is not None
    try:
        return not _locks(lock, folder / LOCK, fcntl.LOCK_SH)
    except InputError:
        return guard_of(folder) is not None
    finally:
        os.close(lock)


def held_by(folder: Path) -> str | None:
    """Return a sentence naming the other processes that hold the lock; None if none is known, or it is this one."""
    holders = [pid for pid in _holders(folder) if pid != os.getpid()]
    if not holders:
        return None
    named = ", ".join(f"{pid} ({_command(pid)})" for pid in holders[:3])
    return f"its lock {LOCK} is held by process {named}, which is not the supervisor of this run"


def guard_of(folder: Path) -> int | None:
    """Return the process id of the supervisor that is at work in the folder, None if none is found."""
    own = os.fsencode(folder.resolve())
    for pid in _processes():
        words = _words(pid)
        if own in words and any(word.endswith(b"supervisor.py") for word in words):
            return pid
    return None


def _locks(descriptor: int, path: Path, how: int = fcntl.LOCK_EX, *, seconds: float = 0.005) -> bool:
    """Try to lock, for so many seconds, since whoever looks whether it is held has it for a moment."""
    deadline = time.monotonic() + seconds
    while not lock_file(descriptor, how | fcntl.LOCK_NB, path=path, remedy=_REMEDY):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.001)
    return True


def _holders(folder: Path) -> list[int]:
    """Ids of the processes that have the lock's file open or, by /proc/locks, have locked it, as far as we may see."""
    try:
        status = (folder / LOCK).stat()
    except OSError:
        return []
    found = [pid for pid in _processes() if (status.st_dev, status.st_ino) in _open_files(pid)]
    return found or _of_the_kernels_list(status.st_dev, status.st_ino)


def _of_the_kernels_list(device: int, inode: int) -> list[int]:
    name = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [int(row[4]) for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5] == name and int(row[4]) > 0]


def _open_files(pid: int) -> Iterator[tuple[int, int]]:
    try:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            try:
                status = path.stat()
            except OSError:
                continue  # closed meanwhile
            yield status.st_dev, status.st_ino
    except OSError:
        return  # ended, or another user's


def _processes() -> list[int]:
    try:
        return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    except OSError:
        return []  # a system that does not tell


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _command(pid: int) -> str:
    words = b" ".join(_words(pid)).decode(errors="replace").strip()
    return words if len(words) <= 80 else f"{words[:77]}..."
