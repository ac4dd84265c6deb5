"""drift.jsonl in a run's folder: a row for each lasting change that was found while somebody followed the run."""

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from threading import Lock

from ..errors import InputError
from ..records import RunRecord
from .alarms import Alarm

NAME = "drift.jsonl"


class DriftFile:
    """The drift.jsonl of a run, to which the first who opens it adds rows as long as it lives; others add none.

    An alarm that is there already, of somebody who followed the run before, is not added again. If a disk is full,
    or the folder not one's own, the run continues without.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._file, self._known = folder / NAME, -1, set[str]()
        self._lock = Lock()  # a thread for each pipeline adds alarms

    def add(self, alarms: Iterable[Alarm]) -> None:
        """Write alarms that are new."""
        rows = {_key(alarm.to_json()): alarm.to_json() for alarm in alarms}
        with self._lock:
            if not rows or not self._is_ours():
                return
            lines = [json.dumps(row) + "\n" for key, row in rows.items() if key not in self._known]
            self._known |= rows.keys()
            try:
                os.write(self._file, "".join(lines).encode())
            except OSError:
                self.close()

    def close(self) -> None:
        """Let others write."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _is_ours(self) -> bool:
        if self._file >= 0:
            return True
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._known = {_key(row) for row in RunRecord(self._path.parent).drift()}
        except (OSError, InputError):  # another's, or damaged: not to be made longer
            self.close()
        return self._file >= 0

    def __del__(self) -> None:
        self.close()


def _key(row: dict[str, object]) -> str:
    """Names an alarm: whose, and which minibatch it was found at."""
    return repr((row.get("rank"), row.get("link"), row.get("minibatch")))
