"""What a worker did and measured, as JSON lines: spans of its trace, and rows of the run's metrics."""

import json
import math
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ...records.record_files import read_metrics
from ...records.trace_file import TRACE_BYTES, thinned
from ...util.io.files import cut_torn_row, write_atomic, write_rows
from ..failures import work_path
from ..processes.signs_of_life import Heartbeats

_ROWS_AT_ONCE = 256
_WORK_BYTES = 500  # of the file that says what is at work
_NOTHING = "no minibatch yet"
_SECONDS_AT_MOST = 0.1  # that a row waits: who follows the run answers the sooner


class Lines:
    """A file that grows by whole lines: a batch of rows is one write to its end, so a kill tears the last at most.

    If it has grown beyond `most_bytes`, what `shortened` makes of it takes its place.
    """

    def __init__(
        self, path: Path, *, most_bytes: float = math.inf, shortened: Callable[[Path], bytes] | None = None
    ) -> None:
        self._path, self._most_bytes, self._shortened = path, most_bytes, shortened
        self._rows: list[str] = []
        self._written = time.monotonic()
        self._open()

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._bytes = os.fstat(self._file).st_size

    def add(self, row: str, *, now: float) -> None:
        self._rows.append(row)
        if len(self._rows) >= _ROWS_AT_ONCE or now - self._written > _SECONDS_AT_MOST:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            data = "".join(self._rows).encode()
            self._rows.clear()
            self._bytes += len(data)
            while data:  # a full disk raises; a partial write goes on where it stopped
                data = data[os.write(self._file, data) :]
            if self._shortened and self._bytes > self._most_bytes:
                write_atomic(self._path, self._shortened(self._path), synced=False, make_folder=False)
                os.close(self._file)
                self._open()
        self._written = time.monotonic()

    def close(self) -> None:
        self.flush()
        os.close(self._file)


class Recorder:
    """Spans and metrics of one rank. Times are seconds since the run began, on a clock all ranks of a host share.

    Of a long run's spans no more than `trace_bytes` are kept, by whole epochs of `epoch_minibatches`: see trace_file.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        rank: int,
        stage: int | None,
        origin: float,
        heartbeats: Heartbeats | None = None,
        trace_bytes: int = TRACE_BYTES,
        epoch_minibatches: int | None = None,
    ) -> None:
        self._heartbeats = heartbeats
        self.at_work = _NOTHING  # which pass of which minibatch
        self._work_path = work_path(run_dir, rank)
        self._work_path.parent.mkdir(exist_ok=True)
        self._work_file = os.open(self._work_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self.rank, self._origin = rank, origin
        self.stage = stage  # whose turn it is, where a rank has several; None: the plan leaves the rank out
        trace = run_dir / f"trace-rank{rank}.jsonl"
        cut_torn_row(trace)  # of a worker that was killed, or whose disk was full (metrics: see forget_rows)
        shortened = partial(thinned, limit=trace_bytes, epoch_minibatches=epoch_minibatches)
        self._trace = Lines(trace, most_bytes=trace_bytes, shortened=shortened)
        self._metrics = Lines(run_dir / "metrics.jsonl")
        self.spans: list[tuple[int, str, float, float]] = []  # (stage, kind, start, end) since `restart`

    def now(self) -> float:
        return time.monotonic() - self._origin

    def begin(self, kind: str, minibatch: int = -1, peer: int = -1) -> float:
        """Say to the other ranks what is done from now on. Returns now."""
        if self._heartbeats:
            self._heartbeats.tell(kind, minibatch, peer)
        return self.now()

    def note_work(self, text: str) -> None:
        """Replace the description of the current work. It outlives this process if that is killed."""
        self.at_work = text
        os.pwrite(self._work_file, text.encode()[:_WORK_BYTES].ljust(_WORK_BYTES), 0)

    def span(self, kind: str, name: str, start: float, end: float, *, minibatch: int = -1, peer: int = -1) -> None:
        """Keep what happened from `start` to `end`; nothing of a rank that the plan leaves out."""
        if self.stage is None:
            return
        self.spans.append((self.stage, kind, start, end))
        self._trace.add(
            f'{{"rank": {self.rank}, "name": "{name}", "start": {start:.6f}, "end": {end:.6f}, "kind": "{kind}", '
            f'"stage": {self.stage}, "minibatch": {minibatch}, "peer": {peer}}}\n',
            now=end + self._origin,
        )

    def metric(self, event: str, **facts: Any) -> None:
        """Add a row to the run's metrics, at the latest a tenth of a second from now on disk."""
        now = self.now()
        row = {"event": event, "seconds": round(now, 6), **facts}
        self._metrics.add(json.dumps(row) + "\n", now=now + self._origin)

    def restart(self) -> list[tuple[int, str, float, float]]:
        """Return the spans since the last call and start afresh."""
        spans, self.spans = self.spans, []
        return spans

    def flush(self) -> None:
        self._trace.flush()
        self._metrics.flush()

    def close(self) -> None:
        self._trace.close()
        self._metrics.close()
        os.close(self._work_file)
        self._work_path.unlink(missing_ok=True)


def forget_rows(run_dir: Path, minibatches: int, *, within: bool = False) -> None:
    """Take from the metrics what a run that resumes after `minibatches` will do again, and say so in a row.

    `within` an epoch: what a run that ended there told of it goes, too; its row will be of the whole epoch.

    One rank calls it, before any opens the file. Readers who follow the file see another in its place, in which all up
    to the row "resume" is what they have seen before.
    """
    path = run_dir / "metrics.jsonl"
    rows = read_metrics(path) if path.exists() else []
    kept = [row for row in rows if row["event"] in _DONE_BY and _DONE_BY[row["event"]](row) <= minibatches]
    if within:
        kept = [row for row in kept if row["event"] not in ("epoch", "trained") or row["minibatches"] < minibatches]
    told = {row["minibatches"] for row in kept if row["event"] == "epoch"}
    kept = [row for row in kept if row["event"] != "trained" or row["minibatches"] not in told]
    last = max((row.get("seconds", 0.0) for row in rows), default=0.0)
    write_rows(path, [*kept, {"event": "resume", "seconds": last, "minibatches": minibatches}])


# How many minibatches were done when a row was written; rows of other events are not kept.
_DONE_BY = {
    "step": lambda row: row["minibatch"] + 1,
    "overflow": lambda row: row["minibatch"] + 1,
    "trained": lambda row: row["minibatches"],
    "epoch": lambda row: row["minibatches"],
    "confusion": lambda row: row["minibatches"],
    "callback": lambda row: row["minibatches"],
    "resume": lambda row: row["minibatches"],
    "replan": lambda row: row["minibatch"],
}
