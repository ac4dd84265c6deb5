"""The worker: one rank that obeys its list of actions, epoch after epoch."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ..files import read_rows
from ..plan import Plan
from ..schedule import Action, Op, actions, forward_actions, in_flight
from . import checkpoint, metrics
from .channel import Outbox
from .config import RunConfig
from .learning_rate import LearningRate
from .loss_scale import LossScale
from .memory import PeakMemory
from .objective import Tally
from .optimizer import optimizer
from .packet import Packet
from .process import Process
from .recorder import Recorder
from .replay import ReplayWorkload
from .replicas import average_statistics
from .segment import Inputs, Segment
from .snapshot import Snapshots
from .weights import Weights
from .workload import Workload


class Worker:
    """One rank's stage, weights and place in the plan."""

    def __init__(
        self,
        run_dir: Path,
        plan: Plan,
        config: RunConfig,
        *,
        process: Process,
        workload: Workload | ReplayWorkload,
        recorder: Recorder,
    ) -> None:
        self.run_dir, self.plan, self.config, self.process = run_dir, plan, config, process
        self.workload, self.recorder = workload, recorder
        self.stage, self.rank = process.stage, process.rank
        self.own = plan.stages[self.stage]
        self.memory = PeakMemory(process.device)
        self.runner = workload.runner(plan, process)
        chosen = optimizer(config.optimizer, momentum=config.momentum, weight_decay=config.weight_decay)
        self.weights = Weights(dict(self.runner.module.named_parameters()), chosen)
        self.learning_rate = LearningRate(
            config.learning_rate,
            config.learning_rate_schedule,
            config.warmup_minibatches,
            config.learning_rate_decay,
            config.decay_epochs,
        )
        self.scales_loss = config.precision == "float16"
        self.loss_scale = LossScale(config.loss_scale if self.scales_loss else 1.0)
        self.snapshots = Snapshots(run_dir, timeout=config.timeout_seconds)
        self.outbox = Outbox(limit=in_flight(plan, self.stage, self.rank) + 2)
        self.last_rank = plan.stages[-1].ranks[0]  # tells the run's metrics
        self.epochs: list[dict[str, Any]] = []

    # --- the run -----------------------------------------------------------------------------------------------------

    def run(self, resume_from: checkpoint.Checkpoint | None = None) -> None:
        """Train what is left to train, with validation and checkpoints between epochs, and sum up."""
        done = self._resume(resume_from) if resume_from else 0
        if self.rank == self.last_rank:
            sizes = {
                "epoch_minibatches": self.workload.epoch_minibatches,
                "minibatches": self.workload.total_minibatches,
            }
            self.recorder.metric("start", **sizes)
        for epoch, first, count in self.workload.segments(done):
            self.recorder.restart()
            row = self._train(epoch, first, count)
            done += count
            average_statistics(self.runner.module, self.own.share(self.rank) / self.own.round, self.process)
            row["validation"] = self._validate(epoch) if self.config.validate else None
            self.epochs.append(row)
            if self.rank == self.last_rank:
                told = {key: row[key] for key in ("train", "validation", "samples_per_second", "stages")}
                self.recorder.metric("epoch", epoch=epoch, minibatches=done, **told)
            last = done >= self.workload.total_minibatches
            every = self.config.checkpoint_every
            if every and (last or (epoch + 1) % every == 0):
                self._checkpoint(done, last=last)
            self.recorder.flush()
        self._summarise(done)

    def _train(self, epoch: int, first: int, count: int) -> dict[str, Any]:
        """Obey the action lists for `count` minibatches of an epoch, from an empty pipeline to an empty one."""
        self.runner.module.train()
        segment = Segment(self, epoch, first, count)
        self.process.barrier(f"start of epoch {epoch}")
        started = self.recorder.now()
        steps = {
            Op.FORWARD: segment.forward,
            Op.BACKWARD: segment.backward,
            Op.WEIGHTS: segment.weights,
            Op.UPDATE: segment.update,
        }
        for action in actions(self.plan, count)[self.rank]:
            steps[action.op](action)
        self.outbox.finish(timeout=self.config.timeout_seconds)
        return self._epoch_row(segment, started)

    def _epoch_row(self, segment: Segment, started: float) -> dict[str, Any]:
        """Bring together what the ranks know of an epoch."""
        table = self.process.sum(segment.table, what="end of an epoch")
        times, samples, losses, counted, correct = table.unbind(dim=1)
        window = metrics.steady_window(times.tolist(), self.plan)
        start, end = (float(times[k]) for k in window) if window else (started, float(times.max()))
        kinds = metrics.busy_seconds(self.recorder.restart(), start, end)
        seconds = torch.zeros(len(self.plan.stages), len(kinds), dtype=torch.float64)
        seconds[self.stage] = torch.tensor(list(kinds.values()), dtype=torch.float64)
        self.process.sum(seconds, what="end of an epoch")
        stages = [
            metrics.stage_summary(k, stage.ranks, dict(zip(kinds, seconds[k].tolist(), strict=True)), end - start)
            for k, stage in enumerate(self.plan.stages)
        ]
        peaks = torch.zeros(len(self.plan.ranks), dtype=torch.float64)
        peaks[self.rank] = self.memory.bytes()
        peaks = self.process.sum(peaks, what="end of an epoch")
        for entry in stages:
            entry["peak_bytes"] = max(int(peaks[rank]) for rank in entry["ranks"])
        total = max(float(counted.sum()), 1.0)
        return {
            "train": {"loss": float((losses * counted).sum()) / total, "accuracy": float(correct.sum()) / total},
            "samples_per_second": metrics.pace(times.tolist(), samples.tolist(), window, started),
            "stages": stages,
        }

    def _validate(self, epoch: int) -> dict[str, float]:
        """Run the validation split through the stages, forward only, the newest weights, running statistics."""
        dataset, batches = self.workload.validation, self.workload.validation_order()
        self.runner.module.eval()
        todo = forward_actions(self.plan, len(batches))[self.rank]
        inputs = Inputs(self, dataset, dict(enumerate(batches)), todo=todo)
        tally = Tally(self.workload.network.num_classes)
        for action in todo:
            arrived = inputs.take(action)
            start = self.recorder.begin("evaluate", action.minibatch)
            voxels, outputs = self.runner.evaluate(arrived, self.weights.newest, action.minibatch)
            if self.runner.is_last:
                labels, samples = inputs.take_labels(action.minibatch), len(batches[action.minibatch])
                with torch.no_grad():
                    _, outcome = self.runner.loss(outputs, labels, samples=samples, detailed=True)
                tally.add(outcome)
            self.recorder.span("evaluate", str(action), start, self.recorder.now(), minibatch=action.minibatch)
            if not self.runner.is_last:
                packet, _ = self.runner.leave(outputs, action.minibatch, voxels)
                self.send(packet, self.plan.stages[self.stage + 1].replica(action.minibatch), action)
        self.outbox.finish(timeout=self.config.timeout_seconds)
        self.process.sum(tally.values, what=f"validation of epoch {epoch}")
        return tally.report(per_voxel=self.workload.per_voxel)

    def send(self, packet: Packet, peer: int, action: Action) -> None:
        start = self.recorder.now()
        self.outbox.send(packet, peer, timeout=self.config.timeout_seconds, action=str(action))
        self.recorder.span("send", str(action), start, self.recorder.now(), minibatch=packet.minibatch, peer=peer)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _checkpoint(self, done: int, *, last: bool) -> None:
        start = self.recorder.begin("checkpoint")
        self.recorder.flush()  # what a run that resumes here will not do again must be on disk before
        self.snapshots.wait()
        if self.rank == 0:
            checkpoint.begin(self.run_dir, done)
        self.process.barrier("start of a checkpoint")
        names = {f"stage{k}" for k in range(len(self.plan.stages))}
        shard = (f"stage{self.stage}", self._tensors()) if self.rank == self.own.ranks[0] else None
        finish = partial(checkpoint.finish, self.run_dir, done, **self._facts())
        self.snapshots.write(done, shard=shard, finish=(names, finish) if self.rank == 0 else None)
        if last or not self.config.asynchronous_checkpoints:
            self.snapshots.wait()
            self.process.barrier("end of a checkpoint")
        self.recorder.span("checkpoint", f"{self.stage}C{done}", start, self.recorder.now())

    def _tensors(self) -> dict[str, Tensor]:
        """What this stage keeps."""
        state = self.weights.optimizer.state(self.weights.names)
        buffers = dict(self.runner.module.named_buffers())
        return checkpoint.as_tensor_map(self.weights.newest.tensors, state, buffers)

    def _facts(self) -> dict[str, Any]:
        """What the manifest says of the run."""
        config = self.config
        return {
            "keep": config.keep_checkpoints,
            "layers": {id: f"stage{k}.safetensors" for k, s in enumerate(self.plan.stages) for id in s.layers},
            "model": self.workload.network.name,
            "num_classes": self.workload.network.num_classes,
            "batch_size": config.batch_size,
            "seed": config.seed,
            "optimizer": config.optimizer,
            "loss_scale": asdict(self.loss_scale) if self.scales_loss else None,
        }

    def _resume(self, found: checkpoint.Checkpoint) -> int:
        """Load this stage's layers, whoever held them before, and return the minibatches done."""
        found.check(model=self.workload.network.name, layers=self.own.layers)
        tensors = found.read(self.own.layers)
        if self.scales_loss and found.manifest.get("loss_scale"):
            self.loss_scale = LossScale(**found.manifest["loss_scale"])
        self.weights.load(checkpoint.without_prefix(tensors, "weight:"))
        state = {key: tensor for key, tensor in tensors.items() if not key.startswith(("weight:", "buffer:"))}
        self.weights.optimizer.load(self.weights.names, state)
        buffers = checkpoint.without_prefix(tensors, "buffer:")
        for name, buffer in self.runner.module.named_buffers():
            buffer.copy_(buffers[name])
        return found.minibatches

    # --- the end -----------------------------------------------------------------------------------------------------

    def _summarise(self, done: int) -> None:
        """Write the run's summary: medians over epochs, without the first (it reads the data) if there are others."""
        if self.rank != self.last_rank:
            return
        if not self.epochs:  # it was killed between its last checkpoint and its end
            self.epochs = [row for row in read_rows(self.run_dir / "metrics.jsonl") if row["event"] == "epoch"]
        steady = self.epochs[1:] or self.epochs
        self.recorder.metric(
            "summary",
            run_dir=str(self.run_dir),
            model=self.workload.network.name,
            engine=self.workload.engine.name,
            schedule=self.plan.schedule,
            planner=self.plan.planner,
            synthetic=self.workload.training.synthetic,
            minibatches=done,
            epochs=len(self.epochs),
            samples_per_second=median(row["samples_per_second"] for row in steady),
            train=self.epochs[-1]["train"],
            validation=self.epochs[-1]["validation"] or {},
            stages=metrics.with_memory(metrics.median_summaries([row["stages"] for row in steady]), self.plan),
        )
