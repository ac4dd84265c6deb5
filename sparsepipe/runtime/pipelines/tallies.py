"""What the minibatches of all pipelines add up to: the loss and accuracy of an epoch, the run's pace."""

from collections.abc import Mapping
from typing import Any

_KEPT = 64  # epochs, the latest


class Tallies:
    """Sums over the rows of minibatches that are done."""

    def __init__(self) -> None:
        self._epochs: dict[int, dict[str, float]] = {}
        self._samples = self._first_samples = 0.0
        self._first: float | None = None  # seconds at which the first minibatch was done
        self._last = 0.0

    def add(self, epoch: int, row: Mapping[str, Any], *, now: float) -> float:
        """Count a minibatch by its row: its "loss" is a mean over its "counted" (else "samples"), of which so many are
        "correct". Return its samples."""
        samples = _number(row, "samples", 0.0)
        counted = _number(row, "counted", samples)
        sums = self._epochs.setdefault(epoch, {"loss": 0.0, "counted": 0.0, "correct": 0.0})
        sums["loss"] += _number(row, "loss", 0.0) * counted
        sums["counted"] += counted
        if "correct" in row:
            sums["correct"] += _number(row, "correct", 0.0)
            sums["counts_correct"] = 1.0
        if len(self._epochs) > _KEPT:
            del self._epochs[min(self._epochs)]
        if self._first is None:
            self._first, self._first_samples = now, samples
        self._samples += samples
        self._last = now
        return samples

    def of_epoch(self, epoch: int) -> dict[str, Any]:
        """Return the fields of an epoch's row that all its minibatches together make; none where it has none."""
        sums = self._epochs.get(epoch)
        if not sums or not sums["counted"]:
            return {}
        train = {"loss": sums["loss"] / sums["counted"]}
        if "counts_correct" in sums:
            train["accuracy"] = sums["correct"] / sums["counted"]
        return {"train": train}

    @property
    def pace(self) -> float:
        """Samples a second, from the first minibatch that was done to the last."""
        if self._first is None:
            return 0.0
        return (self._samples - self._first_samples) / max(self._last - self._first, 1e-9)


def _number(row: Mapping[str, Any], key: str, default: float) -> float:
    value = row.get(key, default)
    return float(value) if isinstance(value, int | float) else default
