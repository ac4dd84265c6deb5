"""This project's runtime: a profile, a plan that is run, and the runtime's own time where layers take none."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparsepipe.networks.losses import open_loss
from sparsepipe.profiling.measure import Training, profile
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.worker.run import run
from sparsepipe.runtime.workloads.replay import Replay
from sparsepipe.util.io.files import read_rows
from sparsepipe.values.cluster import Cluster, Link
from sparsepipe.values.graph import Layer, LayerGraph
from sparsepipe.values.plan import Plan, Stage
from sparsepipe.values.profile import CostSample, LayerCost, Profile

from .cases import SGD, Case, Repeated
from .table_cases import Batch


def _by_size(case: Case, folder: Path) -> dict[int, Batch]:
    return {batch.size: batch for batch in case.minibatches(folder)}


def _middle(counts: Sequence[int]) -> int:
    return counts[len(counts) // 2]


def role_profile(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    """Profile while another process does the same: both cores busy, as they will be."""
    batches = _by_size(case, folder)
    counts = sorted(batches)
    chosen = [batches[count] for count in dict.fromkeys((counts[0], _middle(counts), counts[-1]))]
    found = profile(
        case.network(),
        chosen,
        case.chosen_engine(),
        repeats=7,
        training=Training(sizes=counts, size_unit=case.size_unit, loss=open_loss(case.loss_name, facts=case.facts)),
    )
    found.renamed("cpu").save(folder / f"profile-{os.environ['RANK']}.json")
    return {}


def role_flush(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    return role_pipeline(case, folder, seconds, plan=Plan.load(folder / "flush.json"))


def role_pipeline(
    case: Case, folder: Path, seconds: float, plan: Plan | None = None, *, shared_memory: bool = True
) -> dict[str, Any]:
    plan = plan or Plan.load(folder / "plan.json")
    period = Plan.load(folder / "plan.json").estimate.period_seconds
    count = max(12, int(seconds / period)) + 6
    if plan.num_microbatches > 1:  # whole steps, the first of which is not counted
        count = max(3, 1 + round(count / plan.num_microbatches)) * plan.num_microbatches
    config = RunConfig(
        case.model,
        "memory",
        batch_size=case.batch_size,
        engine=case.engine,
        epochs=1,
        shuffle=False,
        validate=False,
        checkpoint_every=0,
        threads=1,
        shared_memory=shared_memory,
        learning_rate=SGD["lr"],
        momentum=SGD["momentum"],
        weight_decay=SGD["weight_decay"],
        timeout_seconds=120,
    )
    batches = case.minibatches(folder)
    dataset = Repeated(case, batches, count)
    # Here: the bare runtime is told without it.
    from sparsepipe.runtime.workloads.learning import Learning
    from sparsepipe.runtime.workloads.opening import LearningTask

    loss = open_loss(case.loss_name, facts=case.facts)
    task = LearningTask(case.network(), case.chosen_engine(), dataset, None, loss)
    workload = Learning(config, task)
    run_dir = folder / f"run-{os.environ['ATTEMPT']}"
    os.environ["SPARSEPIPE_LAUNCH"] = os.environ["ATTEMPT"]
    run(run_dir, plan, config, workload=workload)
    (summary,) = [row for row in read_rows(run_dir / "metrics.jsonl") if row["event"] == "summary"]
    found = {"samples_per_second": summary["samples_per_second"], "stages": summary["stages"]}
    return found | {"minibatches": summary["minibatches"]}


def role_overhead(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    """Replay a network whose layers take no time: what is left is the runtime's own."""
    plan = Plan((Stage(("a",), (0,)), Stage(("b",), (1,))), schedule="1f1b")
    free = LayerCost((CostSample(1.0, 0.0, 0.0, 64.0),))
    found = Profile(LayerGraph.chain([Layer("a"), Layer("b")]), {"cpu": (free, free)}, (1.0,))
    config = RunConfig("free", "nothing", engine="replay", minibatches=1000, batch_size=1, validate=False, threads=1)
    config = replace(config, checkpoint_every=0)
    run_dir = folder / f"run-{os.environ['ATTEMPT']}"
    cluster = Cluster.uniform(2, device_type="cpu", link=Link(1e12, 0.0))
    workload = Replay(run_dir, config, found, cluster)
    os.environ["SPARSEPIPE_LAUNCH"] = os.environ["ATTEMPT"]
    before = time.process_time()
    run(run_dir, plan, config, workload=workload)
    (summary,) = [row for row in read_rows(run_dir / "metrics.jsonl") if row["event"] == "summary"]
    cpu = time.process_time() - before
    return {"overhead_ms": 1e3 / summary["samples_per_second"], "cpu_ms": 1e3 * cpu / config.minibatches}
