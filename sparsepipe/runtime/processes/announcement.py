"""One thing that rank 0 announces to all ranks of this host, in memory that they share: a command, and when it is due.

To look costs less than a microsecond. Whoever looks after the announcement sees it, without any message.
"""

import mmap
import os
import struct
from pathlib import Path

_WORD = struct.Struct("=q")
_SERIAL, _COMMAND, _MINIBATCH = 0, 8, 16  # bytes
_SIZE = 24


class Announcement:
    """The file, mapped; without a path, memory of this process alone. Rank 0 opens it first, and makes it blank."""

    def __init__(self, path: Path | None, *, blank: bool = True) -> None:
        self._path = path if blank else None
        if path is None:
            self._map = mmap.mmap(-1, _SIZE)
            return
        with path.open("a+b") as handle:
            handle.truncate(_SIZE)
            if hasattr(os, "posix_fallocate"):  # on a full disk this raises; to write to the map would be SIGBUS
                os.posix_fallocate(handle.fileno(), 0, _SIZE)
            self._map = mmap.mmap(handle.fileno(), _SIZE)
        if blank:
            self._map[:] = bytes(_SIZE)

    def make(self, command: int, minibatch: int) -> None:
        """Announce a command (by its number) that is due before `minibatch`. Rank 0 does, once the last one is over."""
        _WORD.pack_into(self._map, _COMMAND, command)
        _WORD.pack_into(self._map, _MINIBATCH, minibatch)
        _WORD.pack_into(self._map, _SERIAL, self.serial + 1)  # last: by then the rest is there

    @property
    def serial(self) -> int:
        """How many there have been."""
        return int(_WORD.unpack_from(self._map, _SERIAL)[0])

    def read(self) -> tuple[int, int]:
        """Return the newest one's command and minibatch."""
        return _WORD.unpack_from(self._map, _COMMAND)[0], _WORD.unpack_from(self._map, _MINIBATCH)[0]

    def close(self) -> None:
        """Unmap it; who made it blank removes the file, too, which others may still have mapped."""
        self._map.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
