"""Tail of metrics.jsonl: rows read from a file while it grows."""

import copy
import json
import os
import stat
from pathlib import Path
from typing import Any

from ..records.record_files import METRICS

_BYTES_AT_ONCE = 2**22  # so that a long record is not in memory as a whole


class Tail:
    """Reads whole rows as they come, by the file's name: of another file put in its place it reads what is new in it.

    A run that resumes replaces its metrics by those it keeps, up to a row "resume", and continues behind it. A file
    that was cut short is read from its beginning. Lines that are no rows are passed over and counted; a file that
    cannot be read now, or is none, has no new rows.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode: int | None = None
        self._place = 0
        self._within = False  # a line without an end, of which the rest is passed over too
        self.damaged = 0  # lines passed over

    def copy(self) -> "Tail":
        """Return another tail that starts at this one's position."""
        return copy.copy(self)

    def skip(self) -> None:
        """Move behind everything that is in the file now: the rows of a run that is about to resume."""
        if self._path.exists():
            status = self._path.stat()
            self._inode, self._place = status.st_ino, status.st_size

    def read(self) -> list[dict[str, Any]]:
        """Return rows since the last call, of a long file the first of them: none are left when it returns none.

        A last line that is not whole yet waits for the next call.
        """
        return [row for row, _ in self.read_lines()]

    def read_lines(self) -> list[tuple[dict[str, Any], bytes]]:
        """Return what `read` does, each row with its line, as it is in the file but for the line's end."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would block
        except OSError:
            return []
        try:
            return self._new_rows(descriptor)
        except OSError:
            return []
        finally:
            os.close(descriptor)

    def _new_rows(self, descriptor: int) -> list[tuple[dict[str, Any], bytes]]:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return []
        if self._inode is not None and status.st_ino != self._inode:
            self._begin(status.st_ino, _last_resume(descriptor))
        elif self._inode is None or status.st_size < self._place:
            self._begin(status.st_ino, 0)
        rows: list[tuple[dict[str, Any], bytes]] = []
        while not rows and (data := os.pread(descriptor, _BYTES_AT_ONCE, self._place)):
            whole = data.rfind(b"\n") + 1
            if not whole and len(data) < _BYTES_AT_ONCE:
                break  # a line that is being written
            rows = self._rows(data[:whole]) if whole else self._no_row()
            self._place += whole or len(data)
        return rows

    def _begin(self, inode: int, place: int) -> None:
        self._inode, self._place, self._within = inode, place, False

    def _rows(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Return the rows of whole lines, and these."""
        lines = data.split(b"\n")
        if self._within:
            del lines[0]
            self._within = False
        found = [(row_of(line), line) for line in lines if line.strip()]
        rows = [(row, line) for row, line in found if row is not None]
        self.damaged += len(found) - len(rows)
        return rows

    def _no_row(self) -> list[tuple[dict[str, Any], bytes]]:
        """Pass over a part of a line that is too long to be a row."""
        self.damaged += not self._within
        self._within = True
        return []


def _last_resume(descriptor: int) -> int:
    """Return where the last row "resume" starts; 0 if there is none."""
    found = place = 0
    while data := os.pread(descriptor, _BYTES_AT_ONCE, place):
        whole = data.rfind(b"\n") + 1 or len(data)
        start = place
        for line in data[:whole].splitlines(keepends=True):
            if b"resume" in line and (row := row_of(line)) and row["event"] == "resume":
                found = start
            start += len(line)
        place += whole
    return found


def row_of(line: bytes) -> dict[str, Any] | None:
    """Return the row of a line, None if it is no row of metrics."""
    try:
        row = json.loads(line)
        return METRICS(row, "row") if isinstance(row, dict) and "event" in row else None
    except (ValueError, RecursionError):  # no JSON, or a field of another type
        return None
