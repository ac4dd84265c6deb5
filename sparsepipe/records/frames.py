"""Rows of a run's metrics as flat tables: one column for each number, whatever it was nested in."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

EVENTS = ("step", "epoch", "stage")


def flat_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return one row for each of `rows`; of {"train": {"loss": 1}} the column is "train.loss". Lists are left out."""
    return pd.DataFrame([dict(_flat(row)) for row in rows])


def stage_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return one row for each stage of each of `rows` that has stages: epochs and summaries."""
    facts = [
        {key: row[key] for key in ("event", "epoch", "seconds") if key in row} | dict(_flat(stage))
        for row in rows
        for stage in row.get("stages") or ()
        if isinstance(stage, Mapping)
    ]
    return pd.DataFrame(facts)


def _flat(row: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in row.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif not isinstance(value, list | tuple):
            yield name, value
