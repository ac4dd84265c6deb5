"""What intruders will cost each layer, learned on one machine from what that machine says."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...util.io.fields import number, shown, shown_key, text, texts
from ...util.io.files import read_numbered_rows, write_json
from ...util.text.numbers import number_of
from ...values.profile import Profile
from .forest import COARSE, Forest, Growth, grow, read_bounded_json
from .measurements import Judged, Measurement, Row, features_of, judge, rows_of, split, table_of
from .victims import kind_of

FORMAT = "sparsepipe-predictor-1"
_LEAST_PACE = 1e-3  # of a predictor's file, whose values may be any
GROWTH = replace(COARSE, trees=200)


@dataclass(frozen=True, eq=False)
class Predictor:
    """A forest, and the names that it needs: the machine's `metrics`, and the `kinds` of layers that it has seen.

    The forest says which share of its pace a layer keeps: one that stood still in one measurement counts as much there
    as others do, and would be all that a mean of slow-downs is about.
    """

    forest: Forest
    metrics: tuple[str, ...]
    kinds: tuple[str, ...]
    machine: str = ""
    error: Mapping[str, float] = field(default_factory=dict)  # on measurements it did not learn from

    def layer_factors(
        self, metrics: Mapping[str, float], profile: Profile, device_type: str, size: float | None = None
    ) -> tuple[float, ...]:
        """Return for each layer of a profile how many times as long as alone it takes while the machine says `metrics`.

        `size`: of the minibatch, the profile's typical one if it is not given. Raises InputError if the metrics
        are not those that the forest learned from: another machine, system or device.
        """
        self.check_metrics(metrics)
        rows = []
        for place, layer in enumerate(profile.graph.layers):
            cost = profile.cost(place, device_type, size)
            seconds = cost.forward + cost.backward
            rows.append(features_of(metrics, kind_of(layer.description), self.kinds, seconds, layer.parameter_bytes))
        asked = [[row[name] for name in self.forest.names] for row in rows]
        return tuple(1 / max(_LEAST_PACE, float(pace)) for pace in self.forest.predict(asked))

    def check_metrics(self, metrics: Mapping[str, float]) -> None:
        """Raise InputError if a machine's metrics are not those that the forest learned from."""
        if odd := sorted(metrics.keys() ^ set(self.metrics)):
            where = f" (on {self.machine})" if self.machine else ""
            raise InputError(
                "predictor.metrics_differ",
                f"the predictor was trained on other metrics than this machine has{where}: {shown(odd)} differ; "
                "measure on this machine by `sparsepipe interference measure --device cpu`, or `cuda`",
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "machine": self.machine,
            "metrics": list(self.metrics),
            "kinds": list(self.kinds),
            "error": dict(self.error),
            "forest": self.forest.to_json(),
        }

    @classmethod
    def from_json(cls, document: object, what: str = "predictor") -> "Predictor":
        """Read what `to_json` gives. Raises InputError in one line for anything else."""
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise InputError("predictor.malformed", f"{what}: expected an object whose format is {FORMAT!r}")
        forest = Forest.from_json(document.get("forest"), f"{what}: forest")
        metrics, kinds = (texts(document.get(name), f"{what}: {name}") for name in ("metrics", "kinds"))
        error = document.get("error", {})
        if not isinstance(error, dict):
            raise InputError(
                "predictor.error_malformed", f"{what}: error is {shown(error)}, expected an object of numbers"
            )
        wanted = tuple(features_of(dict.fromkeys(metrics, 0.0), "", kinds, 1.0, 0.0))
        if wanted != forest.names:
            odd = sorted(set(wanted) ^ set(forest.names))
            raise InputError(
                "predictor.features_differ",
                f"{what}: the features of the forest do not match its metrics and kinds: {shown(odd)}",
            )
        errors = {key: number(value, f"{what}: error {shown(key)}") for key, value in error.items()}
        return cls(forest, metrics, kinds, text(document.get("machine", ""), f"{what}: machine"), errors)

    def save(self, path: Path | str) -> Path:
        return write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path | str) -> "Predictor":
        """Read a file that `save` wrote. Raises InputError in one line for any other."""
        return cls.from_json(read_bounded_json(path, what="predictor"), f"{path}")


def learn(
    measurements: Sequence[Measurement], *, machine: str = "", growth: Growth = GROWTH
) -> tuple[Predictor, Judged]:
    """Learn from measurements of one machine; return the predictor, and its error on three tenths of them held out.

    The predictor itself learns from all of them. Raises InputError for fewer than four, and for a victim that was not
    measured alone.
    """
    if len(measurements) < 4:
        raise InputError(
            "predictor.too_few",
            f"{number_of(len(measurements), 'measurement')} to train the predictor, expected at least four; measure "
            "more",
        )
    by_measurement = rows_of(list(measurements))
    learned, held_out = split(len(by_measurement), seed=growth.seed)
    _, judged = judge(_flat(by_measurement, learned), _flat(by_measurement, held_out), growth, of_paces=True)
    names, rows, slowdowns = table_of(_flat(by_measurement, range(len(by_measurement))))
    forest = grow(names, rows, 1 / slowdowns, growth)
    kinds = tuple(sorted({kind for one in measurements for kind in one.kinds}))
    error = {"held_out": judged.error, "mean_predictor": judged.mean_predictor_error}
    return Predictor(forest, tuple(measurements[0].metrics), kinds, machine, error), judged


def _flat(rows: Sequence[Sequence[Row]], places: Sequence[int]) -> list[Row]:
    return [row for place in places for row in rows[place]]


FILE = "runtime_bert/profile/out.json"
_TARGET = "time"  # over the time alone
_ALONE = 1.0


def read_rows(path: Path | str, *, alone: bool = False) -> list[Row]:
    """Read the rows; those of victims that were alone (slow-down 1) only if asked.

    Raises InputError in one line, naming file and line, for what is no such row.
    """
    found = []
    for line, row in read_numbered_rows(path):
        where = f"{path}:{line}"
        profile, output = row.get("profile"), row.get("output")
        if not isinstance(profile, dict) or not isinstance(output, dict) or _TARGET not in output:
            raise InputError("dynpipe.sample_malformed", f"{where}: expected an object with profile, output and a time")
        metrics, facts = (
            {key: _number(value, key, where) for key, value in part.items()} for part in (profile, output)
        )
        slowdown = facts.pop(_TARGET)
        if slowdown <= 0:
            raise InputError("dynpipe.slowdown_zero", f"{where}: time is {slowdown:g}, expected a slowdown above 0")
        if alone or slowdown != _ALONE:
            found.append(Row(_joined(metrics, facts, where), slowdown))
    return found


def _number(value: object, key: str, where: str) -> float:
    """A metric is written as text, a fact of the victim as a number."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(
            "dynpipe.not_a_number", f"{where}: {shown_key(key)} is {shown(value)}, expected a finite number"
        )
    return number


def _joined(metrics: Mapping[str, float], facts: Mapping[str, float], where: str) -> dict[str, float]:
    if twice := metrics.keys() & facts.keys():
        raise InputError(
            "dynpipe.key_twice",
            f"{where}: {shown(sorted(twice))} occurs in both profile and output, expected in only one",
        )
    return {**metrics, **facts}
