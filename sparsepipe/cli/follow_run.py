"""What a terminal shows of a run while it is at work: a line that moves, one for each epoch, and what drifts."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import CODE_FAILURES, InputError, one_line
from ..monitoring import Follower, Standing, drift_of
from ..records import RunRecord
from ..records.run_progress import RunProgress
from ..records.sinks import Sink
from ..util.io.fields import complaint
from ..util.text.numbers import pace_text, rate_text, validation_text
from ..values.cluster import Cluster
from ..values.profile import Profile
from ..views.values import left_out
from .output import Answer, Progress, cell, progress_line, table


class RunFollower:
    """Takes a run's rows of metrics, as `Job.wait(on_row=…)` gives them. Incomplete rows are ignored.

    `trains`: whether the run learns; others, such as emulations, report no loss. `counted`: the unit
    of its throughput, "minibatches" if the number of samples is unknown.
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
            self._try(lambda: self._sink(row), "the run continues, but sends it no more metrics")

    def close(self) -> None:
        """Close it, even if it failed: it may hold files open."""
        self._try(self._sink.close, "unwritten metrics may be lost")

    def _try(self, act: Callable[[], None], told: str) -> None:
        try:
            act()
        except CODE_FAILURES as error:  # whatever a user's own code, or a tracker's server, raises
            if not self._failed:
                progress_line(f"warning: --log {self._kind}: {type(error).__name__} ({complaint(error)}); {told}")
            self._failed = True


_SECONDS = 1.0  # between two looks at a run that goes on
_COLUMNS = ("of", "times as long", "since minibatch", "minibatches", "noise", "spikes")


def drift_answer(record: RunRecord, profile: Profile | None, cluster: Cluster | None) -> Answer:
    """A row for each rank and link, and a line for each lasting change."""
    watch = drift_of(record, profile, cluster)
    trace = record.trace()
    document: dict[str, Any] = {
        "run": record.name,
        "factors": watch.factors.to_json(),
        "standings": [one.to_json() for one in watch.standings],
        "alarms": [alarm.to_json() for alarm in watch.alarms],
    }
    lines = [table([_COLUMNS, *map(_row, watch.standings)])]
    lines += [str(alarm) for alarm in watch.alarms] or ["no lasting change"]
    if trace.left_out:
        document["left_out"] = trace.left_out
        lines.append(f"in a long run: {left_out(trace)}; drift.jsonl lists the drift reported during the run")
    return Answer(document, "\n".join([one_line(record.folder), *lines]))


def _row(one: Standing) -> Sequence[str]:
    since = "" if one.since is None else cell(one.since)
    return one.name, f"{one.factor:.2f}", since, cell(one.minibatches), f"{one.noise:.0%}", cell(one.spikes)


class DriftLines:
    """Prints the lasting changes of a run as they are found; nothing of a run that names no profile."""

    def __init__(self, record: RunRecord, *, before: Callable[[], None]) -> None:
        """`before`: called before a line is printed, to take away one that moves."""
        self._due, self._before = 0.0, before
        self._follower: Follower | None = None
        if (record.folder / "profile.json").exists():
            try:
                self._follower = Follower(record)
            except InputError:  # a profile of another network, or a damaged file, which others tell
                self._follower = None

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Look at the run as one of its rows comes, but not more often than once a second."""
        if time.monotonic() > self._due:
            self._due = time.monotonic() + _SECONDS
            self._look()

    def close(self) -> None:
        """Look at the run a last time."""
        self._look()

    def _look(self) -> None:
        if self._follower is None:
            return
        for alarm in self._follower.look():
            self._before()
            progress_line(str(alarm))
