"""The rows of a file that still grows."""

import json
import os
from pathlib import Path
from typing import Any


class Tail:
    """Reads whole rows as they come. Follows the name: where another file takes its place, only what is new in it.

    A run that resumes replaces its metrics by those it keeps, up to a row "resume", and goes on behind it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode: int | None = None
        self._place = 0

    def skip(self) -> None:
        """Leave out what is in the file now: it is of a run that is about to go on."""
        if self._path.exists():
            status = self._path.stat()
            self._inode, self._place = status.st_ino, status.st_size

    def read(self) -> list[dict[str, Any]]:
        """Return the rows since the last call. A last line that is not whole yet waits for the next."""
        try:
            with self._path.open("rb") as handle:
                return self._new_rows(handle)
        except FileNotFoundError:
            return []

    def _new_rows(self, handle: Any) -> list[dict[str, Any]]:
        inode = os.fstat(handle.fileno()).st_ino
        replaced = self._inode is not None and inode != self._inode
        if inode != self._inode:
            self._inode, self._place = inode, 0
        handle.seek(self._place)
        data = handle.read()
        whole = data.rfind(b"\n") + 1
        self._place += whole
        rows = [json.loads(line) for line in data[:whole].splitlines() if line.strip()]
        if replaced:
            marks = [place for place, row in enumerate(rows) if row.get("event") == "resume"]
            return rows[marks[-1] :] if marks else rows
        return rows
