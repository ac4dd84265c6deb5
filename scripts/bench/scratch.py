"""A folder for what a benchmark writes, which goes with it; those of benchmarks that were killed go with the next."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STALE_SECONDS = 60.0  # after which whoever made a folder has locked it


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Yield an empty folder among the system's temporary ones, called NAME-…; it is removed at the end of the block.

    Before, those of the same name are removed that nobody uses any more.
    """
    for path in Path(tempfile.gettempdir()).glob(f"{name}-*"):
        with suppress(OSError):
            if _is_left(path):
                shutil.rmtree(path, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as made:
        lock = _locked(Path(made))
        try:
            yield Path(made)
        finally:
            if lock is not None:
                os.close(lock)


def _is_left(path: Path) -> bool:
    """Whether a folder is this user's, and of nobody who is still there."""
    status = path.lstat()
    if path.is_symlink() or not path.is_dir() or status.st_uid != os.getuid():
        return False
    if time.time() - status.st_mtime < _STALE_SECONDS:
        return False
    lock = _locked(path)
    if lock is not None:
        os.close(lock)
    return lock is not None


def _locked(folder: Path) -> int | None:
    """Lock a folder; return the descriptor that holds the lock until it is closed, None where another has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
