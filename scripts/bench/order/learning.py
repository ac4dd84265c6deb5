"""What is learned from planned minibatches, compared with shuffled ones: two stages of a pipeline in one process.

An asynchronous pipeline with weight stashing computes the first stage's forward and backward with the weights of before
the last update, and the second stage's with the newest; an epoch begins with those. A synchronous one updates after two
minibatches. tests/test_runtime_laws.py compares real processes with such a loop.
"""

import json
import statistics
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

import sparsepipe as sp
from scripts.bench.document import say
from sparsepipe.engines.subnetwork import build
from sparsepipe.runtime.workloads.learning import Learning

MODEL, ORDERS, STAGES = "minkvgg11bn-narrow", ("shuffle", "planned"), 2
# Data set → the settings with which it learns in a quarter of a minute. The learning rate falls to 0: at a constant one
# accuracies vary by a tenth from epoch to epoch, more than any order changes.
FALLING = {"learning_rate": 0.02, "learning_rate_schedule": "cosine"}
DATA: dict[str, dict[str, Any]] = {
    "modelnet10-sample": {"voxel_size": 0.15, "batch_size": 8, "epochs": 8, **FALLING},
    "digits": {"voxel_size": 0.15, "batch_size": 16, "epochs": 3, **FALLING},
}
SCHEDULES = {"1f1b": 1, "1f1b-flush": 2}  # minibatches of an update


def measure(*, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield a row for each seed, data set, schedule and order."""
    for seed, data, schedule, order in product(seeds, DATA, SCHEDULES, ORDERS):
        composition = json.dumps({"stages": STAGES, "step": SCHEDULES[schedule]})
        config = sp.RunConfig(
            MODEL, data, **DATA[data], order=order, composition=composition, seed=seed, engine="native", threads=1
        )
        train, validation = trained(Learning.open(config), step=SCHEDULES[schedule])
        yield {
            **{"data": data, "schedule": schedule, "order": order, "seed": seed},
            **{"accuracy": validation, "train": train},
        }
        say(f"{data}, {schedule}, {order}, seed {seed}: {validation:.3f}")


def trained(workload: Learning, *, step: int) -> tuple[float, float]:
    """Return the accuracies of the last epoch: while training, and validated after it. `step`: see SCHEDULES."""
    config, engine = workload.config, workload.engine
    torch.set_num_threads(1)
    module = build(workload.network, engine, seed=config.seed)
    optimizer = torch.optim.SGD(module.parameters(), lr=config.learning_rate, momentum=config.momentum)
    ids = [row.id for row in workload.network.rows]
    first_stage = {name for name, _ in module.named_parameters() if name.partition(".")[0] in ids[: len(ids) // STAGES]}
    minibatch, correct = 0, 0

    def judged(samples: Any, indices: Sequence[int], epoch: int, weights: dict[str, Tensor]) -> tuple[Tensor, int]:
        """Return the sum of the samples' losses, and how many are classified as they should be."""
        given = {"input": engine.tensor(samples.batch(indices, epoch=epoch))}
        rows = engine.rows(module.result(functional_call(module, weights, (given,), {"minibatch": minibatch})))
        labels = workload.labels(samples, indices, epoch)
        return cross_entropy(rows, labels, reduction="sum"), int((rows.argmax(1) == labels).sum())

    for epoch in range(config.epochs):
        module.train()
        order, correct, stashed = workload.order(epoch), 0, dict[str, Tensor]()
        for start in range(0, len(order), step):
            together = order[start : start + step]
            optimizer.param_groups[0]["lr"] = config.rate.at(
                minibatch, epoch_minibatches=len(order), total_minibatches=workload.total_minibatches
            )
            optimizer.zero_grad()
            for indices in together:
                loss, right = judged(workload.training, indices, epoch, stashed)
                (loss / sum(map(len, together))).backward()
                minibatch, correct = minibatch + 1, correct + right
            weights = dict(module.named_parameters())
            for name, stash in stashed.items():
                weights[name].grad = stash.grad
            if step == 1:
                stashed = {name: weights[name].detach().clone().requires_grad_() for name in first_stage}
            optimizer.step()
    module.eval()
    with torch.no_grad():
        right = sum(judged(workload.validation, indices, 0, {})[1] for indices in workload.validation_order())
    return correct / workload.num_samples, right / len(workload.validation)


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
