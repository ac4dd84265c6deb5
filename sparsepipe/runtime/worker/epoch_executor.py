"""One drained stretch of training on one rank: each action of the list, done."""

import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...schedule import Action, Op, round_length, together
from ..failures import LossNotFinite
from ..replication.all_reduce import Averaging, clip, square_norm
from ..stages.loss import Outcome
from ..stages.network_stage import InFlight, Output
from ..transport.channel import Inbox, LocalQueue
from ..transport.packet import BACKWARD, Packet
from .inputs import Inputs, inbox
from .stage_replica import StageReplica

if TYPE_CHECKING:
    from .worker import Worker

_LOOK_INSIDE_EVERY = 8  # rounds: to ask how much is held takes some 5 us, and a stage has many weights


class EpochExecutor:
    """One drained stretch of training in one stage: minibatches in flight, gradients to come, what was measured."""

    def __init__(self, worker: "Worker", post: StageReplica, epoch: int, first: int, count: int) -> None:
        self.worker, self.post, self.epoch, self.count = worker, post, epoch, count
        workload = worker.workload
        self.base = epoch * workload.epoch_minibatches + first  # global id of minibatch 0 of this segment
        order = workload.order(epoch)[first : first + count]
        self.batches = dict(enumerate(order))
        self.program = worker.program(count)
        todo = [action for action in self.program.actions[worker.rank] if action.stage == post.stage]
        self.inputs = Inputs(worker, post, workload.training, self.batches, todo=todo, epoch=epoch, base=self.base)
        # The weights that each forward meets, as updates since the start of this segment.
        uses = self.program.weights
        self.versions = {m: uses[post.stage, m] for _, op, m in todo if op is Op.FORWARD}
        self.first_version = post.weights.newest.index
        post.weights.expect(self.versions.values())
        self.flights: dict[int, InFlight] = {}
        self.later: dict[int, tuple[InFlight, Any]] = {}  # between the two halves of a split backward
        self.outcomes: dict[int, Outcome] = {}
        # Of each minibatch, filled in by the last stage: time it was done, samples, mean loss, counted, correct.
        self.table = torch.zeros(count, 5, dtype=torch.float64)
        self.synchronised: bool | None = None  # as the module was left, nobody knows
        self.averaging: Averaging | None = None  # of the round whose last backward is done
        self.last_of_rounds = self._last_of_rounds(todo) if post.process.stage_group is not None else frozenset()
        self.answers: Inbox | LocalQueue | None = None
        if not post.runner.is_last:
            mine = [(action.minibatch, action.minibatch + self.base) for action in todo if action.op is Op.BACKWARD]
            self.answers = inbox(worker, post, mine, direction=BACKWARD)
        self._steps = {
            Op.FORWARD: self.forward,
            Op.BACKWARD: self.backward,
            Op.WEIGHTS: self.weights,
            Op.UPDATE: self.update,
        }

    def do(self, action: Action) -> None:
        """Do the next action of the list that is this stage's."""
        self._steps[action.op](action)

    def _last_of_rounds(self, todo: Sequence[Action]) -> frozenset[int]:
        """The minibatches whose backward is this rank's last of a round: averaging need not wait for its end."""
        last: int | None = None
        found = set()
        for action in todo:
            if action.op is Op.BACKWARD:
                last = action.minibatch
            elif action.op is Op.UPDATE and last is not None:
                members = self.program.members(self.post.stage, action.minibatch)
                found |= {last} & set(members)
        return frozenset(found)

    def forward(self, action: Action) -> None:
        worker, post, m = self.worker, self.post, action.minibatch
        runner, recorder = post.runner, worker.recorder
        arrived = self.inputs.take(action)
        labels = self.inputs.take_labels(action) if runner.is_last else None
        self._synchronise(m)
        start = recorder.begin("forward", m + self.base)
        version = post.weights.acquire(self.first_version + self.versions[m])
        flight, outputs = runner.forward(arrived, version, m + self.base)
        self.flights[m] = flight
        packet = None
        if labels is not None:
            self._take_loss(flight, outputs, m, labels)
        else:
            packet, tensors, present = runner.leave(outputs, m + self.base, flight.voxels)
            flight.outputs, flight.outputs_present = tensors, present
        self._tell_work("forward", action, start)
        if packet is not None:
            worker.send(packet, action)

    def _synchronise(self, m: int) -> None:
        """Let batch norm share its statistics in rounds in which every replica has a minibatch."""
        group = self.post.process.statistics_group
        if group is None:
            return
        whole = len(together(self.worker.plan, self.post.stage, m, self.count)) > 1
        if whole is not self.synchronised:
            self.post.runner.module.synchronise(group if whole else None)
            self.synchronised = whole

    def _take_loss(self, flight: InFlight, outputs: dict[str, Any], m: int, labels: Tensor) -> None:
        loss, outcome = self.post.runner.loss(outputs, labels, samples=len(self.batches[m]))
        if not math.isfinite(outcome.loss):
            raise LossNotFinite(
                f"the loss of minibatch {m + self.base} (epoch {self.epoch}) is {outcome.loss} in stage "
                f"{self.post.stage}; lower the learning rate, the last checkpoint is kept"
            )
        flight.outputs = Output.of(loss)
        flight.labels = labels if flight.arrived is not None else None
        self.outcomes[m] = outcome

    def backward(self, action: Action) -> None:
        worker, post, m = self.worker, self.post, action.minibatch
        runner, recorder = post.runner, worker.recorder
        flight = self.flights.pop(m)
        packet = self._take_answer(action)
        start = recorder.begin("backward", m + self.base)
        if flight.arrived is not None:
            self._recompute(flight, m)
        gradients = [None] if packet is None else runner.check_answer(flight, packet)
        scale = 1.0 if packet is not None else self._weight_in_step(m) * worker.loss_scale.factor
        if runner.splits:
            features, later = runner.backward_of_arrived(flight, gradients, scale=scale)
            self.later[m] = flight, later
        else:
            own = list(flight.version.tensors.values())
            averaging = None
            if m in self.last_of_rounds and own:
                averaging = self.averaging = Averaging(own, post.weights.gathered, post.process)
            watching = averaging.watching() if averaging else nullcontext()
            turn = m // post.own.round  # replicas take every minibatch but their own elsewhere
            looking = worker.memory.looking_inside(own) if turn % _LOOK_INSIDE_EVERY == 0 else nullcontext()
            with looking, watching:
                weights, features = runner.backward(flight, gradients, scale=scale)
            if averaging:
                averaging.complete(weights)
            else:
                post.weights.accumulate(weights)
            post.weights.release(flight.version)
        answer = None if runner.is_first else runner.answer(flight, features)
        end = self._tell_work("backward", action, start)
        if answer is not None:
            worker.send(answer, action)
        if runner.is_last:
            self._tell(m, flight.voxels, end)

    def weights(self, action: Action) -> None:
        """Compute the gradients of the weights that the backward left for later."""
        worker, m = self.worker, action.minibatch
        start = worker.recorder.begin("weights", m + self.base)
        flight, later = self.later.pop(m)
        self.post.weights.accumulate(self.post.runner.backward_of_weights(flight, later))
        self.post.weights.release(flight.version)
        self._tell_work("weights", action, start)

    def _tell_work(self, kind: str, action: Action, start: float) -> float:
        """Keep the forward or backward that began at `start` and ends now. Returns now.

        What its batch norms waited for other replicas is one wait, at its end: each was short, and there were many.
        """
        recorder, group, m = self.worker.recorder, self.post.process.statistics_group, action.minibatch + self.base
        end = recorder.now()
        waited = group.take_waited() if group else 0.0
        recorder.span(kind, str(action), start, end - waited, minibatch=m)
        if waited:
            recorder.span("wait", str(action), end - waited, end, minibatch=m)
        return end

    def _take_answer(self, action: Action) -> Packet | None:
        if self.answers is None:
            return None
        recorder, m = self.worker.recorder, action.minibatch + self.base
        peer = self.answers.peer()
        start = recorder.begin("wait", m, peer)
        packet = self.answers.take(m, timeout=self.worker.config.timeout_seconds, action=str(action))
        recorder.span("wait", str(action), start, recorder.now(), minibatch=m, peer=peer)
        return packet

    def _recompute(self, flight: InFlight, m: int) -> None:
        self._synchronise(m)
        outputs = self.post.runner.run_again(flight)
        if self.post.runner.is_last:
            self._take_loss(flight, outputs, m, flight.labels)

    def _weight_in_step(self, m: int) -> float:
        """In a step, make the mean over its minibatches the mean over its samples, however many each has."""
        if not self.worker.plan.updates_by_step:
            return 1.0
        step = self._round_of(m)
        return len(self.batches[m]) * len(step) / sum(len(self.batches[k]) for k in step)

    def _tell(self, m: int, voxels: int, end: float) -> None:
        outcome = self.outcomes.pop(m)
        told = [end, outcome.samples, outcome.loss, outcome.counted, outcome.correct]
        self.table.numpy()[m] = told
        self.worker.recorder.metric(
            "step",
            epoch=self.epoch,
            minibatch=m + self.base,
            loss=outcome.loss,
            samples=outcome.samples,
            voxels=voxels,
            learning_rate=self._learning_rate(self._round_of(m)[0] + self.base),
        )

    def _round_of(self, m: int) -> range:
        """The minibatches whose gradients make the same update of this stage as those of `m`."""
        stage = self.post.stage
        return self.program.members(stage, m // round_length(self.worker.plan, stage))

    def _learning_rate(self, minibatch: int) -> float:
        workload = self.worker.workload
        return self.worker.learning_rate.at(
            minibatch,
            epoch_minibatches=workload.epoch_minibatches,
            total_minibatches=workload.total_minibatches,
        )

    def _unscaled(self, gradients: Sequence[Tensor]) -> Tensor:
        """Take the loss scale out of the gradients, in place. Returns how many are not finite, [1]."""
        if gradients:
            torch._foreach_mul_(list(gradients), 1 / self.worker.loss_scale.factor)
        return torch.tensor([float(sum(not bool(gradient.isfinite().all()) for gradient in gradients))])

    def _take_note(self, minibatch: int, *, overflowed: bool) -> None:
        """Let the loss scale know whether gradients of any stage overflowed, and the run's metrics."""
        worker = self.worker
        if overflowed and worker.rank == worker.last_rank:
            worker.recorder.metric("overflow", minibatch=minibatch, loss_scale=worker.loss_scale.factor)
        worker.loss_scale.update(overflowed=overflowed)

    def update(self, action: Action) -> None:
        """Average the gradients of a round over the replicas, and step.

        A step that flushes is made once the gradients of all of this rank's stages are there: only then is it known
        whether any overflowed, and how long they are together.
        """
        worker, post = self.worker, self.post
        recorder, members = worker.recorder, self.program.members(post.stage, action.minibatch)
        last = members[-1] + self.base
        gradients = post.weights.take_gradients()
        if post.process.stage_group is not None:
            start = recorder.begin("average", last)
            if self.averaging is None:
                gradients = post.runner.average(gradients, len(members), post.process, what=f"averaging {action}")
            else:
                gradients = self.averaging.mean(len(members), what=f"averaging {action}")
                self.averaging = None
            recorder.span("average", str(action), start, recorder.now(), minibatch=last)
            start = recorder.begin("update", last)
        else:
            start = recorder.begin("update", last)
            gradients = post.runner.average(gradients, len(members), post.process, what=str(action))
        worker.averaged.append((post, gradients))
        if not worker.plan.flushes or len(worker.averaged) == len(worker.posts):
            start = self._step(action, members[0] + self.base, last, start)
        recorder.span("update", str(action), start, recorder.now(), minibatch=last)

    def _step(self, action: Action, first: int, last: int, start: float) -> float:
        """Make the next version of the weights of this rank's stages whose gradients are averaged.

        `first` and `last` are minibatches over the run, `start` is when this began. Returns since when it works on it:
        from the last wait for the other ranks, if there was one.
        """
        worker = self.worker
        ready, worker.averaged = worker.averaged, []
        whole = [gradient for _, gradients in ready for gradient in gradients]
        if worker.scales_loss:
            overflows = self._unscaled(whole)
            start = self._sum(overflows, action, last, start, what="overflow of the gradients")
            self._take_note(last, overflowed=float(overflows) > 0)
            if float(overflows) > 0:
                for post, _ in ready:
                    post.weights.skip()
                return start
        if worker.config.clip_norm is not None:
            square = square_norm(whole, replicas=len(self.post.own.ranks))
            start = self._sum(square, action, last, start, what="norm of the gradients")
            clip(whole, worker.config.clip_norm, float(square.sqrt()))
        for post, gradients in ready:
            post.weights.update(gradients, self._learning_rate(first))
            if post.runner.step_seconds:
                time.sleep(post.runner.step_seconds)
        return start

    def _sum(self, values: Tensor, action: Action, minibatch: int, start: float, *, what: str) -> float:
        """Sum `values` over all ranks, in place: an update begun at `start` waits for it. Returns when it goes on."""
        recorder = self.worker.recorder
        waits = recorder.begin("wait", minibatch)
        recorder.span("update", str(action), start, waits, minibatch=minibatch)
        self.worker.process.sum(values, what=what)
        goes_on = recorder.begin("update", minibatch)
        recorder.span("wait", str(action), waits, goes_on, minibatch=minibatch)
        return goes_on
