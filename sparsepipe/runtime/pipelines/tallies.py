"""What the minibatches of all pipelines add up to: loss, accuracy and pace of an epoch, the run's pace."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

_KEPT = 64  # epochs, the latest


@dataclass
class Sums:
    """Over the minibatches that are done, of an epoch or of the run."""

    loss: float = 0.0  # a mean times its samples
    counted: float = 0.0  # samples, or what else the loss is a mean over
    correct: float | None = None  # of these; None: nobody counts them
    samples: float = 0.0
    minibatches: int = 0
    first_samples: float = 0.0  # of the first minibatch that was done
    first: float | None = None  # seconds at which it was
    last: float = 0.0  # seconds at which the latest was
    split: int = 0  # minibatches that passed in parts

    def add(self, row: Mapping[str, Any], *, now: float) -> float:
        """Count a minibatch by its row: its "loss" is a mean over its "counted" (else "samples"), of which so many are
        "correct". Return its samples.
        """
        samples = _number(row, "samples", 0.0)
        counted = _number(row, "counted", samples)
        self.loss += _number(row, "loss", 0.0) * counted
        self.counted += counted
        if "correct" in row:
            self.correct = (self.correct or 0.0) + _number(row, "correct", 0.0)
        if self.first is None:
            self.first, self.first_samples = now, samples
        self.samples += samples
        self.minibatches += 1
        self.split += "split_into" in row
        self.last = now
        return samples

    @property
    def train(self) -> dict[str, float | None]:
        """Training part of an epoch's row, as in `EpochSoFar.train`."""
        scores = {"loss": self.loss / self.counted if self.counted else None}
        if self.correct is not None:
            scores["accuracy"] = self.correct / self.counted if self.counted else None
        counts = {"samples": self.samples, "counted": self.counted, "minibatches": self.minibatches}
        counts |= {"split_minibatches": self.split} if self.split else {}
        return scores | {name: int(count) for name, count in counts.items()}

    @property
    def pace(self) -> float:
        """Samples per second, from the first minibatch that was done to the last; 0 if there is but one."""
        if self.first is None or self.last <= self.first:
            return 0.0
        return (self.samples - self.first_samples) / (self.last - self.first)


class Tallies:
    """Sums over the rows of minibatches that are done."""

    def __init__(self, begun: Mapping[int, Sums] | None = None) -> None:
        """`begun`: what an earlier run has done of epochs that this one ends."""
        self._epochs = {epoch: replace(sums) for epoch, sums in (begun or {}).items()}
        self._run = Sums()

    def add(self, epoch: int, row: Mapping[str, Any], *, now: float) -> float:
        """Count a minibatch by its row (see `Sums.add`). Return its samples."""
        self._epochs.setdefault(epoch, Sums()).add(row, now=now)
        if len(self._epochs) > _KEPT:
            del self._epochs[min(self._epochs)]
        return self._run.add(row, now=now)

    def of_epoch(self, epoch: int) -> dict[str, Any]:
        """Return the fields of an epoch's row that all its minibatches together make; none if it has none."""
        sums = self._epochs.get(epoch)
        return {"train": sums.train, "samples_per_second": sums.pace or self.pace} if sums else {}

    @property
    def latest(self) -> dict[str, Any]:
        """The same of the latest epoch."""
        return self.of_epoch(max(self._epochs, default=-1))

    @property
    def pace(self) -> float:
        """Samples per second of the run."""
        return self._run.pace


def _number(row: Mapping[str, Any], key: str, default: float) -> float:
    value = row.get(key, default)
    return float(value) if isinstance(value, int | float) else default


MINIBATCHES, MERGES, METRICS = "minibatches.jsonl", "merges.jsonl", "metrics.jsonl"
REPLAN = "replan"  # the event of a pipeline that goes on under another plan


class Changes:
    """Shared by all parts of a state. `now` is the time of what is asked, in seconds since the run began."""

    def __init__(self) -> None:
        self.version = 0
        self.now = 0.0
        self.rows: list[tuple[str, dict[str, Any]]] = []  # (file, row) since somebody took them out

    def note(self) -> None:
        """Something has changed."""
        self.version += 1

    def row(self, file: str, event: str, /, **facts: Any) -> None:
        """Something has changed that a file of the record describes, now."""
        self.version += 1
        facts = {key: value for key, value in facts.items() if key not in ("event", "seconds")}
        self.rows.append((file, {"event": event, "seconds": round(self.now, 6), **facts}))
