"""Helpers for the tables behind figures: names of strategies and plans, bytes across boundaries, provenance."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ...errors import DamagedRecord
from ...records import RunRecord
from ...records.provenance import Provenance
from ...util.text.counting import number_of
from ...values.costs import LayerTable
from ...values.graph import LayerGraph
from ...values.plan import Plan
from ...values.replication import rule_text
from .points import planner_label

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
