"""What is learned from planned minibatches, compared with shuffled ones."""

import statistics
from collections.abc import Iterator
from itertools import product
from typing import Any

import sparsepipe as sp
from scripts.bench.document import say
from scripts.bench.scratch import scratch
from sparsepipe.networks import network
from sparsepipe.values.plan import Plan, Stage

MODEL, ORDERS = "minkvgg11bn-narrow", ("shuffle", "planned")
# Data set → the settings with which it learns in half a minute.
DATA: dict[str, dict[str, Any]] = {
    "modelnet10-sample": {"voxel_size": 0.15, "batch_size": 8, "epochs": 8, "learning_rate": 0.02},
    "digits": {"voxel_size": 0.15, "batch_size": 16, "epochs": 2, "learning_rate": 0.02},
}
SCHEDULES: dict[str, dict[str, Any]] = {"1f1b": {}, "1f1b-flush": {"num_microbatches": 2}}


def measure(*, seeds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each data set, schedule, order and seed: two stages in two processes."""
    layers = tuple(row.id for row in network(MODEL, num_classes=1).rows)
    half = len(layers) // 2
    stages = (Stage(layers[:half], (0,)), Stage(layers[half:], (1,)))
    with scratch("bench-order") as folder:
        for number, (seed, data, schedule, order) in enumerate(product(range(seeds), DATA, SCHEDULES, ORDERS)):
            config = sp.RunConfig(MODEL, data, **DATA[data], order=order, seed=seed, engine="native", threads=1)
            plan = Plan(stages, schedule, **SCHEDULES[schedule])
            with sp.launch(plan, config, run_dir=folder / f"run{number}") as job:
                job.wait()
            (summary,) = job.record.metrics("summary")
            facts = {"data": data, "schedule": schedule, "order": order, "seed": seed}
            yield {**facts, "accuracy": summary["validation"]["accuracy"], "train": summary["train"]["accuracy"]}
            say(f"{data}, {schedule}, {order}, seed {seed}: {summary['validation']['accuracy']:.3f}")


def differences(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each data set and schedule, planned less shuffled by seed: the mean, and its standard error."""
    found = []
    for data, schedule in product(DATA, SCHEDULES):
        of: dict[str, dict[int, float]] = {order: {} for order in ORDERS}
        train: dict[str, list[float]] = {order: [] for order in ORDERS}
        for row in rows:
            if (row["data"], row["schedule"]) == (data, schedule):
                of[row["order"]][row["seed"]] = row["accuracy"]
                train[row["order"]].append(row["train"])
        shuffled, planned = (of[order] for order in ORDERS)
        each = [planned[seed] - shuffled[seed] for seed in sorted(shuffled.keys() & planned.keys())]
        if len(each) > 1:
            error = statistics.stdev(each) / len(each) ** 0.5
            means = {order: statistics.fmean(of[order].values()) for order in ORDERS}
            spreads = {f"{order}_spread": statistics.stdev(of[order].values()) for order in ORDERS}
            facts = {"data": data, "schedule": schedule, "seeds": len(each), "difference": statistics.fmean(each)}
            trained = {order: statistics.fmean(train[order]) for order in ORDERS}
            facts["train_difference"] = trained["planned"] - trained["shuffle"]
            found.append({**facts, "standard_error": error, **means, **spreads})
    return found


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each data set and schedule: mean accuracies with their spread, and the difference."""
    head = f"{'data':20s}{'schedule':12s}{'seeds':>6s}{'shuffled':>16s}{'planned':>16s}"
    yield f"{head}{'planned less shuffled':>24s}{'while training':>16s}"
    for one in differences(rows):
        cells = [f"{one[order]:.3f} ± {one[f'{order}_spread']:.3f}" for order in ORDERS]
        line = f"{one['data']:20s}{one['schedule']:12s}{one['seeds']:>6}{cells[0]:>16s}{cells[1]:>16s}"
        told = f"{one['difference']:+.3f} ± {one['standard_error']:.3f}"
        yield f"{line}{told:>24s}{one['train_difference']:>+16.3f}"
