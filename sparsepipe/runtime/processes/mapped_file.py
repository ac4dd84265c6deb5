"""A file of a fixed size that the processes of one host map, so that each sees at once what another writes."""

import mmap
import os
from pathlib import Path


def mapped_file(path: Path, size: int) -> mmap.mmap:
    """Map the file, made with zeros where it was not there. Raises OSError where the disk has no room for it."""
    with path.open("a+b") as handle:
        handle.truncate(size)
        if hasattr(os, "posix_fallocate"):  # on a full disk this raises; to write to the map would be SIGBUS
            os.posix_fallocate(handle.fileno(), 0, size)
        return mmap.mmap(handle.fileno(), size)
