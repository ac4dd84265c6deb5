"""What a run comes to when it ends: its pace, its losses, how busy its stages were, what changes of the plan cost."""

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from ...records.record_files import read_metrics
from ..reporting import metrics
from ..reporting.memory import worst_load
from .context import WorkerContext


def run_summary(
    context: WorkerContext,
    run_dir: Path,
    done: int,
    *,
    epochs: Sequence[Mapping[str, Any]],
    of_plan: Sequence[Mapping[str, Any]],
    replans: Sequence[dict[str, Any]] = (),
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """Sum a run up after `done` minibatches: medians over `epochs`, without the first (it reads the data) if there are
    others; of stages over those `of_plan`, which ended under this plan. There may be none, if pipelines share the
    minibatches. "epochs" are those begun, of which the last may be unfinished.

    `replans`: what changes of the plan cost whose rows of metrics may be on other hosts. `left_out`: names of samples
    that are too large for the memory limit.
    """
    plan, workload = context.plan, context.workload
    steady, found = epochs[1:] or epochs, measured(context, epochs, of_plan=of_plan)
    changes = _replans(context, run_dir, replans)
    return {
        "run_dir": context.process.record or str(run_dir),
        "model": workload.model,
        "engine": found["engine"],
        "schedule": plan.schedule,
        "planner": plan.planner,
        "synthetic": workload.synthetic,
        "minibatches": done,
        "epochs": ceil(done / workload.epoch_minibatches),
        "samples_per_second": median(row["samples_per_second"] for row in steady) if steady else 0.0,
        "train": epochs[-1]["train"] if epochs else {},
        "validation": (epochs[-1]["validation"] or {}) if epochs else {},
        "load": found["load"],
        "stages": found["stages"],
        **({"left_out": {"samples": len(left_out), "names": list(left_out)}} if left_out else {}),
        **({"replans": changes} if changes else {}),
    }


def measured(
    context: WorkerContext, epochs: Sequence[Mapping[str, Any]], *, of_plan: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the engine, the worst load and the medians of the plan's stages, over epochs as `run_summary` has them."""
    steady = epochs[1:] or epochs
    shares = metrics.median_summaries([row["stages"] for row in of_plan[1:] or of_plan])
    return {
        "engine": context.workload.engine_name,
        "load": worst_load(steady),
        "stages": metrics.with_memory(shares, context.plan),
    }


def _replans(context: WorkerContext, run_dir: Path, others: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the costs of plan changes, in order, over all attempts of the run."""
    context.recorder.flush()
    path = run_dir / "metrics.jsonl"
    rows = read_metrics(path, "replan") if path.exists() else []
    own = [{key: value for key, value in row.items() if key not in ("event", "seconds")} for row in rows]
    known = {row["minibatch"] for row in own}
    return sorted([*own, *(row for row in others if row["minibatch"] not in known)], key=lambda row: row["minibatch"])
