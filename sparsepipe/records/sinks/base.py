"""What a tracker of experiments needs: each row of a run's metrics as it comes, and a word at the end."""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from ..record_files import CLOCK, read_fields

if TYPE_CHECKING:
    from ..run_record import RunRecord

Row = Mapping[str, Any]  # of a run's metrics


class Sink(Protocol):
    """Forward the rows of a run's metrics to a tracker. `Job.wait(on_row=sink)` passes the rows.

    The "event" of a row is "start", "step" (one minibatch), "epoch", "summary", or another one, which may be ignored. A
    sink is any class with these two methods.

    Example:
        >>> from sparsepipe.records.sinks import scalars
        >>> class Printed:
        ...     def __call__(self, row):
        ...         if (found := scalars(row)) and row["event"] == "epoch":
        ...             print(found[0], round(found[1]["epoch/train/loss"], 1))
        ...
        ...     def close(self):
        ...         pass
        >>> sink = Printed()
        >>> for row in sp.RunRecord.load(run_dir).metrics():
        ...     sink(row)
        4 1.1
        8 1.1

    See also:
        guides/trackers, `records.sinks.scalars`
    """

    def __call__(self, row: Row) -> None:
        """Take one row."""
        ...

    def close(self) -> None:
        """The run ended, or is no longer followed: write what is left."""
        ...


def is_address(where: object) -> bool:
    """Return whether a sink is given the address of a server, such as "http://127.0.0.1:4318", and not a folder."""
    return "://" in str(where)


def described(row: Row, record: "RunRecord") -> Row:
    """Return a row of a run's metrics as trackers need it.

    The row "start" also gets the run's name ("run"), its directory ("run_dir"), its settings ("settings": numbers,
    truth values and texts by name) and the time at which "seconds" was 0 ("began", in seconds since 1970).

    Args:
        row: A row of the run's metrics.
        record: The run's record.

    Returns:
        The row; other rows are unchanged.

    Example:
        >>> from sparsepipe.records.sinks import described
        >>> record = sp.RunRecord.load(run_dir)
        >>> start = described({"event": "start"}, record)
        >>> start["run"], start["settings"]["devices"]
        ('one', 2)

    See also:
        guides/trackers, `RunRecord`
    """
    if row.get("event") != "start":
        return row
    plan = record.plan
    settings = record.config | {"planner": plan.planner, "schedule": plan.schedule, "devices": len(plan.ranks)}
    simple = {
        name: value if isinstance(value, int | float | str) else json.dumps(value)
        for name, value in settings.items()
        if value not in (None, "")
    }
    clock = record.folder / "logs" / "clock.json"  # records of version 0.1 have none
    began = read_fields(clock, CLOCK, what="run's clock")["started"] if clock.exists() else None
    return {**row, "run": record.name, "run_dir": str(record.folder), "settings": simple, "began": began}


def scalars(row: Row) -> tuple[int, dict[str, float]] | None:
    """Extract the numbers of a row of metrics.

    Names begin with the event, and levels are separated by slashes: "step/loss", "epoch/validation/accuracy", "stage
    0/busy_fraction". Names of pipeline replicas contain their number: "step/loss of pipeline 1".

    Args:
        row: A row of a run's metrics.

    Returns:
        (Number of minibatches done, name → number). None for a row without numbers.

    Example:
        >>> from sparsepipe.records.sinks import scalars
        >>> scalars({"event": "step", "minibatch": 7, "loss": 0.5})
        (8, {'step/loss': 0.5})

    See also:
        guides/trackers
    """
    event, done = row.get("event"), row.get("minibatches")
    if event == "step" and isinstance(row.get("minibatch"), int):
        done = row["minibatch"] + 1
    if event not in ("step", "epoch") or not isinstance(done, int):
        return None
    behind = f" of pipeline {row['pipeline']}" if isinstance(row.get("pipeline"), int) else ""
    left = {key: value for key, value in row.items() if key not in _COUNTS}
    numbers = {f"{name}{behind}": value for name, value in _numbers(left, str(event))}
    for stage in row.get("stages") or () if event == "epoch" else ():
        if isinstance(stage, Mapping) and "stage" in stage:
            stage_numbers = {key: value for key, value in stage.items() if key not in ("stage", "ranks")}
            numbers |= {f"{name}{behind}": value for name, value in _numbers(stage_numbers, f"stage {stage['stage']}")}
    return (done, numbers) if numbers else None


_COUNTS = ("event", "seconds", "epoch", "minibatch", "minibatches", "pipeline", "stages")


def _numbers(value: Row, before: str) -> Iterator[tuple[str, float]]:
    for key, each in value.items():
        if isinstance(each, Mapping):
            yield from _numbers(each, f"{before}/{key}")
        elif isinstance(each, int | float) and not isinstance(each, bool):
            yield f"{before}/{key}", float(each)
