"""What intruders will cost each layer, learned on one machine from what that machine says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...util.io.fields import number, shown, text, texts
from ...util.io.files import write_json
from ...util.text.counting import number_of
from ...values.profile import Profile
from .forest import Forest, read_bounded_json
from .growing import COARSE, Growth, grow
from .judging import Judged, judge, split
from .measurements import Measurement, features_of, rows_of
from .rows import Row, table_of
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
