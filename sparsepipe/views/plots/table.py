"""Helpers for the tables behind figures: names of strategies and plans, bytes across boundaries, provenance.

A `Point` has the numbers of one strategy on one cluster, which several figures compare. A run's place among those it is
compared with gives its colour, dash and marker in each of their figures.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

import pandas as pd

from ...errors import DamagedRecord, InputError
from ...records import RunRecord
from ...records.provenance import Provenance
from ...util.text.numbers import number_of
from ...values.costs import LayerTable
from ...values.graph import LayerGraph
from ...values.plan import Plan
from ...values.replication import rule_text
from .theme import RUN_COLORS, RUN_DASHES, RUN_MARKERS

SPARSEPIPE_2020 = "SparsePipe (2020)"  # the planner of the paper, which is not this project
STRATEGIES = ("one device", "data parallel", "model parallel", "PipeDream", SPARSEPIPE_2020, "optimal")


@dataclass(frozen=True)
class Point:
    """Result of a strategy on `cluster`. Sizes are per minibatch; memory is the peak of the worst device.

    If the samples per minibatch are unknown, `samples_per_second` is None, and `minibatches_per_second` is set.
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
    """Return one row for each point, with the units of throughput that the points have.

    Raises InputError without points.
    """
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


Found = TypeVar("Found")

ONE_PROCESS = "one process"  # the strategy of one device: nobody else is at work


def strategy(plan: Plan) -> str:
    """Return the strategy that a plan is, in words: "one process", "data parallel × 2", "pipeline × 2 (1f1b)",
    "2 pipelines (quorum)".
    """
    if plan.replication is not None:
        return f"{number_of(len(plan.pipelines), 'pipeline')} ({rule_text(plan.replication)})"
    devices, stages = len(plan.ranks), len(plan.stages)
    if devices == 1:
        return ONE_PROCESS
    if stages == 1:
        return f"data parallel × {devices}"
    shape = f"{devices}" if stages == devices else "-".join(str(len(stage.ranks)) for stage in plan.stages)
    return f"pipeline × {shape} ({plan.schedule})"


def distinct(names: Iterable[str]) -> list[str]:
    """Number the names that occur more than once, so that each marks one thing in a figure."""
    names = list(names)
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(f"{name} #{seen[name]}" if names.count(name) > 1 else name)
    return result


def plan_names(plans: Sequence[Plan]) -> list[str]:
    """Each plan by its planner, with its schedule where planners repeat."""
    planners = [planner_label(plan.planner) for plan in plans]
    return distinct(
        planner if planners.count(planner) == 1 else f"{planner} ({plan.schedule})"
        for planner, plan in zip(planners, plans, strict=True)
    )


def record_names(records: Sequence[RunRecord]) -> list[str]:
    """Each run by its strategy, with its folder's name where strategies repeat."""
    names = [strategy(record.plan) for record in records]
    return distinct(
        name if names.count(name) == 1 else f"{name}, {record.name}"
        for name, record in zip(names, records, strict=True)
    )


def of_readable(records: Sequence[RunRecord], read: Callable[[RunRecord], Found]) -> list[tuple[int, Found]]:
    """Return (place, what `read` finds) of each run that can be read: a damaged one costs itself alone.

    Those left out are warned of, one line each. Raises DamagedRecord if none can be read.
    """
    found, damaged = [], []
    for place, record in enumerate(records):
        try:
            found.append((place, read(record)))
        except DamagedRecord as error:
            damaged.append(error)
    if damaged and not found:
        raise damaged[0]
    for each in damaged:
        warnings.warn(f"left out: {each}", stacklevel=2)
    return found


def readable(records: Sequence[RunRecord], read: Callable[[RunRecord], object]) -> tuple[tuple[RunRecord, ...], str]:
    """Return the runs of which `read` and their origin can be read, and what a figure's note says of the others.

    They are warned of. Raises DamagedRecord if none can be read.
    """
    found = of_readable(records, lambda record: (read(record), trained_on([record]), Provenance.of(runs=[record])))
    left_out = len(records) - len(found)
    told = f"{number_of(left_out, 'damaged run')} left out" if left_out else ""
    return tuple(records[place] for place, _ in found), told


def is_synthetic(origin: object) -> bool:
    """Return whether an origin, at any depth, says that its data were generated."""
    waiting = [origin]
    while waiting:  # no recursion: a file may nest as deep as JSON is read
        part = waiting.pop()
        if isinstance(part, Mapping):
            if part.get("synthetic") is True:
                return True
            waiting += part.values()
        elif isinstance(part, Sequence) and not isinstance(part, str | bytes):
            waiting += part
    return False


def data_of(records: Iterable[RunRecord]) -> list[str]:
    """The data sets of runs, each once: by name, and those that were generated as "synthetic shapes".

    A replay has no data: it says that it is one.
    """
    return list(dict.fromkeys(filter(None, map(_data_of, records))))


def _data_of(record: RunRecord) -> str:
    if record.workload.trains and is_synthetic(told_by([record])):
        return "synthetic shapes"
    return str(record.origin.get("facts", {}).get("data", ""))


def trained_on(records: Iterable[RunRecord]) -> str:
    """The data and the models of runs, for a figure's second line."""
    records = list(records)
    models = (record.model for record in records)
    return " · ".join(name for name in dict.fromkeys([*data_of(records), *models]) if name)


def noted_of(note: str, records: Iterable[RunRecord]) -> str:
    """A note on runs; before it all their data if some were generated, which it does not say yet.

    Without a note: the data and the models of the runs.
    """
    records = list(records)
    if not note:
        return trained_on(records)
    names = data_of(records)
    told = ", ".join(names) if "synthetic shapes" in names and "synthetic" not in note else ""
    return " · ".join(filter(None, [told, note]))


def told_by(records: Iterable[RunRecord]) -> list[Any]:
    """Origins and summaries of the runs of a table."""
    return [part for record in records for part in (record.origin, record.metrics("summary"))]


def noted(note: str, *origins: Any) -> str:
    """Put "synthetic shapes" before a note where any of the origins says so, and the note does not yet."""
    if is_synthetic(origins) and "synthetic" not in note:
        return "synthetic shapes" + (f" · {note}" if note else "")
    return note


def crossing(costs: LayerTable, before: Iterable[int]) -> tuple[float, float]:
    """Bytes of features and of coordinates that cross the cut after the down-set `before`, forwards."""
    forward, backward = costs.payload(before)  # backwards only the features' gradients come
    return float(backward[0]), float(forward[0] - backward[0])


def stage_of_layers(graph: LayerGraph, plan: Plan | None) -> list[int | None]:
    """For each layer of the graph, the stage that runs it; None if no stage does (or there is no plan)."""
    place = {id: k for k, stage in enumerate(plan.stages) for id in stage.layers} if plan else {}
    return [place.get(layer.id) for layer in graph.layers]


def run_places(
    records: Sequence[RunRecord], among: Sequence[RunRecord] = (), names: Sequence[str] | None = None
) -> list[int]:
    """Return the place of each of `records` among the runs of all figures that stand alongside each other.

    `among`: those runs; `records` themselves unless given. A run that is none of them has the place of the first with
    its strategy, or else one behind them. Runs of one of the `names` have one place, as they are one line.
    """
    called = dict(zip(records, names, strict=True)) if names else {}
    everyone = list(among) or list(records)
    keys: list[RunRecord | str] = list(dict.fromkeys(called.get(one, one) for one in everyone))
    of_strategy = {_strategy(one): keys.index(called.get(one, one)) for one in reversed(everyone)}
    places = []
    for record in records:
        key = called.get(record, record)
        alike = of_strategy.get(_strategy(record)) if key not in keys else None
        if key not in keys and alike is None:
            keys.append(key)
        places.append(keys.index(key) if alike is None else alike)
    return places


def compared_with(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs among which `records` have the colours of the figures of their campaigns.

    Those are all finished runs of their campaigns, in the same folder, and the records themselves: in the order in
    which they were launched, which is that of such figures. If two of `records` would share a colour then, they are
    compared with each other alone.
    """
    own = {record: _launched(record) for record in records}
    campaigns = {campaign for campaign, _ in own.values() if campaign}
    beside = (path.parent for folder in {one.folder.parent for one in records} for path in folder.glob("*/plan.json"))
    for other in map(RunRecord, beside if campaigns else ()):
        launched = _launched(other)
        if launched[0] in campaigns and other not in own and other.status["state"] == "finished":
            own[other] = launched
    found = sorted(own, key=lambda one: own[one][1])
    colors = {place % len(RUN_COLORS) for place in run_places(records, found)}
    return found if len(colors) == len(records) else sorted(records, key=lambda one: own[one][1])


def _launched(record: RunRecord) -> tuple[str | None, str]:
    """Its campaign, and when it was launched; nothing of a record whose origin is damaged."""
    try:
        return record.campaign, str(record.origin.get("created", ""))
    except DamagedRecord:
        return None, ""


def _strategy(record: RunRecord) -> str:
    """Strategy of a run by its plan; of a damaged record its folder."""
    try:
        return strategy(record.plan)
    except DamagedRecord:
        return str(record.folder)
