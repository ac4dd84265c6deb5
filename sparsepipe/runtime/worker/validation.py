"""The validation split through the stages: forward only, the newest weights, running statistics."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import torch

from ...networks.losses import Tally
from ...values.schedule import compile
from ..stages.base import StageRunner
from ..training_state.checkpoint import Checkpoint
from .context import WorkerContext
from .feed import GivenFeed
from .inputs import Inputs
from .stage_replica import StageReplica


class Watcher(Protocol):
    """Sees the minibatches of this rank's stages."""

    def computed(self, runner: StageRunner, minibatch: int, start: float, outputs: Mapping[str, Any]) -> None:
        """Take note of a forward that began at `start` and is done."""
        ...


def validate(context: WorkerContext, replicas: Mapping[int, StageReplica], *, watcher: Watcher | None = None) -> Tally:
    """Evaluate this rank's part of the validation split. Returns what its last stage found, if it has that.

    Packets may still be on their way then. Raises what reading, computing and waiting for other ranks raise.
    """
    workload, recorder = context.workload, context.recorder
    samples, batches = workload.validation, workload.validation_order()
    assert samples is not None
    todo = compile(context.plan, len(batches)).evaluation.get(context.rank, ())
    inputs = {}
    for k, replica in replicas.items():
        replica.runner.begin(training=False)
        inputs[k] = Inputs(context, replica, samples, GivenFeed(0, batches), todo=todo)
    tally = workload.tally()
    for action in todo:
        recorder.stage, m = action.stage, action.minibatch
        replica = replicas[action.stage]
        runner = replica.runner
        received = inputs[action.stage].take(action)
        targets = inputs[action.stage].take_targets(action) if runner.is_last else None
        start = recorder.begin("evaluate", m)
        size, outputs = runner.evaluate(received, replica.validated, m)
        if watcher:
            watcher.computed(runner, m, start, outputs)
        if targets is not None:
            with torch.no_grad():
                _, outcome = runner.loss(outputs, targets[0].labels, samples=len(batches[m]), detailed=True)
            tally.add(outcome)
            if tally.measures:
                result = runner.result(outputs)
                if runner.reports:
                    tally.measures.add(m, result, targets[0].labels)
                    if tally.measures.votes:
                        rows = workload.rows(samples, batches[m], result)
                        tally.measures.votes.add(rows.outputs, rows.samples)
        recorder.span("evaluate", str(action), start, recorder.now(), minibatch=m)
        if not runner.is_last:
            context.exchange.send(runner.pack_outputs(outputs, m, size).packet, action)
    return tally


def add_up(tally: Tally, context: WorkerContext, *, what: str) -> None:
    """Bring together what all ranks found, on every rank. Raises DeadlinePassed or PeerLost."""
    process = context.process
    process.sum(tally.values, what=what)
    if tally.measures:
        add_up = partial(process.sum, what=what)
        tally.measures.gather(rank=process.rank, world_size=process.world_size, add_up=add_up)


def scores(context: WorkerContext, load: Callable[[], Checkpoint | None]) -> dict[str, float | None]:
    """Return, on every rank, what the network in one piece reaches by the checkpoint that `load` returns, if any.

    Rank 0 finds it out: it makes checkpoints whole, and has them at hand whatever host the last stage is on.
    """
    names = context.workload.score_names
    if not names:
        return {}
    found = torch.zeros(1 + len(names), dtype=torch.float64)
    if context.rank == 0 and (whole := load()):
        by_name = context.workload.scores(whole)
        values = (math.nan if by_name[name] is None else by_name[name] for name in names)  # tensors have no None
        found[:] = torch.tensor([1.0, *values], dtype=torch.float64)
    there, *sums = context.process.sum(found, what="scores of the validation").tolist()
    return {name: None if math.isnan(own) else own for name, own in zip(names, sums, strict=True)} if there else {}
