"""What the record of a run of several pipelines keeps when the run continues from a checkpoint."""

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from ...records.record_files import read_metrics
from ...util.io.files import cut_torn_row, read_rows, write_rows
from .tallies import MERGES, METRICS, MINIBATCHES, REPLAN, Sums

# Of the whole run: the checkpoint that it goes on from, for workers (pipeline_worker.py).
RESUME = Path("logs", "resume.json")


def keep_rows(run_dir: Path, progress: Mapping[str, Any]) -> None:
    """Take from the metrics what will be done again, and say in each file of the record that the run continues from
    here.

    What happened to minibatches and merges stays: it did happen.
    """
    path = run_dir / METRICS
    cut_torn_row(path)
    rows = read_metrics(path) if path.exists() else []
    last = max((row.get("seconds", 0.0) for row in rows), default=0.0)
    resumed = {"event": "resume", "seconds": last, "minibatches": progress["done"]}
    write_rows(path, [*filter(_staying(progress), rows), resumed])
    for name in (MINIBATCHES, MERGES):
        cut_torn_row(run_dir / name)
        with (run_dir / name).open("ab") as handle:
            handle.write(_line({**resumed, "left": progress["left"]} if name == MINIBATCHES else resumed))


def has_rows_of(run_dir: Path, progress: Mapping[str, Any]) -> bool:
    """Return whether the metrics have each minibatch that is done.

    Of a host that was lost a checkpoint may have come here, and not the newest rows before it.
    """
    path = run_dir / METRICS
    rows = read_metrics(path, "step") if path.exists() else []
    return len({row["minibatch"] for row in filter(_staying(progress), rows)}) == int(progress["done"])


def recorded_pace(run_dir: Path) -> float:
    """Return the samples per second of the newest summary, for a run that has nothing left to do; 0 without."""
    path = run_dir / METRICS
    cut_torn_row(path)
    paces = [row["samples_per_second"] for row in read_metrics(path, "summary")] if path.exists() else []
    return next((pace for pace in reversed(paces) if pace), 0.0)


def recorded_replans(run_dir: Path) -> list[dict[str, Any]]:
    """Return the rows of changes of pipelines' plans that the record has kept."""
    path = run_dir / METRICS
    return [dict(row) for row in read_metrics(path, REPLAN)] if path.exists() else []


def recorded_scores(run_dir: Path) -> list[dict[str, object]]:
    """Return the epochs that the record has kept and that were validated, with their scores."""
    path = run_dir / METRICS
    rows = read_metrics(path, "epoch") if path.exists() else []
    return [{name: row[name] for name in ("epoch", "minibatches", "validation")} for row in rows if row["validation"]]


def keep_nothing(run_dir: Path) -> None:
    """Take all minibatches from the metrics of a run that continues without a checkpoint: each is trained again."""
    path = run_dir / METRICS
    if not path.exists():
        return
    cut_torn_row(path)
    rows = read_metrics(path)
    if any(row["event"] == "step" for row in rows):
        longest = 1 + max(row["minibatch"] for row in rows if row["event"] == "step")
        keep_rows(run_dir, {"done": 0, "left": {0: list(range(longest))}, "epoch_minibatches": longest})


def epochs_closed(run_dir: Path, progress: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the epochs that need not be closed again: all but the newest that were wholly trained, and told of."""
    told = {row["epoch"] for row in read_rows(run_dir / METRICS) if row["event"] == "epoch"}
    return tuple(sorted(told | set(range(min(map(int, progress["left"]), default=0) - 1))))


def sums_of_epochs(run_dir: Path, closed: Collection[int]) -> dict[int, Sums]:
    """Return what the rows that were kept add up to, of each epoch that is still to be closed."""
    found: dict[int, Sums] = {}
    for row in read_metrics(run_dir / METRICS, "step"):
        if row["epoch"] not in closed:
            found.setdefault(row["epoch"], Sums()).add(row, now=row["seconds"])
    return found


def _staying(progress: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], bool]:
    """Return a function of a row: whether what it describes is done, its minibatch or all of its epoch."""
    left = {int(epoch): frozenset(minibatches) for epoch, minibatches in progress["left"].items()}
    each = progress["epoch_minibatches"]
    first = min(left, default=progress["done"] // each)  # where none is named, as many as were trained whole

    def stays(row: Mapping[str, Any]) -> bool:
        if row["event"] == REPLAN:
            return bool(row["minibatch"] <= progress["done"])
        if row["event"] not in ("step", "epoch"):
            return bool(row["event"] == "resume")
        epoch = row["epoch"]
        if epoch not in left:  # before the first that is named all is done
            return bool(epoch < first)
        if row["event"] == "epoch":
            return not left[epoch]
        return row["minibatch"] - epoch * each not in left[epoch]

    return stays


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row).encode() + b"\n"
