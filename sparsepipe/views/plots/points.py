"""`Point`: the numbers of one strategy on one cluster, which several figures compare."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

import pandas as pd

from ...errors import InputError
from .theme import RUN_COLORS, RUN_DASHES, RUN_MARKERS

SPARSEPIPE_2020 = "SparsePipe (2020)"  # the planner of the paper, which is not this project
STRATEGIES = ("one device", "data parallel", "model parallel", "PipeDream", SPARSEPIPE_2020, "optimal")


@dataclass(frozen=True)
class Point:
    """Result of a strategy on `cluster`. Sizes: per minibatch; memory: peak of the worst device.

    If the samples of a minibatch are not known `samples_per_second` is None, and `minibatches_per_second` is given.
    """

    strategy: str
    cluster: str
    devices: int
    samples_per_second: float | None
    source: Literal["simulated", "emulated", "measured"] = "simulated"
    bound_samples_per_second: float | None = None  # no plan is faster
    activation_bytes: float | None = None  # sent between stages, forwards and backwards
    gradient_bytes: float | None = None  # sent to average gradients over replicas
    memory_bytes: float | None = None
    run: str = ""  # the record it was read from
    minibatches_per_second: float | None = None


def points_table(points: Iterable[Point]) -> pd.DataFrame:
    """One row for each point, with the units of throughput that any of them has. Raises InputError without any."""
    table = pd.DataFrame([asdict(point) for point in points])
    if table.empty:
        raise InputError("plot.nothing", "no points to draw; give at least one strategy on one cluster")
    unknown = [name for name in ("samples_per_second", "minibatches_per_second") if table[name].isna().all()]
    return table.drop(columns=unknown)


def planner_label(planner: str) -> str:
    """Return the name of a planner in figures: its choice, but for the SparsePipe paper's, also of older plans."""
    return SPARSEPIPE_2020 if planner in ("sparsepipe-2020", "sparsepipe") else planner


def looks(strategy: str) -> dict[str, str]:
    """Colour, dash and marker of a strategy, the same in every figure."""
    k = STRATEGIES.index(strategy) if strategy in STRATEGIES else len(STRATEGIES) - 1
    return {"color": RUN_COLORS[k], "dash": RUN_DASHES[k], "symbol": RUN_MARKERS[k]}
