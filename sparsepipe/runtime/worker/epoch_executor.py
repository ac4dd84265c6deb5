"""One epoch of one stage on one rank, from an empty pipeline to an empty one: each action of the list, done.

And what the ranks know together of it: its losses, its pace, how busy its stages were, and what they held.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import InputError
from ...networks.losses import Outcome
from ...networks.losses.base import mean_of
from ...util.host.limits import is_out_of_memory
from ...values.schedule import Action, Op, Program, round_length, together
from ...values.trace import SPAN_KINDS
from ..failures import SMALLER_LIMIT, DeadlinePassed, LossNotFinite, OutOfMemory, PeerLost
from ..reporting import metrics
from ..stages.base import InFlight, Output, Outputs, each_part
from ..transport.channel import PacketSource
from ..transport.packet import BACKWARD, Packet
from .control import WorkerContext
from .epoch_parts import Averaged, EpochPart, Units
from .feed import Feed
from .inputs import Inputs
from .stage_replica import StageReplica
from .targets import Targets
from .weight_update import WeightUpdate

_WHAT = "end of an epoch"
_NAMED = 4  # samples of a minibatch
_COLUMNS = 6  # of `EpochExecutor.table`
_LOOK_INSIDE_EVERY = 8  # rounds: to ask how much is held takes some 5 us, and a stage has many weights


class EpochExecutor:
    """Does the actions of one stage: keeps its minibatches in flight, and in `table` what was measured of each."""

    def __init__(
        self,
        context: WorkerContext,
        replica: StageReplica,
        part: EpochPart,
        feed: Feed,
        program: Program,
        *,
        weight_update: WeightUpdate,
        units: Units | None = None,
    ) -> None:
        """`program`: the plan, compiled for as many minibatches as `part` has at most. `units`: after which this
        pipeline may average with others, if there are any.
        """
        self.context, self.replica, self.epoch, self.program = context, replica, part.epoch, program
        self.weight_update, self.units = weight_update, units
        # Minibatches that this pipeline took before, in the whole run.
        before = part.epoch * context.workload.epoch_minibatches + part.first
        self.first_own = units.before if units else before
        self.feed = feed
        todo = [action for action in program.actions[context.rank] if action.stage == replica.stage]
        samples = context.workload.training
        # Not a method of this object, which would hold itself in a circle, and the stage with it.
        steps = partial(_round_of, program, replica.stage) if context.plan.updates_by_step else None
        self.inputs = Inputs(context, replica, samples, feed, todo=todo, epoch=part.epoch, step_of=steps)
        # The weights that each forward meets, as updates since the start of this part.
        uses = program.weights
        self.versions = {m: uses[replica.stage, m] for _, op, m in todo if op is Op.FORWARD}
        self.first_version = replica.weights.newest.index
        replica.weights.expect(self.versions.values())
        self.flights: dict[int, InFlight] = {}
        self.later: dict[int, tuple[InFlight, Any]] = {}  # between the two halves of a split backward
        self.outcomes: dict[int, Outcome] = {}
        self.rows: dict[int, dict[str, Any]] = {}  # for the run's metrics, of those that no update contains yet
        # Of each minibatch, filled in by the last stage: time it was done, samples, mean loss, counted, correct, and
        # whether it was split.
        self.table = torch.zeros(part.count, _COLUMNS, dtype=torch.float64)
        self.synchronised: bool | None = None  # as the module was left, nobody knows
        self.replication = replica.position.replication
        self.last_of_rounds = self._last_of_rounds(todo) if self.replication.overlaps else frozenset()
        self.gradients_inbox: PacketSource | None = None
        if not replica.runner.is_last:
            backwards = (action.minibatch for action in todo if action.op in (Op.BACKWARD, Op.BACKWARD_INPUT))
            self.gradients_inbox = context.exchange.inbox(replica, list(backwards), feed, direction=BACKWARD)
        self._steps: dict[Op, Callable[[Action], None]] = {
            Op.FORWARD: self.forward,
            Op.BACKWARD: self.backward,
            Op.BACKWARD_INPUT: self.backward,
            Op.BACKWARD_WEIGHT: self.backward_weight,
            Op.UPDATE: self.update,
        }

    def close(self) -> Tensor:
        """End it, when all actions are done; return its table."""
        self.inputs.close()
        self._steps.clear()  # they hold it, and so the stage, in a circle
        return self.table

    def do(self, action: Action) -> None:
        """Do the next action of the list that is this stage's. Raises OutOfMemory, with what it was at."""
        try:
            self._steps[action.op](action)
        except (InputError, PeerLost, DeadlinePassed):
            raise
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemory(f"out of memory in {self.context.recorder.at_work}; {SMALLER_LIMIT}") from error

    def _tell_begun(self, what: str, m: int, size: int) -> None:
        """Write down which minibatch is at work, with its size, for whoever finds this process killed."""
        workload, samples = self.context.workload, self.feed.samples(m)
        names = [workload.sample_name(index) for index in samples[:_NAMED]]
        names += [f"{len(samples) - _NAMED} more"] if len(samples) > _NAMED else []
        self.context.recorder.note_work(
            f"the {what} of minibatch {self.feed.number(m)} in stage {self.replica.stage} ({size:,} "
            f"{workload.size_unit}: {', '.join(names)})"
        )

    def _last_of_rounds(self, todo: Sequence[Action]) -> frozenset[int]:
        """The minibatches whose B ends this rank's part of a round: averaging need not wait for the end of it."""
        last: Action | None = None
        found = set()
        for action in todo:
            if action.op in (Op.BACKWARD, Op.BACKWARD_WEIGHT):
                last = action
            elif action.op is Op.UPDATE and last is not None and last.op is Op.BACKWARD:
                members = self.program.members(self.replica.stage, action.minibatch)
                found |= {last.minibatch} & set(members)
        return frozenset(found)

    def forward(self, action: Action) -> None:
        context, replica, m = self.context, self.replica, action.minibatch
        runner, recorder = replica.runner, context.recorder
        received = self.inputs.take(action)
        targets = self.inputs.take_targets(action) if runner.is_last else None
        self._synchronise(m)
        number = self.feed.number(m)
        self._tell_begun("forward", m, received.size)
        if context.straggler:
            context.straggler.begin(self.first_own + m)
        start = recorder.begin("forward", number)
        version = replica.weights.acquire(self.first_version + self.versions[m])
        flight, outputs = runner.forward(received, version, number)
        self.flights[m] = flight
        packet = None
        if targets is not None:
            self._take_loss(flight, outputs, m, targets)
        else:
            packet, flight.outputs, flight.outputs_present = runner.pack_outputs(
                outputs, number, flight.size, flight.part_sizes
            )
        self._tell_work("forward", action, start)
        if packet is not None:
            context.exchange.send(packet, action)

    def _synchronise(self, m: int) -> None:
        """Let batch norm share its statistics in rounds in which every replica has a minibatch."""
        group = self.replication.statistics
        if group is None:
            return
        whole = len(together(self.context.plan, self.replica.stage, m, self.program.num_minibatches)) > 1
        if whole is not self.synchronised:
            self.replica.runner.share_statistics(group if whole else None)
            self.synchronised = whole

    def _take_loss(self, flight: InFlight, outputs: Outputs, m: int, targets: Sequence[Targets]) -> None:
        with torch.set_grad_enabled(flight.received is None):  # else the second forward brings the graph
            judged = [
                self.replica.runner.loss(part, own.labels, samples=own.samples, weights=own.weights)
                for part, own in zip(each_part(outputs), targets, strict=True)
            ]
            loss, outcome = judged[0] if len(judged) == 1 else _added_up(judged, [own.weights for own in targets])
        if outcome.loss is not None and not math.isfinite(outcome.loss):
            raise LossNotFinite(
                f"the loss of minibatch {self.feed.number(m)} (epoch {self.epoch}) is {outcome.loss} in stage "
                f"{self.replica.stage}; lower the learning rate; the last checkpoint is kept"
            )
        flight.outputs = () if outcome.loss is None else Output.of(loss)  # nothing counted: no gradient, so no step
        flight.targets = targets if flight.received is not None else None
        self.outcomes[m] = outcome

    def backward(self, action: Action) -> None:
        """Run a backward, all of it or as far as the stage before waits for it."""
        context, runner, m = self.context, self.replica.runner, action.minibatch
        flight = self.flights.pop(m)
        packet = self._take_gradients(action)
        self._tell_begun("backward", m, flight.size)
        start = context.recorder.begin("backward", self.feed.number(m))
        if flight.received is not None:
            self._recompute(flight, m)
        gradients = [None] if packet is None else runner.unpack_output_gradients(flight, packet)
        scale = 1.0 if packet is not None else self.weight_update.loss_scale.factor
        if action.op is Op.BACKWARD_INPUT:
            features, later = runner.backward_input(flight, gradients, scale=scale)
            self.later[m] = flight, later
        else:
            features = self._whole_backward(flight, gradients, m, scale=scale)
        returned = None if runner.is_first else runner.pack_input_gradients(flight, features)
        end = self._tell_work("backward", action, start)
        if returned is not None:
            context.exchange.send(returned, action)
        if runner.is_last:
            self._tell(m, flight.size, end, len(flight.part_sizes))

    def _whole_backward(
        self, flight: InFlight, gradients: Sequence[Tensor | None], m: int, *, scale: float
    ) -> list[Tensor | None]:
        """Gather or average the gradients of the weights; return those of what was received."""
        weights, leaves = self.replica.weights, list(flight.version.tensors.values())
        turn = m // self.replica.own.round  # replicas take every minibatch but their own elsewhere
        looking = self.context.memory.looking_inside(leaves) if turn % _LOOK_INSIDE_EVERY == 0 else nullcontext()
        if m in self.last_of_rounds:
            with looking, self.replication.overlap(leaves, weights.take_gathered()):
                found, features = self.replica.runner.backward(flight, gradients, scale=scale)
            self.replication.complete(found)
        else:
            with looking:
                found, features = self.replica.runner.backward(flight, gradients, scale=scale)
            weights.accumulate(found)
        weights.release(flight.version)
        return features

    def backward_weight(self, action: Action) -> None:
        """Compute the gradients of the weights that the input's half of the backward left for later."""
        context, m = self.context, action.minibatch
        flight, later = self.later.pop(m)
        self._tell_begun("backward of the weights", m, flight.size)
        start = context.recorder.begin("weights", self.feed.number(m))
        self.replica.weights.accumulate(self.replica.runner.backward_weight(flight, later))
        self.replica.weights.release(flight.version)
        self._tell_work("weights", action, start)

    def _tell_work(self, kind: str, action: Action, start: float) -> float:
        """Keep the forward or backward that began at `start` and ends now. Returns now.

        What its batch norms waited for other replicas is one wait, at its end: each was short, and there were many.
        """
        recorder, m = self.context.recorder, self.feed.number(action.minibatch)
        if self.context.straggler:
            self.context.straggler.lag(self.first_own + action.minibatch, recorder.now() - start)
        end = recorder.now()
        waited = self.replication.take_waited()
        recorder.span(kind, str(action), start, end - waited, minibatch=m)
        if waited:
            recorder.span("wait", str(action), end - waited, end, minibatch=m)
        return end

    def _take_gradients(self, action: Action) -> Packet | None:
        if self.gradients_inbox is None:
            return None
        recorder, m = self.context.recorder, self.feed.number(action.minibatch)
        peer = self.gradients_inbox.peer()
        start = recorder.begin("wait", m, peer)
        packet = self.gradients_inbox.take(m, timeout=self.context.timeout, action=str(action))
        recorder.span("wait", str(action), start, recorder.now(), minibatch=m, peer=peer)
        return packet

    def _recompute(self, flight: InFlight, m: int) -> None:
        self._synchronise(m)
        outputs = self.replica.runner.run_again(flight)
        if flight.targets is not None:
            self._take_loss(flight, outputs, m, flight.targets)

    def _tell(self, m: int, size: int, end: float, num_parts: int) -> None:
        outcome = self.outcomes.pop(m)
        if not self.replica.runner.reports:
            return
        numbers = [end, outcome.samples, outcome.loss or 0.0, outcome.counted, outcome.correct, num_parts > 1]
        self.table.numpy()[m] = numbers
        first = _round_of(self.program, self.replica.stage, m)[0]
        row = {
            "epoch": self.epoch,
            "minibatch": self.feed.number(m),
            "loss": outcome.loss,
            **{self.context.workload.size_unit: size, "samples": outcome.samples, "counted": outcome.counted},
            "learning_rate": self.weight_update.learning_rate(self.feed.number(first)),
            **({"split_into": num_parts} if num_parts else {}),
        }
        self.context.recorder.metric("step", **row)
        self.rows[m] = {**row, "correct": outcome.correct}

    def update(self, action: Action) -> None:
        """Average the gradients of a round over the replicas, and step.

        A step that flushes is made once the gradients of all of this rank's stages exist: only then is it known
        whether any overflowed, and how long they are together.
        """
        replica, recorder = self.replica, self.context.recorder
        members = self.program.members(replica.stage, action.minibatch)
        minibatches = [self.feed.number(m) for m in members]
        last = minibatches[-1]
        if self.replication.num_replicas > 1:
            start = recorder.begin("average", last)
            gradients = self._mean(len(members), what=f"averaging {action}")
            recorder.span("average", str(action), start, recorder.now(), minibatch=last)
            start = recorder.begin("update", last)
        else:
            start = recorder.begin("update", last)
            gradients = self._mean(len(members), what=str(action))
        averaged = self._averaged(members)
        if averaged and replica.averager:
            gradients = replica.averager.before_step(gradients, averaged.update, samples=averaged.samples)
        start = self.weight_update.take(
            replica, gradients, action=action, minibatches=minibatches, start=start, averaged=averaged
        )
        recorder.span("update", str(action), start, recorder.now(), minibatch=last)
        for m in members:
            if row := self.rows.pop(m, None):
                self.feed.done(m, row)

    def _averaged(self, members: range) -> Averaged | None:
        """The unit that ends with an update of these minibatches, where pipelines average."""
        return self.units.ended_by(members, self.program.num_minibatches, self.feed.samples) if self.units else None

    def _mean(self, num_minibatches: int, *, what: str) -> list[Tensor | None]:
        weights = self.replica.weights
        newest = list(weights.newest.tensors.values())
        gradients = self.replication.mean(newest, weights.take_gradients, num_minibatches, what=what)
        if self.replica.runner.averaging_seconds:
            time.sleep(self.replica.runner.averaging_seconds)
        return gradients


def _added_up(
    judged: Sequence[tuple[Tensor, Outcome]], weights: Sequence[tuple[float, ...] | None]
) -> tuple[Tensor, Outcome]:
    """Return the loss of a split minibatch and what to report of it, from those of its parts and their weights."""
    shares = [1.0 if own is None else own[0] for own in weights]
    some = [(*part, share) for part, share in zip(judged, shares, strict=True) if part[1].loss is not None]
    outcomes = [outcome for _, outcome in judged]
    counts = [sum(getattr(own, name) for own in outcomes) for name in ("samples", "counted", "correct")]
    if not some:  # nothing was counted
        return judged[0][0], Outcome(None, *counts)
    mean = mean_of(sum((outcome.loss or 0.0) * share for _, outcome, share in some), sum(share for *_, share in some))
    return torch.stack([loss for loss, *_ in some]).sum(), Outcome(mean, *counts)


def _round_of(program: Program, stage: int, m: int) -> range:
    """The minibatches whose gradients make the same update of a stage as those of `m`."""
    return program.members(stage, m // round_length(program.plan, stage))


@dataclass(frozen=True)
class EpochSoFar:
    """Sums over the trained minibatches of an epoch: under plans before, and before the run resumed."""

    minibatches: int = 0
    loss: float = 0.0  # means times what they are over
    counted: float = 0.0  # samples, or what else the loss is a mean over
    correct: float = 0.0  # of these
    samples: float = 0.0
    sent_bytes: float = 0.0  # by this rank, and of what came before the run resumed by all, on rank 0
    split: float = 0.0  # minibatches that passed in parts

    def with_part(self, table: Tensor, sent_bytes: float) -> "EpochSoFar":
        """Add what comes next: `table` of all ranks, as EpochExecutor.table.

        Minibatch by minibatch, so that the sums have the same bits wherever the run was stopped between.
        """
        _, of_samples, losses, of_counted, of_correct, splits = table.numpy().T
        start = np.array([[self.loss, self.counted, self.correct, self.samples, self.split]])
        columns = [losses * of_counted, of_counted, of_correct, of_samples, splits]
        rows = np.concatenate([start, np.stack(columns, axis=1)])
        loss, counted, correct, samples, split = np.add.accumulate(rows, axis=0)[-1].tolist()
        minibatches, sent = self.minibatches + len(table), self.sent_bytes + sent_bytes
        return EpochSoFar(minibatches, loss, counted, correct, samples, sent, split)

    def train(self, *, counts_correct: bool) -> dict[str, float | None]:
        """Return the mean loss, the share that was right if that is counted, and over how many they are."""
        scores = {"loss": mean_of(self.loss, self.counted)}
        if counts_correct:
            scores["accuracy"] = mean_of(self.correct, self.counted)
        return scores | {
            "samples": int(self.samples),
            "counted": int(self.counted),
            "minibatches": self.minibatches,
            **({"split_minibatches": int(self.split)} if self.split else {}),
        }


class TrainedEpochs:
    """The `rows` of a run's epochs under its plans, and what the epoch adds up to that is being trained."""

    def __init__(self) -> None:
        self.earlier: list[Mapping[str, Any]] = []  # rows of epochs that ended before this run was resumed
        self.rows: list[dict[str, Any]] = []
        self.so_far = EpochSoFar()
        self.unfinished: EpochSoFar | None = None  # for a checkpoint within an epoch: its bytes are those of all ranks
        self.last_table = torch.zeros(1, _COLUMNS, dtype=torch.float64)  # of the part that ended last, of all ranks
        self._first = 0  # of the rows, that ended under this plan

    def add_part(self, table: Tensor, sent_bytes: float) -> None:
        """Add a part of an epoch: `table` of all ranks, as EpochExecutor.table."""
        self.last_table, self.so_far = table, self.so_far.with_part(table, sent_bytes)

    def end_part(self, *, whole: bool, sent_bytes: float) -> None:
        """Note whether the epoch is `whole` now, and the bytes that all ranks sent in it."""
        self.unfinished = None if whole else replace(self.so_far, sent_bytes=sent_bytes)

    def resume(self, sums: EpochSoFar, *, leads: bool) -> None:
        """Go on within an epoch: the rank that `leads` has the bytes that were sent before."""
        self.unfinished, self.so_far = sums, sums if leads else replace(sums, sent_bytes=0.0)

    def take_over(self, before: "TrainedEpochs") -> None:
        """Go on from what was trained under the plan before."""
        self.earlier, self.rows, self._first = before.earlier, before.rows, len(before.rows)
        self.so_far, self.unfinished = before.so_far, before.unfinished

    def of_plan(self, num_stages: int) -> list[Mapping[str, Any]]:
        """Return the rows of this process's plan; if there are none, those of as many stages before."""
        return [*self.rows[self._first :]] or [row for row in self.earlier if len(row["stages"]) == num_stages]


def summed(tables: Mapping[int, Tensor], context: WorkerContext, num_minibatches: int) -> Tensor:
    """Return what all ranks measured of each minibatch: as EpochExecutor.table, of which each rank has some rows, or
    none where the plan leaves it out.
    """
    own = torch.zeros(num_minibatches, _COLUMNS, dtype=torch.float64)
    for table in tables.values():
        own += table
    return context.process.sum(own, what=_WHAT)


def epoch_row(
    context: WorkerContext, table: Tensor, started: float, *, stages: Sequence[int], so_far: EpochSoFar
) -> dict[str, Any]:
    """Bring together what the ranks know of an epoch, whose last part is `table`, begun at `started`.

    `stages`: this rank's. `so_far`: all of the epoch, `table` included, which losses and bytes are of; pace, shares and
    memory are of its last part. Every rank comes here.
    """
    process, plan = context.process, context.plan
    times, samples, *_ = table.unbind(dim=1)
    window = metrics.steady_window(times.tolist(), plan)
    start, end = (float(times[k]) for k in window) if window else (started, float(times.max()))
    spans = context.recorder.restart()
    seconds = torch.zeros(len(plan.stages), len(SPAN_KINDS), dtype=torch.float64)
    for k in stages:
        busy = metrics.busy_seconds([span[1:] for span in spans if span[0] == k], start, end)
        seconds[k] = torch.tensor([busy[kind] for kind in SPAN_KINDS], dtype=torch.float64)
    process.sum(seconds, what=_WHAT)
    summaries = metrics.stage_summaries(
        plan, [dict(zip(SPAN_KINDS, row, strict=True)) for row in seconds.tolist()], end - start
    )
    memory = torch.zeros(process.world_size, 2, dtype=torch.float64)
    memory[context.rank] = torch.tensor([context.memory.bytes(), context.memory.held_bytes], dtype=torch.float64)
    process.sum(memory, what=_WHAT)
    for entry in summaries:
        most = memory[entry["ranks"]].amax(dim=0).tolist()
        entry |= dict(zip(metrics.MEMORY, map(int, most), strict=True))
    sent = torch.tensor([so_far.sent_bytes], dtype=torch.float64)
    return {
        "train": so_far.train(counts_correct=context.workload.tally().counts_correct),
        "samples_per_second": metrics.pace(times.tolist(), samples.tolist(), window, started),
        "sent_bytes": int(process.sum(sent, what=_WHAT)),
        "stages": summaries,
    }
