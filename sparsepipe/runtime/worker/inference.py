"""Inference: the validation split through the stages, forwards alone, with the weights of a checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ...plan import Plan
from ...schedule import compile_until_steady
from ..config import RunConfig
from ..forward_only import PREDICTIONS, ForwardOnly
from ..processes.process import Process
from ..reporting.memory import PeakMemory
from ..reporting.recorder import Recorder
from ..stages.base import StageRunner
from ..training_state import checkpoint
from ..workloads.base import Workload
from .connections import Connections
from .context import WorkerContext
from .packet_exchange import PacketExchange
from .predictions import Clock, Predictions
from .stage_replica import StageReplica
from .validation import validate


class _Watch:
    """Keeps when minibatches begin and are done, and what comes out of the last stage."""

    def __init__(self, context: WorkerContext, count: int) -> None:
        self._context, self._order = context, context.workload.validation_order()
        self.clock, self.predictions = Clock(count), Predictions()
        self.busy = torch.zeros(len(context.plan.stages), dtype=torch.float64)  # seconds of this rank, by stage

    def computed(self, runner: StageRunner, minibatch: int, start: float, outputs: Mapping[str, Any]) -> None:
        workload, recorder = self._context.workload, self._context.recorder
        if runner.is_first:
            self.clock.table[minibatch, 0] = start
        self.busy[recorder.stage] += recorder.now() - start
        if runner.is_last:
            result = runner.result(outputs)
            self.clock.table[minibatch, 1] = recorder.now()
            rows = workload.rows(workload.validation, self._order[minibatch], result)
            self.predictions.add(minibatch, rows)


def infer(
    process: Process,
    run_dir: Path,
    plan: Plan,
    config: RunConfig,
    *,
    workload: Workload,
    forwards: ForwardOnly,
    origin: float,
) -> None:
    """Compute the outputs for the validation split and write them, and how fast that was. Every rank comes here.

    `forwards` names the checkpoint. `origin` is as a `Recorder` takes it.
    Raises InputError for a checkpoint of another network, and what reading, computing and waiting for others raise.
    """
    program = compile_until_steady(plan)
    connections = Connections.open(program, process, share_memory=config.shared_memory)
    recorder = Recorder(
        run_dir, rank=process.rank, stage=plan.stages_of(process.rank)[0], origin=origin, heartbeats=process.heartbeats
    )
    try:
        replicas = _replicas(plan, config, connections, workload, checkpoint.load(forwards.checkpoint))
        memory = PeakMemory(process.device, connections.shared_memory)
        exchange = PacketExchange(connections, recorder, timeout=config.timeout_seconds)
        context = WorkerContext(plan, process, workload, exchange, recorder, memory, config.timeout_seconds)
        summary = _evaluated(context, replicas, run_dir)
        if context.writes_metrics:
            record = Path(process.record or run_dir)
            facts = {"run_dir": str(record), "checkpoint": forwards.named, "predictions": str(record / PREDICTIONS)}
            recorder.metric("summary", **facts, **summary)
    finally:
        recorder.close()
    connections.close()


def _replicas(
    plan: Plan, config: RunConfig, connections: Connections, workload: Workload, found: checkpoint.Checkpoint
) -> dict[int, StageReplica]:
    """This rank's stages with the weights of a checkpoint, whoever held them before."""
    replicas = {}
    for k in plan.stages_of(connections.process.rank):
        replica = StageReplica.open(plan, config, position=connections.at(k), workload=workload)
        found.check(model=workload.model, layers=replica.own.layers)
        replica.load_weights(found)
        replicas[k] = replica
    return replicas


def _evaluated(context: WorkerContext, replicas: Mapping[int, StageReplica], run_dir: Path) -> dict[str, Any]:
    """Compute and write the predictions; return what to say of the run."""
    process, workload, plan = context.process, context.workload, context.plan
    batches = workload.validation_order()
    if context.writes_metrics:
        facts = {"epoch_minibatches": len(batches), "minibatches": len(batches)}
        context.recorder.metric("start", **facts)
    watch = _Watch(context, len(batches))
    process.barrier("start of the predictions")
    tally = validate(context, replicas, watcher=watch)
    context.exchange.finish()
    for values, what in ((tally.values, "outcomes"), (watch.clock.table, "times"), (watch.busy, "times")):
        process.sum(values, what=f"{what} of the predictions")
    last = plan.stages[-1].ranks
    watch.predictions.write(run_dir / PREDICTIONS, process, last, len(batches), workload.addresses)
    told, samples = tally.report(), sum(map(len, batches))
    pace = watch.clock.report(samples)
    whole = samples / pace["samples_per_second"]
    return {
        "model": workload.model,
        "engine": workload.engine_name,
        "schedule": plan.schedule,
        "planner": plan.planner,
        "synthetic": workload.synthetic,
        "minibatches": len(batches),
        "samples": samples,
        **pace,
        "train": {},
        "validation": told,
        "stages": [
            {"stage": k, "ranks": list(stage.ranks), "busy_fraction": busy, "bubble_fraction": 1 - busy}
            for k, stage in enumerate(plan.stages)
            for busy in [float(watch.busy[k]) / (whole * len(stage.ranks))]
        ],
    }
