"""The worker of one of several pipelines: what it trains on, and when it closes an epoch, the coordinator says.

begin ──► TRAIN … TRAIN ──► CLOSE_EPOCH ──► TRAIN … ──► FINISH ──► CLOSE_RUN ──► END
          each from an      checkpoint and               average     last checkpoint
          empty pipeline    validation, by one           with all    and validation, by one
          to an empty one   pipeline for all

RUN/                     plan.json (all pipelines and their rule), metrics.jsonl, checkpoints/
RUN/pipelines/K/         the run of pipeline K, as a run of one pipeline has it
RUN/logs/resume.json     the checkpoint that the run goes on from, where it does
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...io.files import read_json
from ...plan import Plan
from ...replication.base import Rule
from ..config import RunConfig
from ..pipelines.base import Coordinator, Kind, Task
from ..pipelines.client import connect
from ..pipelines.resuming import RESUME
from ..processes.identity import Identity
from ..replication.between_pipelines.opening import open_averagers
from ..replication.between_pipelines.state import fetch_state
from ..reporting.recorder import Recorder
from ..training_state import checkpoint
from ..training_state.checkpoint_folders import FOLDER
from ..wire.encryption import Encryption
from ..workloads.base import Workload
from .connections import Connections
from .control import Horizon
from .epoch_parts import EpochPart, Units
from .feed import SharedFeed
from .run_summary import measured, run_summary
from .straggler import Straggler
from .worker import Worker

_LOOK_SECONDS = 0.1  # between two looks for another pipeline
_TOLD_OF_EPOCHS = ("train", "samples_per_second")  # where none of the minibatches are known that were done of one


class NoWeightsLeft(RuntimeError):
    """Every pipeline ended at about the same time: none has the weights that a restarted one would go on from."""


@dataclass(frozen=True)
class Member:
    """A process's pipeline among the others: where the whole run is, and who coordinates it."""

    run_of_all: Path
    identity: Identity
    rule: Rule
    coordinator: Coordinator
    first_stage: int  # of this pipeline, among those of all

    @classmethod
    def of(cls, identity: Identity, run_dir: Path, *, timeout: float, encryption: Encryption | None = None) -> "Member":
        """Find the run that `run_dir` is a pipeline of, and its coordinator. Raises DeadlinePassed where none comes."""
        assert identity.pipeline is not None, "it is one of several"
        folder = run_dir.parent.parent
        plan = Plan.load(folder / "plan.json")
        place = {"pipeline": identity.pipeline, "rank": identity.rank, "attempt": identity.attempt}
        coordinator = connect(folder, **place, timeout=timeout, encryption=encryption)
        return cls(folder, identity, plan.rule, coordinator, plan.first_stage(identity.pipeline))

    def checkpoint(self) -> checkpoint.Checkpoint | None:
        """Return what the whole run goes on from; None where it began anew.

        None, too, where this pipeline was started again and newer checkpoints have taken that one's place: a live
        pipeline has weights to give then.
        """
        path = self.run_of_all / RESUME
        if not path.exists():
            return None
        folder = self.run_of_all / FOLDER / read_json(path)["checkpoint"]
        return None if self.identity.attempt and not folder.exists() else checkpoint.load(folder)


class PipelineWorker(Worker):
    """One rank of one of several pipelines."""

    def __init__(
        self,
        run_dir: Path,
        plan: Plan,
        config: RunConfig,
        *,
        connections: Connections,
        workload: Workload,
        recorder: Recorder,
        straggler: Straggler | None,
        member: Member,
    ) -> None:
        super().__init__(
            run_dir,
            plan,
            config,
            connections=connections,
            workload=workload,
            recorder=recorder,
            straggler=straggler,
            checkpoints_in=member.run_of_all,
        )
        self.member, self.coordinator = member, member.coordinator
        self.whole = Horizon.of(connections.program).whole
        self.trained = 0  # minibatches, by this attempt of this pipeline
        self.progress: Mapping[str, Any] | None = None  # of all pipelines, for a checkpoint's manifest
        self.of_epoch: dict[int, dict[str, Any]] = {}  # the longest part that was trained of each
        self._steps: Mapping[Kind, Callable[[Task], None]] = {
            Kind.TRAIN: self._train_task,
            Kind.CLOSE_EPOCH: self._close_epoch,
            Kind.FINISH: self._finish,
            Kind.CLOSE_RUN: self._close_run,
        }

    def run(self, resume_from: checkpoint.Checkpoint | None) -> Connections:
        """Do one task after the other, from the weights of a live pipeline where this one was started again.

        Returns the connections, which are open.
        """
        coordinator, workload = self.coordinator, self.workload
        coordinator.begin(
            whole=self.whole,
            epoch_minibatches=workload.epoch_minibatches,
            total_minibatches=workload.total_minibatches,
            num_holders=len(self.plan.stages),
            data=workload.data_digest if self.process.record else "",  # on one machine all read the same files
        )
        if resume_from:
            self._resume(resume_from)
        joins = self.member.identity.attempt > 0 and self._joins(resume_from)
        found = {k: self._fetched(k) if joins else None for k in self.replicas}
        replicas = list(self.replicas.values())
        options: dict[str, Any] = {"timeout": self.config.timeout_seconds, "encryption": self.process.encryption}
        opened = open_averagers(coordinator, self.member.rule, replicas, **options)
        for (k, replica), averager in zip(self.replicas.items(), opened, strict=True):
            replica.averager = averager
            if resume_from and not found[k]:
                averager.load_state(resume_from.read(replica.own.layers))
            elif state := found[k]:
                averager.load_state(state)
        try:
            self._start()
            number = 0
            while (task := coordinator.next_task(number)).kind is not Kind.END:
                self._steps[task.kind](task)
                self.process.barrier("end of a task")  # to ask for the next one says that all are through with it
                number += 1
            if self.epochs.rows:
                self._summarise(self.trained)
        finally:
            self.control.close()
            for replica in self.replicas.values():
                if replica.averager:
                    replica.averager.close()
        return self.connections

    def _joins(self, resumed_from: checkpoint.Checkpoint | None) -> bool:
        """Whether weights are to be taken from a live pipeline: all ranks of this one agree.

        Raises NoWeightsLeft where there is none and what was trained since the run began, or resumed, is lost.
        """
        found = torch.zeros(3, dtype=torch.float64)
        if self.rank == 0:
            found[0] = self._sees_another()
            progress = self.coordinator.progress()
            found[1] = progress["done"] > (resumed_from.minibatches if resumed_from else 0)
            found[2] = progress["closed"]
        self.process.sum(found, what="joining the other pipelines")
        live, trained, closed = map(bool, found)
        if trained and not live and not closed:
            raise NoWeightsLeft("no pipeline is left that has the newest weights; resume the run from its checkpoint")
        return live and not closed

    def _sees_another(self) -> bool:
        """Whether another pipeline is live. One that is about to start, or to come back, is waited for."""
        deadline = time.monotonic() + self.config.timeout_seconds / 2  # this pipeline's other ranks wait as well
        while not (live := bool(self.coordinator.live())) and time.monotonic() < deadline:
            if self.coordinator.progress()["done"] in (0, self.workload.total_minibatches):
                break  # nothing is lost, or nobody comes any more
            time.sleep(_LOOK_SECONDS)
        return live

    def _fetched(self, stage: int) -> Mapping[str, Any]:
        """Take a stage's layers from a live pipeline. Raises NoWeightsLeft where it has just ended."""
        replica = self.replicas[stage]
        options: dict[str, Any] = {"timeout": self.config.timeout_seconds, "encryption": self.process.encryption}
        found = fetch_state(self.coordinator, replica.own.layers, **options)
        if found is None:
            raise NoWeightsLeft("the last live pipeline ended before it gave its weights; resume the run")
        replica.load_tensors(found)
        return found

    def _start(self) -> None:
        if self.context.writes_metrics:
            facts = self._tell_start()
            if self.member.identity.attempt == 0:
                self.coordinator.tell("start", {key: facts[key] for key in ("epoch_minibatches", "minibatches")})

    def _train_task(self, task: Task) -> None:
        """Train on minibatches of an epoch as long as there are any."""
        epoch, first = task.epoch, task.epoch * self.workload.epoch_minibatches
        self.programs.check(task.most, synchronised=self.config.synchronised_batch_norm)
        feed = SharedFeed(self.coordinator, self.workload.order(epoch), task=task.number, first_number=first)
        self.context.exchange.sent_bytes = 0
        self.recorder.restart()
        row, trained = self._train(EpochPart(epoch, 0, task.most), feed, units=Units(self.whole, task.update))
        self.trained += trained
        with self._meeting(epoch):
            for replica in self.replicas.values():
                replica.average_statistics()
            self._check_finite(epoch, self.trained)
        if trained:
            row |= {"trained": trained, "validation": None}
            if trained >= self.of_epoch.get(epoch, row)["trained"]:
                self.of_epoch = {epoch: row}
            self.epochs.rows.append(row)
            self._tell("epoch", epoch, self.trained, row)
            held_up = self._held_up_seconds()
            if self.context.writes_metrics:
                self.coordinator.measured(task.number, self._measured(row) | {"straggler_seconds": held_up})
        self.recorder.flush()

    def _held_up_seconds(self) -> float:
        """By how much stragglers held up the rank of this pipeline that they held up longest, in this attempt."""
        if not self.config.stragglers:
            return 0.0
        slept = torch.zeros(self.process.world_size, dtype=torch.float64)
        slept[self.rank] = self.context.straggler.slept if self.context.straggler else 0.0
        return float(self.process.sum(slept, what="stragglers of a task").max())

    def _close_epoch(self, task: Task) -> None:
        """Checkpoint an epoch where that is due, and validate, for all pipelines."""
        epoch, every = task.epoch, self.config.checkpoint_every
        done = self._take_progress()
        if every and (epoch + 1) % every == 0:
            if self.config.validate:
                self.checkpoints.unproven = done
            self._checkpoint(done, last=False)
        validation = self._validate(epoch, done) if self.config.validate else None
        self.checkpoints.prove()
        self._tell_closed(epoch, done, validation)

    def _tell_closed(self, epoch: int, done: int, validation: Mapping[str, float | None] | None) -> None:
        if self.context.writes_metrics:
            row = self.of_epoch.get(epoch) or (self.epochs.rows[-1] if self.epochs.rows else {})
            told = {key: row[key] for key in _TOLD_OF_EPOCHS if key in row}
            self.coordinator.closed(epoch, {"minibatches": done, **told, "validation": validation})

    def _finish(self, task: Task) -> None:
        for replica in self.replicas.values():
            assert replica.averager is not None, "each has one from the beginning on"
            replica.averager.finish()

    def _close_run(self, task: Task) -> None:
        """Write the last checkpoint, validate, and sum up, for all pipelines."""
        done = self._take_progress()
        epoch = max(0, done - 1) // self.workload.epoch_minibatches
        self._check_finite(epoch, done)
        if self.config.checkpoint_every:
            self._checkpoint(done, last=True)
        validation = self._validate(epoch, done) if self.config.validate else None
        self.checkpoints.prove()
        self._tell_closed(epoch, done, validation)
        if self.context.writes_metrics:
            own = run_summary(self.context, self.run_dir, done, epochs=self.epochs.rows, of_plan=self.epochs.rows)
            row = {**own, "run_dir": self._record_of_all(), "validation": validation or {}}
            self.coordinator.tell("summary", {**row, "stages": self._among_all(own["stages"])})

    def _record_of_all(self) -> str:
        """What the folder of the whole run is called, where this pipeline's has another name, there."""
        record = self.process.record
        return str(Path(record).parent.parent if record else self.member.run_of_all)

    def _take_progress(self) -> int:
        """Ask what is done and left of the run, for a checkpoint. Returns the minibatches done, in all ranks."""
        done = torch.zeros(1, dtype=torch.float64)
        if self.rank == 0:
            self.progress = self.coordinator.progress()
            done[0] = self.progress["done"]
        return int(self.process.sum(done, what="closing an epoch"))

    def _measured(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """What this pipeline measured of a task, from its row, and of the run up to it, for the record of all."""
        run = measured(self.context, self.epochs.rows, of_plan=self.epochs.rows)
        told = {key: row[key] for key in ("trained", "sent_bytes", "load")}
        stages, run_stages = self._among_all(row["stages"]), self._among_all(run["stages"])
        return {**told, "stages": stages, "run": {**run, "stages": run_stages}}

    def _among_all(self, stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Stages with their numbers, and their ranks', among those of all pipelines, as in the plan's file."""
        first, ranks = self.member.first_stage, self.member.identity.ranks
        return [
            {**one, "stage": first + one["stage"], "ranks": [ranks[rank] for rank in one["ranks"]]} for one in stages
        ]

    def _facts(self) -> dict[str, Any]:
        left = self.progress["left"] if self.progress else {}
        named = {str(epoch): list(found) for epoch, found in left.items()}
        return {**super()._facts(), "left": named, "epoch_so_far": None}  # the coordinator has the sums of all
