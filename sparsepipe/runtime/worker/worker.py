"""The worker: one rank that does its list of actions, epoch after epoch."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch

from ...errors import InputError
from ...records.record_files import read_metrics
from ...util.host.background_load import Usage
from ...values.plan import Plan
from ...values.schedule import Op, compile_until_steady, round_length
from ..commands import REPLAN, STOP
from ..config import FittingSizes, RunConfig
from ..failures import LossNotFinite, PeerLost
from ..plan_fit import bytes_by_place, check_fits, check_memory, held_bytes, needed_bytes
from ..processes.process import Process
from ..reporting.memory import PeakMemory, shared_load
from ..reporting.recorder import Recorder
from ..training_state import checkpoint
from ..training_state.optimizer import LossScale
from ..workloads.base import Workload
from .connections import Connections, check_ranks
from .control import Control, Horizon, WorkerContext
from .epoch_end import EpochEnd, call_on_epoch, gather_weights
from .epoch_executor import EpochExecutor, EpochSoFar, TrainedEpochs, epoch_row, summed
from .epoch_parts import EpochPart, Programs, RunLength, Units
from .feed import Feed, GivenFeed
from .inference import add_up, scores, validate
from .packet_exchange import PacketExchange
from .replanning import Moment, Pause, last_end, usual_gap
from .run_checkpoints import RunCheckpoints, run_summary
from .stage_replica import StageReplica, WeightsNotFinite
from .straggler import Straggler
from .targets import Probe, meet, rejoin
from .weight_update import WeightUpdate

TOLD_OF_EPOCHS = ("train", "validation", "best", "samples_per_second", "sent_bytes", "stages", "load")

# Actions of a later epoch, to ask how much is held, which takes up to 0.5 ms: a minibatch has three. No number of which
# cycles of forward, backward and update are whole, so that each comes to its turn.
_LOOK_EVERY = 7


class Worker:
    """One rank's stages, their weights and its place in the plan."""

    def __init__(
        self,
        run_dir: Path,
        plan: Plan,
        config: RunConfig,
        *,
        connections: Connections,
        workload: Workload,
        recorder: Recorder,
        straggler: Straggler | None = None,
        checkpoints_in: Path | None = None,
        before: "Worker | None" = None,
    ) -> None:
        """`checkpoints_in`: the folder of the run whose checkpoints these are, if it is another. `before`: the
        worker under the plan before, whose place it will take: see `take_over`.
        """
        process = connections.process
        self.run_dir, self.config, self.connections = run_dir, config, connections
        # Of what is made from here on, by the first worker of this process.
        memory = before.context.memory if before else PeakMemory(process.device, connections.shared_memory)
        stages, timeout = plan.stages_of(process.rank), config.timeout_seconds
        self.replicas = {
            k: StageReplica.open(plan, config, position=connections.at(k), workload=workload) for k in stages
        }
        exchange = PacketExchange(connections, recorder, timeout=timeout)
        self.context: WorkerContext = WorkerContext(
            plan, process, workload, exchange, recorder, memory, timeout, straggler
        )
        self.weight_update = WeightUpdate(self.context, config, connections=connections, num_stages=len(stages))
        own = before.checkpoints if before else None
        self.checkpoints: RunCheckpoints = RunCheckpoints(checkpoints_in or run_dir, process, config, before=own)
        self.programs = Programs(plan, RunLength(workload.epoch_minibatches, workload.total_minibatches))
        horizon = Horizon.of(connections.program)
        self.control: Control = before.control if before else Control(run_dir, process, horizon)
        self.epochs = TrainedEpochs()
        self.pause: Pause | None = None  # before this plan, until its first update
        self.probe = Probe(self.context) if self.context.is_left_out else None

    @property
    def plan(self) -> Plan:
        """The plan that it trains under."""
        return self.context.plan

    @property
    def process(self) -> Process:
        """This rank among the others."""
        return self.context.process

    @property
    def rank(self) -> int:
        """Its number."""
        return self.context.rank

    @property
    def workload(self) -> Workload:
        """Workload of this worker."""
        return self.context.workload

    @property
    def recorder(self) -> Recorder:
        """Recorder of spans and metrics."""
        return self.context.recorder

    # --- the run -----------------------------------------------------------------------------------------------------

    def run(self, resume_from: checkpoint.Checkpoint | None) -> Connections:
        """Train to the end, under the plans that come after this one too.

        Returns the connections of the last of them, which are open.
        """
        worker = self
        done, following = worker.train(worker.begin(resume_from))
        while following:
            worker = following
            done, following = worker.train(done)
        worker.end(done)
        return worker.connections

    def _tell_start(self) -> dict[str, Any]:
        """Write down what the run is, and return it."""
        facts = {
            "epoch_minibatches": self.workload.epoch_minibatches,
            "minibatches": self.workload.total_minibatches,
            "shares_memory_with": self.connections.memory_peers,  # the other ranks: over sockets or NCCL
        }
        self.recorder.metric("start", **facts)
        return facts

    def begin(self, resume_from: checkpoint.Checkpoint | None = None) -> int:
        """Begin the run; return how many minibatches were trained before.

        Raises InputError if a list of actions would deadlock: warm-ups of another's may do in long epochs alone.
        """
        done = self._resume(resume_from) if resume_from else 0
        self.compile_from(done)
        if self.context.writes_metrics:
            self._tell_start()
        if resume_from:
            if self.context.writes_metrics:
                self.epochs.earlier = [*read_metrics(self.run_dir / "metrics.jsonl", "epoch")]
                self.checkpoints.best.resume(self.epochs.earlier)
            self._share_losses()
            self.checkpoints.best.share(self.process, source=self.plan.stages[-1].ranks[0])
            self._validate_late(done)
        return done

    def _share_losses(self) -> None:
        """Let every rank know the losses of the validations before: a schedule may follow them."""
        rows = [row["validation"] for row in self.epochs.earlier if row.get("validation")]
        known = [float(row["loss"]) for row in rows if row.get("loss") is not None]
        count = int(self.process.sum(torch.tensor([len(known)], dtype=torch.float64), what="resume"))
        losses = torch.zeros(count, dtype=torch.float64)
        losses[: len(known)] = torch.tensor(known, dtype=torch.float64)
        self.weight_update.losses = self.process.sum(losses, what="resume").tolist()

    def _take_halo_bytes(self) -> int:
        """Return the bytes that this rank sent to other parts of scenes since the last call."""
        scenes = (replica.position.scenes for replica in self.replicas.values())
        return sum(parts.take_sent() for parts in scenes if parts)

    def train(self, done: int) -> tuple[int, "Worker | None"]:
        """Train what is left to train after `done` minibatches, with validation and checkpoints between epochs.

        Returns how many are done then, and who continues where the plan changes before the end.
        """
        while done < self.workload.total_minibatches and not self.checkpoints.best.is_over:
            part = next(self.programs.length.parts(done))
            self.context.exchange.sent_bytes = 0
            self._take_halo_bytes()  # of a validation
            self.recorder.restart()
            (row, trained), epoch = self._train(part, self._given(part)), part.epoch
            done += trained
            if row:
                whole = not done % self.workload.epoch_minibatches
                self.epochs.end_part(whole=whole, sent_bytes=float(row["sent_bytes"]))
            due = self.control.due if done < self.workload.total_minibatches else None
            with self._meeting(epoch):
                for replica in self.replicas.values():
                    replica.average_statistics()
                if row:
                    self._check_finite(epoch, done)
            if trained == part.count:
                self._end_epoch(epoch, done, row, stops=due == STOP)
            elif due == STOP:
                if row:
                    self.epochs.rows.append(
                        {**row, "validation": None}
                    )  # for the summary: whoever resumes ends the epoch
                self._checkpoint(done, last=True)
            self.recorder.flush()
            if due == STOP:
                break
            if due == REPLAN and (taken_over := self._replan(done, within=trained < part.count)):
                return done, taken_over
        return done, None

    def end(self, done: int) -> None:
        """Sum up, when all is trained or the run was asked to stop."""
        if done < self.workload.total_minibatches and self.rank == 0 and not self.checkpoints.best.is_over:
            self.control.carried_out(STOP, done)
        self.control.close()
        self._summarise(done)

    def _end_epoch(self, epoch: int, done: int, row: dict[str, Any], *, stops: bool) -> None:
        """Checkpoint an epoch, or what the run has of its last, where one is due or the run `stops`, and validate."""
        last = done >= self.workload.total_minibatches
        every = self.config.checkpoint_every
        is_kept = stops or bool(every and (last or (epoch + 1) % every == 0))
        if is_kept:
            if self.config.validate:
                self.checkpoints.unproven = done
                self._tell("trained", epoch, done, row)
            self._checkpoint(done, last=last or stops)
        self._judge(epoch, done, row, is_kept=is_kept)
        self.epochs.rows.append(row)

    def _judge(self, epoch: int, done: int, row: dict[str, Any], *, is_kept: bool) -> None:
        """Validate an epoch, tell of it, and do what depends on its scores. `is_kept`: it has a checkpoint."""
        best, is_best = self.checkpoints.best, False
        row["validation"] = None
        if self.config.validate:
            row["validation"] = self._validate(epoch, done)
            is_best = best.compare(epoch, done, row["validation"])
            row |= {"best": best.best.row()} if best.best else {}
        if not is_kept and ((is_best and self.config.best) or (best.is_over and self.config.checkpoint_every)):
            self._checkpoint(done, last=True)
        self.checkpoints.prove()
        self._tell_epoch(epoch, done, row)
        if self.config.on_epoch:
            weights = gather_weights(self.context, self.replicas.values())
            if self.context.writes_metrics:
                end = EpochEnd(epoch, done, row["train"], row["validation"], is_best, weights, self.run_dir)
                call_on_epoch(self.config.on_epoch, end, self.recorder)

    def _tell_epoch(self, epoch: int, done: int, row: Mapping[str, object]) -> None:
        """Tell of an epoch that is closed."""
        self._tell("epoch", epoch, done, row)

    def _tell(self, event: str, epoch: int, done: int, row: Mapping[str, Any]) -> None:
        """Write a row of an epoch: "trained" before its checkpoint, "epoch" once it is validated, too."""
        if self.context.writes_metrics:
            told = {key: row[key] for key in TOLD_OF_EPOCHS if key in row}
            self.recorder.metric(event, epoch=epoch, minibatches=done, **told)

    def _validate_late(self, done: int) -> None:
        """Validate the epoch that the checkpoint closed, where the run ended before that was done, and tell of it."""
        row: Mapping[str, Any] | None = None
        if self.context.writes_metrics:
            rows = [one for one in read_metrics(self.run_dir / "metrics.jsonl") if one.get("minibatches") == done]
            trained = [one for one in rows if one["event"] == "trained"]
            row = trained[-1] if trained and not any(one["event"] == "epoch" for one in rows) else None
        number = torch.zeros(1, dtype=torch.float64)
        number[0] = 0 if row is None else row["epoch"] + 1
        epoch = int(self.process.sum(number, what="resume")) - 1
        if epoch < 0:
            return
        self.checkpoints.unproven = done
        whole = {"train": {}} if row is None else dict(row)
        self._judge(epoch, done, whole, is_kept=True)
        if row is not None:
            self.epochs.earlier.append(whole)

    def _given(self, part: EpochPart) -> Feed:
        """The minibatches of a part, as the epoch's order has them."""
        first = part.epoch * self.workload.epoch_minibatches + part.first
        return GivenFeed(first, self.workload.order(part.epoch)[part.first : part.first + part.count])

    def _train(self, part: EpochPart, feed: Feed, *, units: Units | None = None) -> tuple[dict[str, Any], int]:
        """Do the action list for the minibatches of an epoch, from an empty pipeline to an empty one.

        Returns what all ranks know of them, nothing if there were none, and how many were trained: fewer, where a
        command is due before their end, or if other pipelines took the others (`units`: after which they average).
        """
        if not part.first:
            self.epochs.so_far = EpochSoFar()
        for replica in self.replicas.values():
            replica.runner.begin(training=True, epoch=part.epoch)
        program, epoch, control = self.programs.of(part.count), part.epoch, self.control
        control.begin(epoch * self.workload.epoch_minibatches + part.first, part.count, feed if units else None)
        executors = {
            k: EpochExecutor(self.context, replica, part, feed, program, weight_update=self.weight_update, units=units)
            for k, replica in self.replicas.items()
        }
        with self._meeting(epoch):
            self.process.barrier(f"start of epoch {epoch}")
        started, before = self.recorder.now(), Usage.now()
        every = _LOOK_EVERY if self.epochs.rows else 1  # the summary's pace is of epochs after the first
        for place, action in enumerate(program.actions.get(self.rank, ())):
            if not control.trains(action, program):
                continue
            self.recorder.stage = action.stage
            executors[action.stage].do(action)
            if place % every == 0:
                self.context.memory.look()
            if self.pause and action.op is Op.UPDATE:
                self._tell_replan(self.pause)
        after = Usage.now()
        control.close_part()
        with self._meeting(epoch):
            self.context.exchange.finish()
            rejoin(self.context, control, self.weight_update, look=self._look)
            tables = {k: executor.close()[: control.end] for k, executor in executors.items()}
            if not control.end:
                return {}, 0
            table = summed(tables, self.context, control.end)
            self.epochs.add_part(table, self.context.exchange.sent_bytes + self._take_halo_bytes())
            if control.end < part.count and control.due == REPLAN and units is None:
                return {}, control.end
            row = epoch_row(self.context, table, started, stages=tuple(tables), so_far=self.epochs.so_far)
            return row | {"load": shared_load(self.process, before, after)}, control.end

    def _look(self) -> None:
        """Look at what is proposed, and how slow this rank is, where the plan leaves it out."""
        self.control.wait()
        if self.probe:
            self.probe.look(self.control.first)

    @contextmanager
    def _meeting(self, epoch: int) -> Iterator[None]:
        """Record what is done between epochs until every rank is there as a wait for them."""
        start = self.recorder.now()
        yield
        self.recorder.span("wait", f"{self.recorder.stage}E{epoch}", start, self.recorder.now())

    def _validate(self, epoch: int, done: int) -> dict[str, float | None]:
        """Validate the newest weights. What fails costs no epoch: its checkpoint is whole when this raises."""
        try:
            tally = validate(self.context, self.replicas)
            with self._meeting(epoch):
                self.context.exchange.finish()
                meet(self.context, torch.zeros(1), look=self._look)
                add_up(tally, self.context, what=f"validation of epoch {epoch}")
        except InputError as error:
            self.checkpoints.snapshots.wait()
            kept = f"; epoch {epoch} is kept, resume the run then" if self.checkpoints.unproven is not None else ""
            raise error.within(after=kept) from None
        except Exception:
            self.checkpoints.snapshots.wait()
            raise
        found = tally.report()
        if self.context.writes_metrics and tally.measures:
            for name, table in tally.measures.tables().items():
                self.recorder.metric(name, epoch=epoch, minibatches=done, table=table)
        if (loss := found["loss"]) is not None and not math.isfinite(loss):
            what = f"the validation loss after epoch {epoch} is {loss}"
            self._stop(LossNotFinite, what, told_by=self.context.writes_metrics)
        if loss is not None:
            self.weight_update.losses.append(loss)
        return found | scores(self.context, partial(self.checkpoints.load_after, done))

    def _check_finite(self, epoch: int, done: int) -> None:
        """Stop on every rank where the last updates of an epoch destroyed weights of any: no loss has told of it.

        So they are not validated, and no checkpoint of them takes the place of a good one.
        """
        own = {k: name for k, replica in self.replicas.items() if (name := replica.not_finite())}
        found = torch.zeros(len(self.plan.stages))
        found[list(own)] = 1.0
        if self.process.sum(found, what=f"end of epoch {epoch}").any():
            stage = int(found.argmax())
            what = f"{own.get(stage)} in stage {stage} is not finite after minibatch {done - 1} (epoch {epoch})"
            self._stop(WeightsNotFinite, what, told_by=stage in own)

    def _stop(self, error: type[RuntimeError], what: str, *, told_by: bool) -> NoReturn:
        """Raise `error` in the rank that reports it, once all ranks know that training on is of no use."""
        self.checkpoints.discard_unproven()
        if not told_by:
            raise PeerLost("another rank tells why this run ends")
        raise error(f"{what}; lower the learning rate; the last checkpoint is kept")

    # --- another plan ------------------------------------------------------------------------------------------------

    def check_next(self, plan: Plan, memory_bytes: Sequence[float] | None) -> None:
        """Raise InputError if this job cannot switch to a plan.

        `memory_bytes`: what a rank at each of its places needs, where whoever asked knows it better than the plan.
        """
        check_ranks(plan, self.process.world_size)
        self.workload.check(plan)
        check_fits(plan, self.config, num_processes=self.process.world_size)
        by_place, held = memory_bytes or bytes_by_place(plan), held_bytes(self.run_dir)
        if self.process.hosts and by_place and held is not None:  # of a job on one machine whoever asks has looked
            check_memory(needed_bytes(plan, by_place, self.process.ranks_here), self.config, held=held)

    def connect_next(self, plan: Plan, opening: int) -> Connections:
        """Open the connections of the plan after this one, alongside those that are at work. All ranks come here."""
        return Connections.open(
            compile_until_steady(plan),
            self.process,
            opening=opening,
            synchronise=self.config.synchronised_batch_norm,
            share_memory=self.config.shared_memory,
        )

    def next_worker(self, plan: Plan, connections: Connections) -> "Worker":
        """Build the worker of the plan after this one, while this one trains."""
        parts: dict[str, Any] = {"workload": self.workload, "recorder": self.recorder}
        parts["straggler"] = self.context.straggler
        return Worker(self.run_dir, plan, self.config, connections=connections, before=self, **parts)

    def compile_from(self, done: int) -> None:
        """Compile what is left to train after so many minibatches. Raises InputError if it would deadlock."""
        for count in self.programs.length.counts(done):
            self.programs.check(count, synchronised=self.config.synchronised_batch_norm)
            _ = self.programs.of(count).weights  # asked for in every epoch

    def let_go(self) -> None:
        """Let its stages and connections go: another worker has taken its place, or will not be needed."""
        self.replicas.clear()
        self.connections.release()

    def _replan(self, done: int, *, within: bool) -> "Worker | None":
        """Switch to another plan, which every rank has prepared; None if one of them cannot, and this one stays.

        `within` an epoch, the pause is counted from the last minibatch; between two epochs, from here.
        """
        assert self.control.replanning is not None
        began = self.recorder.now()
        with self._meeting(done // self.workload.epoch_minibatches):
            found = self.control.replanning.carry_out(done)
        if found is None:
            self.control.go_on(Horizon.of(self.connections.program))
            return None
        taken_over, moment = found
        assert isinstance(taken_over, Worker)
        taken_over.take_over(self, moment, since=last_end(self.epochs.last_table) if within else began)
        return taken_over

    def take_over(self, before: "Worker", moment: Moment, *, since: float) -> None:
        """Go on where the worker under the plan before has stopped, whose layers have come."""
        self.epochs.take_over(before.epochs)
        self.checkpoints.unproven = before.checkpoints.unproven
        self.weight_update.loss_scale = before.weight_update.loss_scale
        self.weight_update.losses = before.weight_update.losses
        self.context.memory.restart(self.connections.shared_memory)
        self.control.go_on(Horizon.of(self.connections.program))
        if self.context.is_left_out:
            self.recorder.stage = None
        if self.context.writes_metrics:
            usual = usual_gap(before.epochs.last_table, round_length(before.plan, len(before.plan.stages) - 1))
            self.pause = Pause(moment, since, usual, ahead=time.monotonic() - self.recorder.now())

    def _tell_replan(self, pause: Pause) -> None:
        """Write down what the change of the plan cost, now that the first update under it is made."""
        row = pause.row(self.recorder.now())
        self.recorder.metric("replan", **row)
        if self.control.replanning:
            self.control.replanning.tell_cost(row)
        self.pause = None

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _checkpoint(self, done: int, *, last: bool) -> None:
        start = self.recorder.begin("checkpoint")
        self.recorder.flush()  # what a run that resumes here will not do again must be on disk before
        self.checkpoints.begin(done)
        shards = {f"stage{k}": replica.for_checkpoint() for k, replica in self.replicas.items() if replica.writes}
        self.checkpoints.write(done, shards, self._facts(), num_stages=len(self.plan.stages), last=last)
        self.recorder.span("checkpoint", f"{self.recorder.stage}C{done}", start, self.recorder.now())

    def _facts(self) -> dict[str, Any]:
        """Return the run's facts for the manifest."""
        config = self.config
        return {
            "keep": self.checkpoints.keep,
            "best": self.checkpoints.best.minibatches,
            "layers": {id: f"stage{k}.safetensors" for k, s in enumerate(self.plan.stages) for id in s.layers},
            "model": self.workload.model,
            "optimizer": config.optimizer,
            **self._order(),
            **({} if (names := self.workload.state_names) is None else names.to_json()),
            "epoch_minibatches": self.workload.epoch_minibatches,
            "loss_scale": asdict(self.weight_update.loss_scale) if self.weight_update.scales_loss else None,
            "epoch_so_far": asdict(self.epochs.unfinished) if self.epochs.unfinished else None,
        }

    def _order(self) -> dict[str, Any]:
        """Return the settings that determine a minibatch's samples and classes, besides the epoch."""
        return {"num_classes": self.workload.num_classes, "samples": self.workload.num_samples, **self.config.sampling}

    def _resume(self, found: checkpoint.Checkpoint) -> int:
        """Load the layers of this rank's stages and return the minibatches done."""
        for replica in self.replicas.values():
            found.check(model=self.workload.model, layers=replica.own.layers)
        found.check_minibatches(self._order(), epoch_minibatches=self.workload.epoch_minibatches)
        for replica in self.replicas.values():
            replica.load(found)
        if self.weight_update.scales_loss and found.manifest.get("loss_scale"):
            self.weight_update.loss_scale = LossScale(**found.manifest["loss_scale"])
        if sums := found.manifest.get("epoch_so_far"):  # checkpoints of before have none
            self.epochs.resume(EpochSoFar(**sums), leads=self.rank == 0)
        return found.minibatches

    # --- the end -----------------------------------------------------------------------------------------------------

    def _summarise(self, done: int) -> None:
        """Write the run's summary."""
        if self.context.writes_metrics:
            self.recorder.metric("summary", **self._summary(done))

    def _summary(self, done: int) -> dict[str, Any]:
        """Sum the run up: all of its epochs, those before it was resumed included.

        Its stages are measured in the epochs of this process's plan; if it saw none, in those of the same plan before.
        """
        of_plan = self.epochs.of_plan(len(self.plan.stages))
        if not of_plan:
            path = self.run_dir / "metrics.jsonl"
            raise InputError("run.no_epoch", f"{path}: has no finished epoch under this plan yet; try again later")
        epochs = [*self.epochs.earlier, *self.epochs.rows]
        elsewhere = self.control.replanning.told_costs() if self.control.replanning else []
        summary = run_summary(
            self.context,
            self.run_dir,
            done,
            epochs=epochs,
            of_plan=of_plan,
            replans=elsewhere,
            left_out=FittingSizes.of(self.config).names,
        )
        best = self.checkpoints.best
        return summary | ({"best": best.best.row(), "stopped_early": best.is_over} if best.best else {})
