"""Inference: the validation split through the stages, forwards alone, with the weights of a checkpoint."""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ...networks.losses import Tally
from ...util.io.files import write_atomic
from ...values.plan import Plan
from ...values.schedule import compile, compile_until_steady
from ..config import RunConfig
from ..plan_fit import PREDICTIONS, ForwardOnly
from ..processes.process import Process
from ..reporting.memory import PeakMemory
from ..reporting.recorder import Recorder
from ..stages.base import StageRunner
from ..training_state import checkpoint
from ..training_state.checkpoint import Checkpoint
from ..transport.state_transfer import StateTransfer
from ..workloads.base import Rows, Workload
from .connections import Connections
from .control import WorkerContext
from .feed import GivenFeed
from .inputs import Inputs
from .packet_exchange import PacketExchange
from .stage_replica import StageReplica


# The validation split through the stages: forward only, the newest weights, running statistics
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


_NO_PLACE = -1  # of a shorter row of predictions: padding
_HALVES = (torch.float16, torch.bfloat16)


class _Watch:
    """Keeps when minibatches begin and are done, and what comes out of the last stage."""

    def __init__(self, context: WorkerContext, count: int) -> None:
        self._context, self._order = context, context.workload.validation_order()
        self.clock, self.predictions = Clock(count), Predictions()
        self.busy = torch.zeros(len(context.plan.stages), dtype=torch.float64)  # seconds of this rank, by stage

    def computed(self, runner: StageRunner, minibatch: int, start: float, outputs: Mapping[str, Any]) -> None:
        workload, recorder = self._context.workload, self._context.recorder
        if runner.is_first and runner.reports:
            self.clock.table[minibatch, 0] = start
        self.busy[recorder.stage] += recorder.now() - start
        if runner.is_last:
            result = runner.result(outputs)
            if not runner.reports:
                return
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
            recorder.metric(
                "summary",
                run_dir=str(record),
                checkpoint=forwards.named,
                predictions=str(record / PREDICTIONS),
                **summary,
            )
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
        context.recorder.metric("start", epoch_minibatches=len(batches), minibatches=len(batches))
    watch = _Watch(context, len(batches))
    process.barrier("start of the predictions")
    tally = validate(context, replicas, watcher=watch)
    context.exchange.finish()
    add_up(tally, context, what="outcomes of the predictions")
    for values in (watch.clock.table, watch.busy):
        process.sum(values, what="times of the predictions")
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


class Predictions:
    """The rows of this rank's minibatches, in memory."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, np.ndarray]] = {}

    def add(self, minibatch: int, rows: Rows) -> None:
        """Take the rows of a minibatch: their numbers, of sequences only which is largest at each place."""
        outputs = _as_numpy_has_it(rows.outputs)
        found = {"sample": rows.samples.cpu().numpy()}
        found |= {f"outputs_{name}": _as_numpy_has_it(other).numpy() for name, other in rows.others.items()}
        if outputs.dim() <= 2:
            found["outputs"] = outputs.numpy()
        if outputs.dim() > 1 and outputs.shape[-1] > 1:
            found["predictions"] = outputs.argmax(dim=-1).numpy()
        self._rows[minibatch] = found

    def write(
        self,
        path: Path,
        process: Process,
        ranks: Sequence[int],
        count: int,
        addresses: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Write those of all ranks as one file, in the order of `count` minibatches. Every rank comes here.

        `addresses` gives further arrays of the file, which say what the rows stand for. `ranks` have the rows: the
        first of them writes the file. To it come those of the others, by the disk of their host or, if they are on
        several, over the network.
        """
        if process.hosts and not any(set(ranks) <= set(own) for own in process.hosts):
            self._send(process, ranks[0])
        else:
            self._leave(path, process, ranks)
        if process.rank != ranks[0]:
            return
        arrays = _joined([self._rows[m] for m in range(count)])
        file = io.BytesIO()
        np.savez(file, **arrays, **addresses())  # type: ignore[arg-type]
        write_atomic(path, file.getvalue(), make_folder=False)

    def _send(self, process: Process, first: int) -> None:
        own = {key: torch.from_numpy(values) for key, values in self._named().items()}
        transfer = StateTransfer.of(process, {} if process.rank == first else {first: own})
        transfer.make_room()
        self._take({key: tensor.numpy() for key, tensor in transfer.run().items()})

    def _leave(self, path: Path, process: Process, ranks: Sequence[int]) -> None:
        if self._rows and process.rank != ranks[0]:
            parts: dict[str, Any] = self._named()
            np.savez(_part(path, process.rank), **parts)
        process.barrier("end of the predictions")
        for part in (_part(path, rank) for rank in ranks[1:] if process.rank == ranks[0]):
            if part.exists():
                with np.load(part, allow_pickle=False) as found:
                    self._take({key: found[key] for key in found.files})
                part.unlink()

    def _named(self) -> dict[str, np.ndarray]:
        return {f"{m}/{name}": values for m, own in self._rows.items() for name, values in own.items()}

    def _take(self, named: Mapping[str, np.ndarray]) -> None:
        for key, values in named.items():
            minibatch, name = key.split("/", 1)
            self._rows.setdefault(int(minibatch), {})[name] = values


def _as_numpy_has_it(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return tensor.float() if tensor.dtype in _HALVES else tensor  # of which NumPy has one


def _part(path: Path, rank: int) -> Path:
    return path.with_name(f".{path.stem}-rank{rank}.npz")


def _joined(minibatches: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The rows of all minibatches below each other; if they are of unlike lengths they end in −1, or in NaN."""
    joined = {}
    for name in minibatches[0]:
        parts = [own[name] for own in minibatches]
        longest = np.max([part.shape[1:] for part in parts], axis=0).astype(int)
        joined[name] = np.concatenate([_padded(part, longest) for part in parts])
    return joined


def _padded(part: np.ndarray, shape: np.ndarray) -> np.ndarray:
    room = [(0, 0), *((0, int(most) - own) for most, own in zip(shape, part.shape[1:], strict=True))]
    return np.pad(part, room, constant_values=np.nan if part.dtype.kind == "f" else _NO_PLACE)


class Clock:
    """Start of each minibatch in the first stage and end in the last: float64 [minibatches, 2]."""

    def __init__(self, count: int) -> None:
        self.table = torch.zeros(count, 2, dtype=torch.float64)

    def report(self, samples: int) -> dict[str, Any]:
        """Return samples per second from the first beginning to the last end, and minibatches' latencies in seconds,
        from the beginning in the first stage to the end in the last.
        """
        began, done = self.table.unbind(dim=1)
        latency = (done - began).numpy()
        median, late = np.percentile(latency, [50, 95])
        return {
            "samples_per_second": samples / max(float(done.max() - began.min()), 1e-9),
            "latency_seconds": {"mean": float(latency.mean()), "median": float(median), "p95": float(late)},
        }
