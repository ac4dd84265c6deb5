"""Locks of files by `flock`: held by a descriptor until it is closed. Some disks of networks have none."""

import errno
import fcntl
from pathlib import Path

from ...errors import InputError


def lock_file(descriptor: int, how: int, *, path: Path, remedy: str) -> bool:
    """Lock a file that is open; return whether that was done: with LOCK_NB another process may have it.

    Args:
        how: LOCK_EX or LOCK_SH of `fcntl`, which wait, or one of them with LOCK_NB.
        path: what a message calls it.
        remedy: what to do if its disk has no locks.

    Raises InputError if its disk has no locks.
    """
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise InputError(
            "lock.unsupported",
            f"{path}: cannot be locked ({error.strerror}): the file system does not support locks; {remedy}, or "
            "mount it with locks (NFS: -o local_lock=flock; Lustre: -o flock)",
        ) from None
    return True
