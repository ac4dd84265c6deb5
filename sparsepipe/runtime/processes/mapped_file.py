"""A file of a fixed size that the processes of one host map, so that each sees at once what another writes."""

import mmap
import os
from pathlib import Path

from ...errors import InputError
from ...util.host.limits import limit_met


def mapped_file(path: Path, size: int) -> mmap.mmap:
    """Map the file, filled with zeros if it is new.

    Raises OSError if its disk has no room for it, and InputError if it cannot be shared in memory there.
    """
    with path.open("ab+") as handle:
        missing = size - os.fstat(handle.fileno()).st_size
        handle.write(bytes(max(0, missing)))  # on a full disk this raises; to write to the map would be SIGBUS
        handle.truncate(size)  # others may have added as much at the same time
        try:
            return mmap.mmap(handle.fileno(), size)
        except OSError as error:
            if limit_met(error):
                raise
            raise InputError(
                "disk.not_mappable",
                f"{path}: its disk does not support shared memory mappings ({error.strerror}); choose a run folder on "
                "another disk, or mount it with support for mmap (9p: -o cache=mmap; FUSE: without -o direct_io)",
            ) from None
