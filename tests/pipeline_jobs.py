"""Runs of several pipelines for tests: their ranks forked in one set of processes, their coordinator beside them."""

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from runtime_jobs import Result, plan_of, run_ranks

from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Link, Plan, Profile, Stage
from sparsepipe.launching.prepare import prepare
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.pipelines.journal import RESUME
from sparsepipe.runtime.workloads.resolved import resolve
from sparsepipe.util.host.imports import python_command, python_environment
from sparsepipe.util.io.files import read_rows
from sparsepipe.values.replication import Arithmetic, parse_rule, rule_to_json


def pipelines_of(model: str, *ranks: Sequence[Sequence[int]], rule: str, cuts=None, **options) -> Plan:
    """Cut a model's layers into a pipeline for each of `ranks`, whose entries are the stages'."""
    plans = (plan_of(model, own, cuts=(cuts or {}).get(k), **options) for k, own in enumerate(ranks))
    return Plan.together(tuple(plans), parse_rule(rule))


class PipelinesResult(Result):
    """What a run of several pipelines left."""

    def of(self, k: int) -> Result:
        return Result(self.folder / "pipelines" / str(k))

    @property
    def seen(self) -> dict[int, list[int]]:
        """The minibatches of each epoch that were trained, by their places in its order."""
        found: dict[int, list[int]] = {}
        for row in self.rows("step"):
            found.setdefault(row["epoch"], []).append(row["minibatch"])
        return {epoch: sorted(own) for epoch, own in found.items()}

    def lines(self, name: str) -> list[dict]:
        return read_rows(self.folder / name)


class OfFirstStage(PipelinesResult):
    """What the first stage of each pipeline took of merges: the others took the same, however many there are."""

    def lines(self, name: str) -> list[dict]:
        return [row for row in super().lines(name) if row["event"] != "applied" or row["stage"] == 0]


def run_pipelines(
    folder: Path, plan: Plan, config: RunConfig, *, resume: bool = False, limit: float = 240
) -> PipelinesResult:
    """Run them to their end. Fails with the first traceback where a rank does."""
    record, locks = prepare(plan, resolve(config), run_dir=folder, resume=resume)
    for lock in locks:
        os.close(lock)
    launch = str(time.time_ns())
    options = ["--run-dir", str(record.folder), "--pipelines", str(len(plan.pipelines)), "--launch", launch]
    options += ["--replication", json.dumps(rule_to_json(plan.replication)), "--seed", str(config.seed)]
    if (record.folder / RESUME).exists():
        options += ["--resume", str(record.folder / RESUME)]
    commands = [python_command("sparsepipe.runtime.pipelines.service", *options)]
    if plan.replication.arithmetic is Arithmetic.SERVER:
        more = ("--run-dir", str(record.folder))
        commands.append(python_command("sparsepipe.runtime.replication.between_pipelines", *more))
    with (record.folder / "logs" / "coordinator.log").open("ab") as log:
        beside = [subprocess.Popen(one, stdout=log, stderr=log, env=python_environment()) for one in commands]
    more = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "SPARSEPIPE_LAUNCH": launch}
    try:
        run_ranks(_work, len(plan.ranks), record.folder, logs=folder, limit=limit, more=more)
    finally:
        for process in beside[::-1]:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return PipelinesResult(record.folder)


def identity_of(plan: Plan, number: int) -> tuple[int, int, Mapping[str, str]]:
    """Return (pipeline, rank within it, what its launcher says in the environment) of a rank among all."""
    k = next(k for k in range(len(plan.pipelines)) if number in plan.ranks_of(k))
    ranks = plan.ranks_of(k)
    rank = ranks.index(number)
    told = {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(ranks)),
        "LOCAL_WORLD_SIZE": str(len(ranks)),
        "SPARSEPIPE_PIPELINE": str(k),
        "SPARSEPIPE_RANKS": ",".join(map(str, ranks)),
        "SPARSEPIPE_FIRST_RANK": str(plan.first_rank(k)),
    }
    return k, rank, told


def _work(folder: Path, number: int) -> None:
    """Take the part of one rank among all."""
    from sparsepipe.runtime.worker.run import run
    from sparsepipe.util.io.files import read_json

    plan = Plan.load(folder / "plan.json")
    k, _, told = identity_of(plan, sorted(plan.ranks)[number])
    os.environ |= told
    own = folder / "pipelines" / str(k)
    run(own, plan.local(k), RunConfig.from_json(read_json(own / "config.json")))


def replayed_pipelines(stages: Sequence[int], *, rule: str, seconds: float) -> tuple[Plan, RunConfig, Profile, Cluster]:
    """Return a replay of pipelines of so many stages each, which take `seconds` over a minibatch in every stage."""
    count = 12  # layers: whole for stages of 1, 2, 3
    graph = LayerGraph.chain([Layer(f"l{k}", "", 1e3) for k in range(count)])
    plans, first = [], 0
    ids = [layer.id for layer in graph.layers]
    for own in stages:
        bounds = [round(k * count / own) for k in range(own + 1)]
        cut = [tuple(ids[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)]
        plans.append(Plan(tuple(Stage(layers, (first + k,)) for k, layers in enumerate(cut)), schedule="1f1b"))
        first += own
    each = seconds / count * max(stages)
    cost = LayerCost((CostSample(1.0, each / 3, 2 * each / 3, 1e3),))
    profile = Profile(graph, {"fast": (cost,) * count}, (1.0,))
    cluster = Cluster.uniform(first, device_type="fast", link=Link(1e9, 1e-5))
    config = RunConfig("chain", "nothing", engine="replay", batch_size=1, threads=1)
    return Plan.together(tuple(plans), parse_rule(rule)), config, profile, cluster
