"""What a tracker of experiments needs: each row of a run's metrics as it comes, and a word at the end."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol


class Sink(Protocol):
    """Takes a run's rows, as `Job.wait(on_row=sink)` gives them, and sends them on.

    A row has an "event": "start", "step" (a minibatch), "epoch", "summary", and others that may be left alone.
    `scalars` makes numbers by name of it. A sink of one's own is a class with these two methods:

        class WeightsAndBiases:
            def __init__(self, folder: str) -> None:
                self.run = wandb.init(dir=folder)

            def __call__(self, row: Mapping[str, Any]) -> None:
                if found := scalars(row):
                    self.run.log(found[1], step=found[0])

            def close(self) -> None:
                self.run.finish()
    """

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Take one row."""
        ...

    def close(self) -> None:
        """The run ended, or is no longer followed: write what is left."""
        ...


def scalars(row: Mapping[str, Any]) -> tuple[int, dict[str, float]] | None:
    """Return the numbers of a row as (minibatches done, {name: number}); None for a row that has none to draw.

    Names have the event before them and a slash between levels: "step/loss", "epoch/validation/accuracy",
    "stage 0/busy_fraction". A run of several pipelines has its pipeline behind: "step/loss of pipeline 1".
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


def _numbers(value: Mapping[str, Any], before: str) -> Iterator[tuple[str, float]]:
    for key, each in value.items():
        if isinstance(each, Mapping):
            yield from _numbers(each, f"{before}/{key}")
        elif isinstance(each, int | float) and not isinstance(each, bool):
            yield f"{before}/{key}", float(each)
