"""Rows of a run's metrics, which several hosts may write: each sends its own, and the record has them all.

    host1   ── rows of minibatches 0, 2, 4, of the epoch ──┐
    host2   ── rows of minibatches 1, 3, 5 ────────────────┴──► metrics.jsonl of the record, as they come

Each replica of the last stage knows the losses of its own minibatches, and its host reports them. If a run continues
from a checkpoint, every host forgets the minibatches after it, and so does the record, once.
"""

from pathlib import Path

from ...errors import InputError
from ...runtime.reporting.recorder import forget_rows
from ...runtime.wire.frames import MOST_PAYLOAD, FrameWriter
from ..metrics_tail import Tail, row_of

METRICS = "metrics.jsonl"
_MOST_ROW = 2**24  # bytes


class OwnRows:
    """The rows that one host writes, sent as they come; those that were there before are known."""

    def __init__(self, folder: Path) -> None:
        self._tail = Tail(folder / METRICS)
        self._tail.skip()

    def tell(self, writer: FrameWriter) -> None:
        """Send the rows since the last call. Of a file that a run begins again, they are those that are new in it."""
        while found := self._tail.read_lines():
            data = b"".join(line + b"\n" for _, line in found)
            for start in range(0, len(data), MOST_PAYLOAD):
                writer.send("rows", data[start : start + MOST_PAYLOAD])


class RowsOfHosts:
    """Writes the rows of the hosts to the metrics of a record."""

    def __init__(self, folder: Path, *, several: bool) -> None:
        """`several`: rows of minibatches may come from more than one host, as from those of the last stage's replicas,
        or of the last stages of one plan after another.
        """
        self._path, self._several = folder / METRICS, several
        self._parts: dict[int, bytes] = {}  # of a row that is not whole yet, by host
        self._resumed = False
        self._first, self._known = 0, set[int]()  # minibatches: all before the first have a row, and these

    def begin(self) -> None:
        """Begin an attempt: what hosts have said before is all that they had to say."""
        self._parts.clear()
        self._resumed = False

    def take(self, host: int, data: bytes) -> None:
        """Take up what a host says. Raises InputError for what is no row, and OSError."""
        *lines, rest = (self._parts.get(host, b"") + data).split(b"\n")
        if len(rest) > _MOST_ROW:
            raise InputError("agent.row_too_long", f"received a row of more than {_MOST_ROW} bytes")
        self._parts[host] = rest
        kept: list[bytes] = []
        for line in lines:
            if (row := row_of(line)) is None:
                raise InputError(
                    "agent.row_malformed",
                    f"received {line[:100].decode(errors='replace')!r}, expected a row of metrics",
                )
            if row["event"] == "step":
                self._known.add(int(row["minibatch"]))
            if row["event"] != "resume":
                kept.append(line + b"\n")
            elif not self._resumed:
                self._write(kept)
                kept.clear()
                self._resume(int(row["minibatches"]))
        self._write(kept)

    def has_all(self, minibatches: int) -> bool:
        """Return whether the rows are there of all minibatches that a checkpoint has.

        Those of one host come before its part of the checkpoint. Of several, one that has no part may be behind.
        """
        if not self._several:
            return True
        if not all(m in self._known for m in range(self._first, minibatches)):
            return False
        self._known = {m for m in self._known if m >= minibatches}
        self._first = max(self._first, minibatches)
        return True

    def _resume(self, minibatches: int) -> None:
        forget_rows(self._path.parent, minibatches)
        self._resumed, self._first = True, minibatches
        self._known.clear()

    def _write(self, lines: list[bytes]) -> None:
        if lines:
            with self._path.open("ab") as handle:
                handle.write(b"".join(lines))
