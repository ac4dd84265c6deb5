"""Rows to learn from: facts of a victim and of what disturbs it, and how many times as long it then takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import InputError
from ...util.io.fields import shown
from .forest import Floats


@dataclass(frozen=True)
class Row:
    """One measurement: `features` by their names, and the victim's time disturbed over its time alone."""

    features: Mapping[str, float]
    slowdown: float


def table_of(rows: Sequence[Row]) -> tuple[tuple[str, ...], Floats, Floats]:
    """Return the features' names, the features [N, F] and the slow-downs [N].

    Raises InputError without rows, and if one has other features than the first.
    """
    if not rows:
        raise InputError("interference.no_rows", "no training rows; measure first")
    names = tuple(rows[0].features)
    for place, row in enumerate(rows):
        if row.features.keys() != rows[0].features.keys():
            odd = sorted(row.features.keys() ^ rows[0].features.keys())
            raise InputError(
                "interference.features_differ",
                f"row {place} has other features than the first ({shown(odd)}); give all rows the same features",
            )
    features = np.array([[row.features[name] for name in names] for row in rows], dtype=np.float64)
    return names, features, np.array([row.slowdown for row in rows], dtype=np.float64)
