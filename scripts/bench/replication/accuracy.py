"""What is learned under each rule from the same samples, and how soon."""

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sparsepipe as sp
from sparsepipe.cluster import Cluster, Link
from sparsepipe.record import RunRecord
from sparsepipe.replication import parse_rule

from ..document import say
from ..rounds import load
from .pace import seconds_of

MODEL, VOXEL_SIZE, BATCH, RATE = "minkvgg11bn-narrow", 0.1, 32, 0.02
REFERENCE = "all-reduce"


def measure(
    rules: list[str], stragglers: list[str], *, data: str, pipelines: int, epochs: int, seeds: int
) -> list[dict[str, Any]]:
    """Return a row for each rule, straggler and seed."""
    settings = {"voxel_size": VOXEL_SIZE, "batch_size": BATCH, "num_points": 1024, "engine": "native", "threads": 1}
    profile = sp.profile_model(MODEL, data, **settings)
    plan = sp.partition(profile, Cluster.uniform(1, device_type=profile.device_types[0], link=Link(1e9, 1e-4)))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for spec in stragglers:
            for rule in rules:
                for seed in range(seeds):
                    config = sp.RunConfig(MODEL, data, **settings, epochs=epochs, learning_rate=RATE, seed=seed)
                    several = sp.Pipelines.alike(plan, pipelines, parse_rule(rule), samples=BATCH)
                    place = Path(folder) / f"run{len(rows)}"
                    before = load()
                    with sp.launch(several, config, run_dir=place, stragglers=spec or None) as job:
                        job.wait()
                    facts = {"rule": rule, "straggler": spec or "nobody is slow", "seed": seed}
                    rows.append({**facts, **_outcome(job.record), "load": round(before, 2)})
                    say(" ".join(f"{key}={value}" for key, value in rows[-1].items() if key != "epochs"))
    return _with_targets(rows)


def _outcome(record: RunRecord) -> dict[str, Any]:
    (summary,) = record.metrics("summary")
    told = [row for row in record.metrics("epoch") if row.get("validation")]
    seconds = seconds_of(record)
    first = max(row["seconds"] for row in record.metrics("step")) - seconds
    reached = [[row["seconds"] - first, row["validation"]["accuracy"]] for row in told]
    return {"accuracy": summary["validation"]["accuracy"], "seconds": seconds, "epochs": reached}


def _with_targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add when each run first reached the least of the reference's final accuracies; None: it never did."""
    target = min((row["accuracy"] for row in rows if row["rule"] == REFERENCE), default=None)
    for row in rows:
        epochs, reached = row.pop("epochs"), None
        if target is not None:
            seconds = [after for after, accuracy in epochs if accuracy >= target]
            if row["accuracy"] >= target:
                seconds.append(row["seconds"])
            reached = min(seconds, default=None)
        row |= {"target": target, "seconds_to_target": reached}
    return rows


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each rule and straggler: the median, and the least and the most over the seeds."""
    yield f"{'straggler':24s}{'rule':20s}{'accuracy':>26s}{'seconds':>12s}{'seconds to target':>20s}"
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["straggler"], row["rule"]), []).append(row)
    for (spec, rule), own in groups.items():
        values = sorted(row["accuracy"] for row in own)
        accuracy = f"{statistics.median(values):.3f} [{values[0]:.3f}, {values[-1]:.3f}]"
        seconds = statistics.median(row["seconds"] for row in own)
        times = [row["seconds_to_target"] for row in own if row["seconds_to_target"] is not None]
        first = f"{statistics.median(times):.1f}" if times else "not reached"
        yield f"{spec:24s}{rule:20s}{accuracy:>26s}{seconds:12.1f}{first:>14s} {len(times)}/{len(own)}"
