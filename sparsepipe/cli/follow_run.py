"""What a terminal shows of a run while it is at work: a line that moves within the epoch, and one for each epoch."""

from collections.abc import Mapping
from typing import Any

from ..record.run_progress import RunProgress
from .output import Progress, progress_line


class RunFollower:
    """Takes a run's rows of metrics, as `Job.wait(on_row=…)` gives them. Incomplete rows are ignored."""

    def __init__(self) -> None:
        self._progress, self._line = RunProgress(), Progress()
        self._epoch: int | None = None
        self._began, self._samples = 0.0, 0  # of the steps of the epoch, the first one's time and the others' samples

    def __call__(self, row: Mapping[str, Any]) -> None:
        self._progress.take(row)
        if row.get("event") == "step" and {"epoch", "loss", "seconds", "samples"} <= row.keys():
            self._step(row)
        elif row.get("event") == "epoch" and {"epoch", "train", "samples_per_second"} <= row.keys():
            self._line.end()
            accuracy = (row.get("validation") or {}).get("accuracy")
            told = "" if accuracy is None else f", accuracy {accuracy:.1%}"
            loss, speed = row["train"]["loss"], row["samples_per_second"]
            progress_line(f"epoch {row['epoch'] + 1}: loss {loss:.4f}, {speed:.1f} samples/s{told}")

    def close(self) -> None:
        """Take the moving line away."""
        self._line.end()

    def _step(self, row: Mapping[str, Any]) -> None:
        if row["epoch"] != self._epoch:
            self._epoch, self._began, self._samples = row["epoch"], row["seconds"], 0
        else:
            self._samples += row["samples"]
        passed = row["seconds"] - self._began
        speed = f", {self._samples / passed:.0f} samples/s" if passed > 0 else ""
        self._line.tell(f"{self._progress.text}: loss {row['loss']:.4f}{speed}")
