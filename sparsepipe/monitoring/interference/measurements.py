"""Measurements of interference as rows of JSON: what was measured is kept, whatever ends the measuring.

The first row says on what machine and how; each further one is a victim alongside a set of intruders, or alone.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...util.io.fields import each, fields, integer, number, real, shown, text
from ...util.io.files import cut_torn_row, read_numbered_rows
from .forest import DYNPIPE, Floats, Forest, Growth, grow
from .victims import KindSeconds


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


FORMAT = "sparsepipe-interference-2"
_SECONDS = fields({"seconds": number, "layers": integer, "parameter_bytes": number})


@dataclass(frozen=True)
class Measurement:
    """One victim at `place`, alongside `intruders` at `intruder_place`; alone without any.

    Places are numbers of processors, or of GPUs if that is the device that the file's first row names.
    """

    victim: str
    intruders: tuple[str, ...]
    place: int
    intruder_place: int
    passes: int
    metrics: Mapping[str, float]
    kinds: Mapping[str, KindSeconds]

    @property
    def key(self) -> tuple[Any, ...]:
        """Identifier of the measured combination. Equal keys are not measured twice."""
        return self.victim, self.intruders, self.place, self.intruder_place

    @property
    def step_seconds(self) -> float:
        """Return the total time of all layers in a training step."""
        return sum(kind.seconds * kind.layers for kind in self.kinds.values())

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _checked(row: Mapping[str, Any], where: str) -> Measurement:
    named = fields({"metrics": fields({}, others=real), "kinds": fields({}, others=_SECONDS)}, others=_ordinary)
    found = named(row, where)
    kinds = {
        kind: KindSeconds(one["seconds"], one["layers"], one["parameter_bytes"]) for kind, one in found["kinds"].items()
    }
    given = {name: found[name] for name in ("victim", "place", "intruder_place", "passes")}
    return Measurement(intruders=tuple(found["intruders"]), metrics=dict(found["metrics"]), kinds=kinds, **given)


def _ordinary(value: object, what: str) -> Any:
    """A field of a row in addition to the metrics and the kinds: a name, a number, or a list of names."""
    if isinstance(value, list):
        return each(text)(value, what)
    return value if isinstance(value, str) else integer(value, what, least=-1)


def read_measurements(path: Path | str) -> tuple[dict[str, Any], list[Measurement]]:
    """Return the first row, which says on what machine and how, and the measurements.

    Raises InputError in one line for a file that holds something else.
    """
    rows = read_numbered_rows(path)
    if not rows or rows[0][1].get("format") != FORMAT:
        raise InputError(
            "interference.malformed",
            f"{path}: not a file of interference measurements: its first row lacks format {FORMAT!r}",
        )
    found = [_checked(row, f"{path}:{line}") for line, row in rows[1:]]
    return rows[0][1], found


class MeasurementFile:
    """A file that measurements are added to; one that is there already is taken up where it ended.

    Raises InputError for a file made on another machine or with other settings.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.path, whole = path, {"format": FORMAT, **header}
        self.measured: dict[tuple[Any, ...], Measurement] = {}
        if path.exists() and path.stat().st_size:
            cut_torn_row(path)
        if path.exists() and path.stat().st_size:
            before, found = read_measurements(path)
            odd = sorted(key for key in before.keys() | whole.keys() if before.get(key) != whole.get(key))
            if odd:
                raise InputError(
                    "interference.setting_differs",
                    f"{path}: was measured with {odd[0]} {shown(before.get(odd[0]))}, but now it is "
                    f"{shown(whole.get(odd[0]))}; choose another --out",
                )
            self.measured = {one.key: one for one in found}
        else:
            self._write(whole)

    def add(self, measurement: Measurement) -> None:
        self._write(measurement.to_json())
        self.measured[measurement.key] = measurement

    def _write(self, row: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(row, allow_nan=False) + "\n")
            handle.flush()
            os.fsync(handle.fileno())


def features_of(
    metrics: Mapping[str, float], kind: str, kinds: tuple[str, ...], seconds: float, parameter_bytes: float
) -> dict[str, float]:
    """Return what a forest is asked about a layer: the machine's metrics, the layer's kind, and its size alone."""
    own = {f"kind {name}": float(name == kind) for name in kinds}
    size = {
        "log10 seconds alone": math.log10(max(1e-9, seconds)),
        "log10 parameter bytes": math.log10(1 + parameter_bytes),
    }
    return {**metrics, **own, **size}


def rows_of(measurements: list[Measurement]) -> list[list[Row]]:
    """Return for each measurement its rows, one a kind of layer. Raises InputError for a victim not measured alone."""
    alone = {one.victim: one for one in measurements if not one.intruders}
    kinds = tuple(sorted({kind for one in measurements for kind in one.kinds}))
    found = []
    for one in measurements:
        if one.victim not in alone:
            raise InputError(
                "interference.no_baseline",
                f"{one.victim} has no measurement without co-located workloads; continue the measurement",
                victim=one.victim,
            )
        rows = []
        for kind, beside in one.kinds.items():
            before = alone[one.victim].kinds.get(kind)
            if before and before.seconds > 0 and beside.seconds > 0:
                asked = features_of(one.metrics, kind, kinds, before.seconds, before.parameter_bytes)
                rows.append(Row(asked, beside.seconds / before.seconds))
        found.append(rows)
    return found


@dataclass(frozen=True)
class Judged:
    """Errors on rows that were held out: the mean of |predicted / measured - 1|.

    The mean predictor says for every row the mean of the slow-downs that were learned from; the mean pace's error is
    that of 1 over the mean of their inverses, which slow-downs of a hundred do not pull away.
    """

    num_learned: int
    num_held_out: int
    error: float
    mean_predictor_error: float
    mean_pace_error: float

    def __str__(self) -> str:
        return (
            f"{self.error:.1%} mean error on {self.num_held_out} held-out rows (predicting the mean of the "
            f"{self.num_learned} other rows: {self.mean_predictor_error:.1%}, their mean slowdown: "
            f"{self.mean_pace_error:.1%})"
        )


def relative_error(predicted: Floats, measured: Floats) -> float:
    """Return the mean of |predicted / measured - 1|."""
    return float(np.abs(predicted / measured - 1).mean())


def split(count: int, *, share: float = 0.3, seed: int = 42) -> tuple[list[int], list[int]]:
    """Return which of `count` rows are learned from and which held out, as scikit-learn's train_test_split draws them.

    The shares and the seed are those that DynPipe published.
    """
    held_out = int(np.ceil(share * count))
    if not 0 < held_out < count:
        raise InputError(
            "forest.too_few_rows",
            f"{count} rows for training and testing, expected at least two; measure more",
        )
    drawn = np.random.RandomState(seed).permutation(count)
    return drawn[held_out:count].tolist(), drawn[:held_out].tolist()


def judge(
    learned: Sequence[Row], held_out: Sequence[Row], growth: Growth = DYNPIPE, *, of_paces: bool = False
) -> tuple[Forest, Judged]:
    """Grow a forest on some rows and ask it about others.

    `of_paces`: it learns which share of its pace a victim keeps, 1 over the slow-down, as Gavel does: if some
    slow-downs are a hundred times others, these alone would be learned. Raises InputError for rows of unlike features,
    or for none.
    """
    names, given, slowdowns = table_of(learned)
    other_names, asked, measured = table_of(held_out)
    if names != other_names:
        raise InputError(
            "forest.features_differ", "held-out rows and training rows have different features; give both the same"
        )
    forest = grow(names, given, 1 / slowdowns if of_paces else slowdowns, growth)
    found = forest.predict(asked)
    errors = [
        relative_error(np.broadcast_to(predicted, measured.shape), measured)
        for predicted in (1 / found if of_paces else found, slowdowns.mean(), 1 / (1 / slowdowns).mean())
    ]
    return forest, Judged(len(learned), len(held_out), *errors)
