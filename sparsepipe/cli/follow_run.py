"""What a terminal shows of a run while it is at work: a line that moves within the epoch, and one for each epoch."""

from collections.abc import Callable, Mapping
from typing import Any

from ..display.numbers import pace_text, rate_text, validation_text
from ..errors import CODE_FAILURES
from ..io.fields import complaint
from ..record.run_progress import RunProgress
from ..sinks import Sink
from .output import Progress, progress_line


class RunFollower:
    """Takes a run's rows of metrics, as `Job.wait(on_row=…)` gives them. Incomplete rows are ignored.

    `trains`: whether the run learns; of one that does not, as a replay, no loss is told. `counted`: what
    its pace counts, "minibatches" where nobody knows how many samples one has.
    """

    def __init__(self, *, trains: bool = True, counted: str = "samples") -> None:
        self._trains = trains
        self._counted = counted
        self._progress, self._line = RunProgress(), Progress()
        self._epoch: int | None = None
        self._began, self._samples = 0.0, 0  # of the steps of the epoch, the first one's time and the others' samples

    def __call__(self, row: Mapping[str, Any]) -> None:
        self._progress.take(row)
        if row.get("event") == "step" and {"epoch", "loss", "seconds", "samples"} <= row.keys():
            self._step(row)
        elif row.get("event") == "epoch" and {"epoch", "train"} <= row.keys() and (speed := pace_text(row)):
            self._line.end()
            parts = [self._loss(row["train"].get("loss")), speed, validation_text(row)]
            progress_line(f"epoch {row['epoch'] + 1}: " + ", ".join(filter(None, parts)))

    def close(self) -> None:
        """Take the moving line away."""
        self._line.end()

    def _step(self, row: Mapping[str, Any]) -> None:
        if row["epoch"] != self._epoch:
            self._epoch, self._began, self._samples = row["epoch"], row["seconds"], 0
        else:
            self._samples += row["samples"]
        passed = row["seconds"] - self._began
        speed = rate_text(self._samples / passed, self._counted) if passed > 0 else ""
        told = ", ".join(filter(None, [self._loss(row["loss"]), speed]))
        self._line.tell(f"{self._progress.text}: {told}" if told else self._progress.text)

    def _loss(self, loss: float | None) -> str:
        if not self._trains:
            return ""
        return "no labels, so no loss" if loss is None else f"loss {loss:.4f}"


class Forgiving:
    """A tracker's sink that cannot end the run: when it raises, a line says so, and it gets no further rows."""

    def __init__(self, kind: str, sink: Sink) -> None:
        self._kind, self._sink, self._failed = kind, sink, False

    def __call__(self, row: Mapping[str, Any]) -> None:
        if not self._failed:
            self._try(lambda: self._sink(row), "the run goes on, its further metrics are not sent there")

    def close(self) -> None:
        """Close it, even if it failed: it may hold files open."""
        self._try(self._sink.close, "what it had not written may be lost")

    def _try(self, act: Callable[[], None], told: str) -> None:
        try:
            act()
        except CODE_FAILURES as error:  # whatever a user's own code, or a tracker's server, raises
            if not self._failed:
                progress_line(f"warning: --log {self._kind}: {type(error).__name__} ({complaint(error)}); {told}")
            self._failed = True
