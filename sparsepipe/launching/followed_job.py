"""`FollowedJob`: the job of a run whose record is on this machine, whoever started it."""

import copy
import errno
import json
import os
import stat
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from ..errors import InputError, RunFailed
from ..records import RunRecord
from ..records.record_files import METRICS
from ..runtime import commands
from ..util.host.limits import limit_met
from ..util.text.numbers import number_of
from ..values.plan import Plan
from .base import MetricsRow
from .handle import Handle
from .replan import replanned, request_replan
from .supervisor import GOING_ON, gone, read_status

_BYTES_AT_ONCE = 2**22  # so that a long record is not in memory as a whole


# Tail of metrics.jsonl: rows read from a file while it grows
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


MOST = 20_000  # rows, of some 1.3 KB each

_POLLS_A_SECOND = 10
_TO_END = 30.0  # seconds that a job has to end once it was asked to, at once where the machine is not busy
_ENDED_BEFORE = 1.0  # seconds in which the rows of nearly every run that had ended are read
_TO_READ = 3.0  # seconds in which a status that cannot be read now may be readable again


class FollowedJob:
    """A run followed through its folder: one thread reads its metrics until its handle says that no process is left.

    Whatever becomes of that thread, or of the files that it reads, the wait for the job ends when the job does. Rows in
    memory are bounded (`KeptRows`); `wait` and `poll` read what they tell from the file.
    """

    def __init__(self, record: RunRecord, handle: Handle, tail: Tail | None = None) -> None:
        self.record = record
        self._handle = handle
        self._tail = tail or Tail(record.folder / "metrics.jsonl")
        self._start, self._polled = self._tail.copy(), self._tail.copy()
        self._rows = KeptRows()
        self._changed = threading.Condition()
        self._ended = False
        self._watchers: list[threading.Thread] = []
        self._status: MetricsRow = {"state": "running"}
        self._thread = threading.Thread(target=self._follow, name=f"job {record.name}", daemon=True)
        self._thread.start()
        if not handle.alive():  # it would run for as long as its rows are read
            self._thread.join(timeout=_ENDED_BEFORE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: Any) -> None:
        if error is not None:
            self.cancel()

    @property
    def running(self) -> bool:
        return not self._ended

    @property
    def state(self) -> str:
        return str(self._status["state"])

    @property
    def rows(self) -> tuple[MetricsRow, ...]:
        with self._changed:
            return self._rows.all()

    def poll(self) -> list[MetricsRow]:
        rows: list[MetricsRow] = []
        while new := self._polled.read():
            rows += new
        return rows

    def wait(self, timeout: float | None = None, on_row: Callable[[MetricsRow], None] | None = None) -> MetricsRow:
        deadline = None if timeout is None else time.monotonic() + timeout
        tail = self._start.copy()
        while True:
            ended = self._ended
            new = tail.read() if on_row else []
            for row in new:
                on_row(row)  # type: ignore[misc]  # there are none without it
            if ended and not new:
                for watcher in self._watchers:
                    watcher.join(timeout=_TO_END)
                return self._result()
            if deadline is not None and time.monotonic() > deadline and not ended:
                raise TimeoutError(f"{self.record.folder}: still running after {timeout:g} s")
            with self._changed:
                if not self._ended and not new:
                    self._changed.wait(1 / _POLLS_A_SECOND)

    def wait_for(self, watcher: threading.Thread) -> None:
        self._watchers.append(watcher)

    def stop(self) -> None:
        if not self._ended:
            commands.ask(self.record.folder, commands.STOP)

    def replan(
        self, plan: Plan, *, reason: str = "", predicted_gain_seconds: float | None = None, wait: bool = True
    ) -> int | None:
        folder = self.record.folder
        asked = request_replan(folder, plan, reason=reason, predicted_gain_seconds=predicted_gain_seconds)
        if asked.doubt:
            warnings.warn(asked.doubt, stacklevel=2)
        return replanned(folder, asked.token, running=lambda: self.running) if wait else None

    def cancel(self) -> None:
        if self._ended:
            return
        self._handle.stop()
        self._thread.join(timeout=_TO_END)
        if not self._ended:
            raise RunFailed(
                "run.guard_silent",
                f"{self.record.folder}: still running {_TO_END:g} s after the stop request; end its processes",
            )

    def _result(self) -> MetricsRow:
        status = self._status
        if self._tail.damaged:
            where = self.record.folder / "metrics.jsonl"
            warnings.warn(f"{where}: skipped, not a valid row: {number_of(self._tail.damaged, 'line')}", stacklevel=3)
        if status["state"] in ("finished", "stopped"):
            if summary := self._rows.last("summary"):
                return summary
            raise RunFailed(
                "run.no_summary",
                f"{self.record.folder}: the run {status['state']}, but its metrics.jsonl has lost the summary; run "
                "it again",
            )
        reason = status.get("reason", f"ended in state {status['state']!r}")
        if status.get("exit_code") == 2:
            raise InputError(status.get("code") or "run.refused", reason)
        raise RunFailed(status.get("code") or "run.failed", f"{self.record.folder}: {reason}")

    def _follow(self) -> None:
        """Read new rows until the processes are gone, then those of the end. However this ends, so does the wait."""
        status: MetricsRow = {"state": "failed", "reason": "its follower ended"}
        try:
            while self._handle.alive():
                self._read()
                self._handle.wait(1 / _POLLS_A_SECOND)
            self._read()
            status = self._settled()
            self._handle.let_go()
        except BaseException as error:
            told = limit_met(error) or f"{type(error).__name__}: {error}"
            status = {"state": "failed", "reason": f"it could not be followed ({told}); runs attach follows it again"}
            raise
        finally:
            with self._changed:
                self._status, self._ended = status, True
                self._changed.notify_all()

    def _settled(self) -> MetricsRow:
        """Return the status of a run whose processes are gone, and write it where they could not."""
        if told := self._handle.last_words():
            return told
        status = self._status_on_disk()
        if status["state"] not in GOING_ON:
            return status
        if not self.record.folder.is_dir():
            return {"state": "failed", "reason": gone(self.record.folder)}
        try:
            self.record.write_status("failed", reason="its supervisor was killed")
        except OSError as error:
            reason = f"how it ended could not be written ({error.strerror}); free disk space, then resume it"
            return {"state": "failed", "reason": reason}
        return {"state": "failed", "reason": "its supervisor was killed"}

    def _status_on_disk(self) -> MetricsRow:
        """Read how the run stands. What fails for want of descriptors is tried again; damage is an end of its own."""
        deadline = time.monotonic() + _TO_READ
        while True:
            try:
                return read_status(self.record.folder)
            except ValueError as error:
                why = f"{self.record.folder / 'status.json'} is damaged, {error}"
            except OSError as error:
                why = f"status.json cannot be read ({error.strerror})"
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM) and time.monotonic() < deadline:
                    time.sleep(1 / _POLLS_A_SECOND)
                    continue
            return {"state": "unknown", "reason": f"its end is unknown: {why}"}

    def _read(self) -> None:
        while rows := self._tail.read():
            with self._changed:
                self._rows.add(rows)
                self._changed.notify_all()


class KeptRows:
    """The newest rows and, of older ones, evenly fewer: never more than `most`.

    When there are more, every other one of the older half is let go. The first of each event stays, as "start" says
    what the run is. The file has all of them.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._rows: list[dict[str, Any]] = []

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            self._rows.append(row)
            if len(self._rows) > self._most:
                self._thin()

    def all(self) -> tuple[dict[str, Any], ...]:
        return tuple(self._rows)

    def last(self, event: str) -> dict[str, Any] | None:
        return next((row for row in reversed(self._rows) if row["event"] == event), None)

    def _thin(self) -> None:
        half = len(self._rows) // 2
        older, known = [], set()
        for place, row in enumerate(self._rows[:half]):
            if row["event"] not in known or place % 2:
                older.append(row)
            known.add(row["event"])
        self._rows[:half] = older
