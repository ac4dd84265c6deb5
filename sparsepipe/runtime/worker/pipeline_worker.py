"""The worker of one of several pipelines: what it trains on, and when it closes an epoch, the coordinator says.

begin ──► TRAIN … TRAIN ──► CLOSE_EPOCH ──► TRAIN … ──► FINISH ──► CLOSE_RUN ──► END
          each from an      checkpoint and               average     last checkpoint
          empty pipeline    validation, by one           with all    and validation, by one
          to an empty one   pipeline for all

RUN/                     plan.json (all pipelines and their rule), metrics.jsonl, checkpoints/
RUN/pipelines/K/         the run of pipeline K, as a run of one pipeline has it
RUN/logs/resume.json     the checkpoint that the run continues from, if it does
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...util.io.files import read_json
from ...values.plan import Plan
from ...values.replication.base import Rule
from ..commands import REPLAN
from ..config import FittingSizes, RunConfig
from ..pipelines.base import Averager, Coordinator, Kind, Settled, Task
from ..pipelines.client import connect
from ..pipelines.journal import RESUME
from ..plan_fit import check_next_of_several
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
from .epoch_end import BestEpoch
from .epoch_parts import EpochPart, Units
from .feed import SharedFeed
from .replanning import Moment, Pause
from .run_checkpoints import measured, run_summary
from .straggler import Straggler
from .worker import Worker

_LOOK_SECONDS = 0.1  # between two looks for another pipeline
_TOLD_OF_EPOCHS = (
    "train",
    "best",
    "samples_per_second",
)  # where none of the minibatches are known that were done of one


class NoWeightsLeft(RuntimeError):
    """Every pipeline ended at about the same time: none has the weights that a restarted one would continue from."""


@dataclass(frozen=True)
class Member:
    """A process's pipeline among the others: where the whole run is, and who coordinates it."""

    run_of_all: Path
    identity: Identity
    rule: Rule
    coordinator: Coordinator

    @property
    def first_stage(self) -> int:
        """The first stage of this pipeline among those of all, as the others are cut now."""
        return Plan.load(self.run_of_all / "plan.json").first_stage(self.identity.pipeline or 0)

    @classmethod
    def of(cls, identity: Identity, run_dir: Path, *, timeout: float, encryption: Encryption | None = None) -> "Member":
        """Find the run that `run_dir` is a pipeline of, and its coordinator. Raises DeadlinePassed if none comes."""
        assert identity.pipeline is not None, "it is one of several"
        folder = run_dir.parent.parent
        plan = Plan.load(folder / "plan.json")
        place = {"pipeline": identity.pipeline, "rank": identity.rank, "attempt": identity.attempt}
        coordinator = connect(folder, **place, timeout=timeout, encryption=encryption)
        return cls(folder, identity, plan.rule, coordinator)

    def checkpoint(self) -> checkpoint.Checkpoint | None:
        """Return what the whole run continues from; None if it began again.

        None, too, if this pipeline was started again and newer checkpoints have taken that one's place: a live
        pipeline has weights to give then.
        """
        path = self.run_of_all / RESUME
        if not path.exists():
            return None
        folder = self.run_of_all / FOLDER / read_json(path)["checkpoint"]
        return None if self.identity.attempt and not folder.exists() else checkpoint.load(folder)


@dataclass(frozen=True)
class Taken:
    """Work units assigned to a pipeline, each as long as its plan at that time defines."""

    units: int = 0  # under plans before
    minibatches: int = 0  # of those
    newest: int = -1  # the highest number of those of its last task, where that is asked for
    trained: bool = False  # whether that task had any

    def before(self, unit: int, whole: int) -> int:
        """Return how many minibatches were taken before a unit, of `whole` each under the present plan."""
        return self.minibatches + (unit - self.units) * whole

    def after(self, units: Units, trained: int, newest: int) -> "Taken":
        """Return what is taken after a task that trained so many."""
        count = -(-trained // units.whole)
        minibatches = units.before + count * units.whole
        return Taken(units.first + count, minibatches, max(self.newest, newest), trained > 0)


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
        before: "PipelineWorker | None" = None,
    ) -> None:
        """`before`: the worker under this pipeline's plan before, whose place it will take."""
        super().__init__(
            run_dir,
            plan,
            config,
            connections=connections,
            workload=workload,
            recorder=recorder,
            straggler=straggler,
            checkpoints_in=member.run_of_all,
            before=before,
        )
        self.member, self.coordinator = member, member.coordinator
        self.whole = Horizon.of(connections.program).whole
        self.trained = 0  # minibatches, by this attempt of this pipeline
        self.progress: Mapping[str, Any] | None = None  # of all pipelines, for a checkpoint's manifest
        self.of_epoch: dict[int, dict[str, Any]] = {}  # the longest part that was trained of each
        self._taken = Taken()
        self._steps: Mapping[Kind, Callable[[Task], None]] = {
            Kind.TRAIN: self._train_task,
            Kind.CLOSE_EPOCH: self._close_epoch,
            Kind.FINISH: self._finish,
            Kind.CLOSE_RUN: self._close_run,
        }

    def run(self, resume_from: checkpoint.Checkpoint | None) -> Connections:
        """Do one task after the other, from the weights of a live pipeline where this one was started again.

        Returns the connections, which are open, of the plan that this pipeline has at its end.
        """
        coordinator, worker = self.coordinator, self
        self._tell_length()
        if resume_from:
            self._resume(resume_from)
        joins = self.member.identity.attempt > 0 and self._joins(resume_from)
        found = {k: self._fetched(k) if joins else None for k in self.replicas}
        for k, averager in self._open_averages().items():
            if resume_from and not found[k]:
                averager.load_state(resume_from.read(self.replicas[k].own.layers))
            elif state := found[k]:
                averager.load_state(state)
        try:
            self._start()
            number = 0
            while (task := coordinator.next_task(number)).kind is not Kind.END:
                worker._steps[task.kind](task)
                self.process.barrier("end of a task")  # to ask for the next one says that all are through with it
                number += 1
                if task.kind is Kind.TRAIN and worker.control.due == REPLAN:
                    worker = worker._move()
            worker._sum_up()
            self.control.close()  # not of a job that fails: where it starts again it is asked again
        finally:
            for replica in worker.replicas.values():
                if replica.averager:
                    replica.averager.close()
        return worker.connections

    def _sum_up(self) -> None:
        if self.epochs.rows:
            self._summarise(self.trained)

    def _tell_length(self) -> None:
        """Tell the coordinator what is to be trained, and how this pipeline is cut."""
        self.coordinator.begin(
            whole=self.whole,
            epoch_minibatches=self.workload.epoch_minibatches,
            total_minibatches=self.workload.total_minibatches,
            num_holders=len(self.plan.stages),
            data=self.workload.data_digest if self.process.record else "",  # on one machine all read the same files
        )

    def _open_averages(self) -> dict[int, Averager]:
        """Open the averages of this rank's stages with other pipelines; return them by stage."""
        replicas = list(self.replicas.values())
        options: dict[str, Any] = {"timeout": self.config.timeout_seconds, "encryption": self.process.encryption}
        opened = open_averagers(self.coordinator, self.member.rule, replicas, **options)
        for replica, averager in zip(replicas, opened, strict=True):
            replica.averager = averager
        return dict(zip(self.replicas, opened, strict=True))

    # --- another plan ------------------------------------------------------------------------------------------------

    def check_next(self, plan: Plan, memory_bytes: Sequence[float] | None) -> None:
        """Raise InputError if this pipeline cannot switch to a plan beside the others; all its ranks stay."""
        check_next_of_several(plan, self.process.world_size, self.member.rule)
        super().check_next(plan, memory_bytes)

    def next_worker(self, plan: Plan, connections: Connections) -> "PipelineWorker":
        """Build the worker of the plan after this one, while this one trains."""
        parts: dict[str, Any] = {"workload": self.workload, "recorder": self.recorder}
        parts |= {"straggler": self.context.straggler, "member": self.member}
        return PipelineWorker(self.run_dir, plan, self.config, connections=connections, before=self, **parts)

    def compile_from(self, done: int) -> None:
        """Compile nothing yet: how many minibatches there are left for it, the next task says."""

    def take_over(self, before: Worker, moment: Moment, *, since: float) -> None:
        """Go on where the worker under the plan before has stopped, whose layers have come."""
        super().take_over(before, moment, since=since)
        assert isinstance(before, PipelineWorker)
        self.trained, self.progress, self.of_epoch = before.trained, before.progress, before.of_epoch
        self._taken = before._taken

    def _move(self) -> "PipelineWorker":
        """Switch to another plan of this pipeline, while the others train; return the worker that continues.

        Averages are settled, layers change hands, and whoever holds them now says so: all between two tasks.
        """
        with self._meeting(self._taken.newest // self.workload.epoch_minibatches):
            settled = self._settle()
        worker = self._replan(self._taken.newest + 1, within=self._taken.trained) or self
        assert isinstance(worker, PipelineWorker)
        worker._tell_length()
        averagers = worker._open_averages()
        for k, replica in worker.replicas.items():
            averagers[k].load_state(replica.kept)
            averagers[k].go_on(settled)
            replica.kept = {}
        return worker

    def _settle(self) -> Settled:
        """Have no average under way and no layer that others ask for, in any rank; return where the averages stand."""
        stands = []
        for replica in self.replicas.values():
            assert replica.averager is not None, "each has one from the beginning on"
            replica.kept = replica.averager.settle()
            stands.append(replica.averager.settled)
        rows = torch.zeros(self.process.world_size, 3, dtype=torch.float64)
        rows[self.rank] = torch.tensor([max(s.update for s in stands), min(s.version for s in stands), 0])
        rows[self.rank, 2] = stands[0].samples  # which all stages of a rank count together
        update, version, samples = self.process.sum(rows, what="moving layers").T
        if self.rank == 0:
            self.coordinator.move()  # before any rank comes to the next meeting, and so before one is told of again
        return Settled(int(update.max()), int(version.min()), int(samples.sum()))

    def _tell_replan(self, pause: Pause) -> None:
        """Write down what the change of the plan cost, in the record of all pipelines too."""
        self.coordinator.tell(REPLAN, pause.row(self.recorder.now()))
        super()._tell_replan(pause)

    # --- tasks -------------------------------------------------------------------------------------------------------

    def _joins(self, resumed_from: checkpoint.Checkpoint | None) -> bool:
        """Return whether weights are to be taken from a live pipeline: all ranks of this one agree.

        Raises NoWeightsLeft if there is none and what was trained since the run began, or resumed, is lost.
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
        """Return whether another pipeline is live. One that is about to start, or to come back, is waited for."""
        deadline = time.monotonic() + self.config.timeout_seconds / 2  # this pipeline's other ranks wait as well
        while not (live := bool(self.coordinator.live())) and time.monotonic() < deadline:
            if self.coordinator.progress()["done"] in (0, self.workload.total_minibatches):
                break  # nothing is lost, or nobody comes any more
            time.sleep(_LOOK_SECONDS)
        return live

    def _fetched(self, stage: int) -> Mapping[str, Any]:
        """Take a stage's layers from a live pipeline. Raises NoWeightsLeft if it has just ended."""
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
        units = Units(self.whole, task.update, self._taken.before(task.update, self.whole))
        row, trained = self._train(EpochPart(epoch, 0, task.most), feed, units=units)
        self.trained += trained
        newest = max(map(feed.number, range(trained)), default=-1) if self.control.due == REPLAN else -1
        self._taken = self._taken.after(units, trained, newest)
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
        """By how much stragglers delayed the rank of this pipeline that they delayed longest, in this attempt."""
        if not self.config.stragglers:
            return 0.0
        slept = torch.zeros(self.process.world_size, dtype=torch.float64)
        slept[self.rank] = self.context.straggler.slept if self.context.straggler else 0.0
        return float(self.process.sum(slept, what="stragglers of a task").max())

    def _close_epoch(self, task: Task) -> None:
        """Checkpoint an epoch where that is due, and validate, for all pipelines."""
        epoch, every = task.epoch, self.config.checkpoint_every
        done = self._take_progress()
        is_kept = bool(every and (epoch + 1) % every == 0)
        if is_kept:
            if self.config.validate:
                self.checkpoints.unproven = done
            self._checkpoint(done, last=False)
        self._judge(epoch, done, self._row_of(epoch), is_kept=is_kept)

    def _row_of(self, epoch: int) -> dict[str, Any]:
        """Return the row of an epoch as this pipeline trained it, or of its latest one."""
        return {"train": {}, **(self.of_epoch.get(epoch) or (self.epochs.rows[-1] if self.epochs.rows else {}))}

    def _tell_epoch(self, epoch: int, done: int, row: Mapping[str, object]) -> None:
        """Tell the coordinator of an epoch that is closed, for all pipelines."""
        if self.context.writes_metrics:
            told = {key: row[key] for key in _TOLD_OF_EPOCHS if key in row}
            told |= {"ends": True} if self.checkpoints.best.is_over else {}
            self.coordinator.closed(epoch, {"minibatches": done, **told, "validation": row["validation"]})

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
        row, best = self._row_of(epoch), self.checkpoints.best
        if best.is_over:  # the last epoch was compared when it ended the run
            row["validation"] = self._validate(epoch, done)
            self.checkpoints.prove()
            self._tell_epoch(epoch, done, row)
        else:
            self._judge(epoch, done, row, is_kept=bool(self.config.checkpoint_every))
        if self.context.writes_metrics:
            of_plan = self.epochs.of_plan(len(self.plan.stages))
            left_out, rows = FittingSizes.of(self.config).names, self.epochs.rows
            own = run_summary(self.context, self.run_dir, done, epochs=rows, of_plan=of_plan, left_out=left_out)
            own.pop("replans", None)  # the coordinator knows those of all
            own |= {"run_dir": self._record_of_all(), "validation": row["validation"] or {}}
            own |= {"best": best.best.row(), "stopped_early": best.is_over} if best.best else {}
            self.coordinator.tell("summary", {**own, "stages": self._among_all(own["stages"])})

    def _record_of_all(self) -> str:
        """Return the path of the whole run's folder, if it differs from this pipeline's."""
        record = self.process.record
        return str(Path(record).parent.parent if record else self.member.run_of_all)

    def _take_progress(self) -> int:
        """Ask what is done and left of the run, for a checkpoint. Returns the minibatches done, in all ranks."""
        done = torch.zeros(1, dtype=torch.float64)
        if self.rank == 0:
            self.progress = self.coordinator.progress()
            done[0] = self.progress["done"]
        best = self.checkpoints.best = BestEpoch(self.config)
        if self.progress:
            best.resume(self.progress["scored"])
        best.share(self.process, source=0)
        return int(self.process.sum(done, what="closing an epoch"))

    def _measured(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return this pipeline's measurements of a task and of the run so far, for the record of all pipelines."""
        run = measured(self.context, self.epochs.rows, of_plan=self.epochs.of_plan(len(self.plan.stages)))
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
