"""What a run's files say while they grow: new spans of its ranks, and the sizes of new minibatches."""

import json
import os
import stat
from pathlib import Path
from typing import Any

from ..display.sizes import SIZE_UNITS
from ..launchers.metrics_tail import Tail
from ..trace import Span, span_of
from .observations import LeftOut, left_out_of

_BYTES_AT_ONCE = 2**22


class RunRows:
    """Reads what came since the last call. A run that is over, or goes on in a resumed job, is read alike.

    Lines that are no rows are passed over and counted in `damaged`; a last line that is not whole yet waits.
    """

    def __init__(self, folder: Path, *, units: tuple[str, ...] = SIZE_UNITS) -> None:
        """`units`: of the sizes wanted; the first of them that a row has counts."""
        self._folder, self._units = folder, units
        self._metrics = Tail(folder / "metrics.jsonl")
        self._left_out: list[LeftOut] = []
        self._ranks: dict[Path, _SpanTail] = {}

    @property
    def damaged(self) -> int:
        """Lines that were passed over."""
        return self._metrics.damaged + sum(tail.damaged for tail in self._ranks.values())

    def read(self) -> tuple[list[Span], dict[int, float]]:
        """Return new spans, those of each rank in the order in which they ended, and sizes by minibatch."""
        sizes: dict[int, float] = {}
        while rows := self._metrics.read():
            sizes |= step_sizes(rows, self._units)
            self._left_out += left_out_of(rows)
        spans: list[Span] = []
        for path in sorted(self._folder.glob("trace-rank*.jsonl")):
            spans += self._ranks.setdefault(path, _SpanTail(path)).read()
        return spans, sizes

    def left_out(self) -> list[LeftOut]:
        """Return the times of ranks that the plan leaves out which `read` has met since the last call."""
        found, self._left_out = self._left_out, []
        return found


def step_sizes(rows: list[dict[str, Any]], units: tuple[str, ...] = SIZE_UNITS) -> dict[int, float]:
    """Return the size of each minibatch that rows of metrics tell of, in the first of `units` that a row has."""
    found = {}
    for row in rows:
        if row["event"] == "step" and "minibatch" in row:
            if unit := next((unit for unit in units if unit in row), None):
                found[row["minibatch"]] = float(row[unit])
    return found


class _SpanTail:
    """Reads whole rows of one rank's spans as they come.

    Where a shorter file took its place, as of a long run, it is read again, without the spans that were there before.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode: int | None = None
        self._place, self._last = 0, float("-inf")  # and when the newest span ended
        self._known = float("-inf")  # until when spans of another file that stood here have been read
        self.damaged = 0

    def read(self) -> list[Span]:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would block
        except OSError:
            return []
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return []
            if status.st_ino != self._inode or status.st_size < self._place:
                self._inode, self._place, self._known = status.st_ino, 0, self._last
            spans: list[Span] = []
            while whole := _whole_lines(os.pread(descriptor, _BYTES_AT_ONCE, self._place)):
                self._place += len(whole)
                spans += self._new(whole)
            return spans
        except OSError:
            return []
        finally:
            os.close(descriptor)

    def _new(self, data: bytes) -> list[Span]:
        spans = []
        for line in data.splitlines():
            try:
                row = json.loads(line)
                if "left_out" in row:
                    continue
                span = span_of(row)
            except (ValueError, RecursionError, TypeError):
                self.damaged += 1
                continue
            if span.end > self._known:
                spans.append(span)
        self._last = max([self._last, *(span.end for span in spans)])
        return spans


def _whole_lines(data: bytes) -> bytes:
    """The lines of some bytes that have an end; all of them where a single line is longer than that."""
    return data[: data.rfind(b"\n") + 1] or (data if len(data) == _BYTES_AT_ONCE else b"")
