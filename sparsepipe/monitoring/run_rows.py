"""What a run's files say while they grow: new spans of its ranks, and the sizes of new minibatches."""

import json
import os
import stat
from pathlib import Path
from typing import Any

from ..launching.metrics_tail import Tail
from ..runtime.pipelines.tallies import MINIBATCHES
from ..util.text.sizes import SIZE_UNITS
from ..values.trace import Span, span_of
from .observations import LeftOutWork, left_out_of

_BYTES_AT_ONCE = 2**22
_LOOKS = 20  # after which nobody says any more who took a minibatch: it was before


class RunRows:
    """Read the rows of a run since the last call. Ended and resumed runs are read in the same way.

    Malformed lines are skipped and counted in `damaged`. An incomplete last line is read later.
    """

    def __init__(self, folder: Path, *, units: tuple[str, ...] = SIZE_UNITS) -> None:
        """`units`: of the sizes wanted; the first of them that a row has counts."""
        self._folder, self._units = folder, units
        self._metrics = Tail(folder / "metrics.jsonl")
        self._left_out: list[LeftOutWork] = []
        self._ranks: dict[Path, _SpanTail] = {}

    @property
    def damaged(self) -> int:
        """Number of skipped lines."""
        return self._metrics.damaged + sum(tail.damaged for tail in self._ranks.values())

    def read(self) -> tuple[list[Span], dict[int, float]]:
        """Return new spans, those of each rank in the order of their ends, and sizes by minibatch."""
        sizes: dict[int, float] = {}
        while rows := self._metrics.read():
            sizes |= step_sizes(rows, self._units)
            self._left_out += left_out_of(rows)
        spans: list[Span] = []
        for path in sorted(self._folder.glob("trace-rank*.jsonl")):
            spans += self._ranks.setdefault(path, _SpanTail(path)).read()
        return spans, sizes

    def left_out(self) -> list[LeftOutWork]:
        """Return the times of ranks without stages that `read` has found since the last call."""
        found, self._left_out = self._left_out, []
        return found


class TakenMinibatches:
    """Minibatches that one of several pipelines has processed since creation, in order, counted from 0."""

    def __init__(self, run_dir: Path, pipeline: int) -> None:
        self._path, self._pipeline = run_dir / MINIBATCHES, pipeline
        self._place = self._path.stat().st_size if self._path.exists() else 0
        self._numbers: list[int] = []  # in the run
        self._own: dict[int, int] = {}
        self._of_all = 0  # the newest that any pipeline took
        self._num_taken = 0  # by all pipelines
        self.epoch_minibatches = 0  # until the run has begun

    def read(self) -> None:
        """Take what came since the last call."""
        if not self.epoch_minibatches or not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._place)
            whole = _whole_lines(file.read())
        self._place += len(whole)
        for line in whole.splitlines():
            try:
                row = json.loads(line)
                if row["event"] == "taken":
                    first = row["epoch"] * self.epoch_minibatches
                    self._add(row["pipeline"], [first + minibatch for minibatch in row["minibatches"]])
            except (ValueError, KeyError, TypeError):  # damaged: told by those who read the record
                continue

    def _add(self, pipeline: int, numbers: list[int]) -> None:
        self._of_all, self._num_taken = max(self._of_all, *numbers), self._num_taken + len(numbers)
        for number in numbers if pipeline == self._pipeline else ():
            self._own[number] = len(self._numbers)  # one that was put back is trained anew
            self._numbers.append(number)

    def own(self, number: int) -> int | None:
        """Return how this pipeline counts a minibatch of the run; None of one that it did not take, as far as known."""
        return self._own.get(number)

    def number(self, own: int) -> int:
        """Return the number in the run of a minibatch that it counts so; of one to come the next that no one has."""
        return self._numbers[own] if 0 <= own < len(self._numbers) else self._of_all + 1

    def first_from(self, number: int) -> int:
        """Return how it counts the first of those that it took from minibatch `number` of the run on."""
        self.read()
        return 1 + max((own for each, own in self._own.items() if each < number), default=-1)

    def expected(self, total: int) -> int:
        """Return how many it takes of a run of so many, if its share of what is left is that of what was taken."""
        left = max(0, total - 1 - self._of_all)
        return len(self._numbers) + round(left * len(self._numbers) / max(1, self._num_taken))


class PipelineRows:
    """As `RunRows`, of one of several pipelines, its minibatches as it counts them."""

    def __init__(self, folder: Path, taken: TakenMinibatches) -> None:
        self._rows, self._taken = RunRows(folder), taken
        self._waiting: list[tuple[int, Span]] = []  # looks left, until it is known who took their minibatches
        self._sizes: dict[int, tuple[int, float]] = {}

    def read(self) -> tuple[list[Span], dict[int, float]]:
        """Return new spans, those of each rank in the order in which they ended, and sizes by minibatch."""
        spans, sizes = self._rows.read()
        self._taken.read()
        self._waiting += [(_LOOKS, span) for span in spans if span.minibatch >= 0]
        self._sizes |= {number: (_LOOKS, size) for number, size in sizes.items()}
        known = [
            span._replace(minibatch=own)
            for _, span in self._waiting
            if (own := self._taken.own(span.minibatch)) is not None
        ]
        found = {own: size for number, (_, size) in self._sizes.items() if (own := self._taken.own(number)) is not None}
        self._waiting = [(n - 1, s) for n, s in self._waiting if n > 1 and self._taken.own(s.minibatch) is None]
        self._sizes = {m: (n - 1, s) for m, (n, s) in self._sizes.items() if n > 1 and self._taken.own(m) is None}
        return known, found

    def left_out(self) -> list[LeftOutWork]:
        """Return nothing: none of its ranks is left out."""
        return []


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

    If a shorter file took its place, as of a long run, it is read again, without the spans that were there before.
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
