"""A run of several pipelines of one stage, worked out again in this process from its record, by arithmetic of its own.

minibatches.jsonl   who took which minibatch
merges.jsonl        which contributions met, when each pipeline took the result, and in what order a partner or a
                    parameter server had them
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pipeline_jobs import PipelinesResult
from torch import Tensor

from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.processes.process import Process
from sparsepipe.runtime.replication.between_pipelines.outer_step import Held
from sparsepipe.runtime.stages.base import Output
from sparsepipe.runtime.worker.connections import Connections
from sparsepipe.runtime.worker.stage_replica import StageReplica
from sparsepipe.runtime.workloads.learning import Learning
from sparsepipe.values.plan import Plan
from sparsepipe.values.replication import SERVER, Arithmetic
from sparsepipe.values.schedule import compile_until_steady

Row = Mapping[str, Any]


class Learner:
    """One pipeline of one stage in this process: trains on minibatches by their numbers, as its rank did."""

    def __init__(self, plan: Plan, config: RunConfig, *, averages_gradients: bool = False) -> None:
        self.workload, self.config = Learning.open(config), config
        connections = Connections(Process(0, 1, torch.device("cpu"), 60), compile_until_steady(plan))
        self.replica = StageReplica.open(plan, config, position=connections.at(0), workload=self.workload)
        self.held = Held(self.replica, of_gradients=averages_gradients)

    def gradients(self, number: int) -> tuple[float, list[Tensor]]:
        """Return a minibatch's loss and gradients."""
        workload, weights, runner = self.workload, self.replica.weights, self.replica.runner
        epoch, place = divmod(number, workload.epoch_minibatches)
        samples = workload.order(epoch)[place]
        runner.begin(training=True)
        weights.expect([0])
        version = weights.acquire(weights.newest.index)
        flight, outputs = runner.forward(workload.training.batch(samples, epoch=epoch), version, number)
        loss, outcome = runner.loss(outputs, workload.labels(workload.training, samples, epoch), samples=len(samples))
        flight.outputs = Output.of(loss)
        gradients, _ = runner.backward(flight, [None])
        weights.accumulate(gradients)
        weights.release(version)
        return outcome.loss, weights.take_gradients()

    def step(self, gradients: list[Tensor]) -> None:
        self.replica.weights.update(gradients, self.config.learning_rate)

    def train(self, number: int) -> float:
        """Train on one minibatch; return its loss."""
        loss, gradients = self.gradients(number)
        self.step(gradients)
        return loss


class Told:
    """What a record says of minibatches and merges, in the order in which each pipeline met it."""

    def __init__(self, result: PipelinesResult, num_pipelines: int, epoch_minibatches: int) -> None:
        rows = result.lines("merges.jsonl")
        self.merges = {row["merge"]: row for row in rows if row["event"] == "merge"}
        self.contributed = {(row["pipeline"], row["update"]) for row in rows if row["event"] == "contribution"}
        self.applied = [row for row in rows if row["event"] == "applied" and row["applied"]]
        self.losses = {row["minibatch"]: row["loss"] for row in result.rows("step")}
        self.minibatches: list[list[int]] = [[] for _ in range(num_pipelines)]
        for row in result.lines("minibatches.jsonl"):
            if row["event"] == "taken":
                self.minibatches[row["pipeline"]] += [epoch_minibatches * row["epoch"] + m for m in row["minibatches"]]

    def taken(self, pipeline: int, update: int, *, at_end: bool = False, role: str | None = None) -> list[Row]:
        """The merges whose result a pipeline took after an update: its own contributions', or those of a `role`."""
        found = [
            row
            for row in self.applied
            if (row["pipeline"], row["update"], row.get("role")) == (pipeline, update, role)
            and bool(row.get("at_end")) is at_end
            and not row.get("last")
        ]
        return sorted(found, key=lambda row: row["place"]) if role else found


@dataclass(frozen=True)
class Found:
    """What a merge comes to for one of its members."""

    correction: Tensor
    result: Tensor


class Means:
    """Weighted means of what was contributed, in the order of members."""

    def __init__(self, replay: "Replay") -> None:
        self.told, self.snapshots = replay.told, replay.snapshots
        self.rule, self.weights = replay.rule, replay.learners[0].held.layout.weights

    def contribute(self, pipeline: int, update: int, snapshot: Tensor) -> None:
        self.snapshots[pipeline, update] = snapshot

    def found(self, row: Row) -> Found | None:
        """What a pipeline takes; None while a part of it is not worked out."""
        mean = weighted(self.told.merges[row["merge"]], self.snapshots)
        return None if mean is None else Found(mean - self.snapshots[row["pipeline"], row["contributed"]], mean)

    def applied(self, pipeline: int, found: Found) -> None:
        pass

    def renewed(self, pipeline: int, update: int, snapshot: Tensor) -> bool:
        """An update is over. False: not before others have come to what happened before."""
        return True

    def surprise(self, pipeline: int, rows: Sequence[Row]) -> Tensor | None:
        """What the merges change in which others took a pipeline as their partner."""
        raise AssertionError("nobody is a partner under this rule")


class OuterSteps(Means):
    """DiLoCo: the members' mean change is the gradient of an outer step, which each makes for itself."""

    def __init__(self, replay: "Replay") -> None:
        super().__init__(replay)
        begun = [learner.held.snapshot()[self.weights] for learner in replay.learners]
        self.outer = {k: (own, torch.zeros_like(own)) for k, own in enumerate(begun)}  # weights and velocity
        self.after: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # by pipeline and merge
        self.changes: dict[tuple[int, int], Tensor] = {}

    def contribute(self, pipeline: int, update: int, snapshot: Tensor) -> None:
        super().contribute(pipeline, update, snapshot)
        change = snapshot.clone()
        change[self.weights] = self.outer[pipeline][0] - snapshot[self.weights]
        self.changes[pipeline, update] = change

    def found(self, row: Row) -> Found | None:
        pipeline, options = row["pipeline"], self.rule
        result = weighted(self.told.merges[row["merge"]], self.changes)
        if "outer_from" in row and (row["outer_from"], row["merge"]) not in self.after:
            return None
        if result is None:
            return None
        if "outer_from" in row:
            outer, velocity = self.after[row["outer_from"], row["merge"]]
        else:
            (outer, velocity), gradient = self.outer[pipeline], result[self.weights]
            velocity = velocity * options.momentum + gradient
            outer = outer - options.outer_rate * (
                gradient + options.momentum * velocity if options.nesterov else velocity
            )
        self.outer[pipeline] = self.after[pipeline, row["merge"]] = outer, velocity
        result[self.weights] = outer
        return Found(result - self.snapshots[pipeline, row["contributed"]], result)


class Pairs(Means):
    """AD-PSGD: a partner has one copy of its weights for all who come, one after the other, until its next update."""

    def __init__(self, replay: "Replay") -> None:
        super().__init__(replay)
        count = len(replay.learners)
        self.offered = [learner.held.snapshot() for learner in replay.learners]
        self.base, self.num_served = [-1] * count, [0] * count  # the update that is offered; who came so far
        self.halves: dict[int, Tensor] = {}  # by merge: what the partner's weights change by
        self.pending: list[list[int]] = [[] for _ in range(count)]  # merges whose half a partner has not taken
        self.serves: list[dict[int, tuple[int, int]]] = [{} for _ in range(count)]  # place → update offered, merge
        for row in self.told.applied:
            if row.get("role") == "partner":
                self._served(row["pipeline"], row["place"], row["contributed"], row["merge"])
            elif not row.get("last"):
                ((update, place),) = row["partner"]
                self._served(self.told.merges[row["merge"]]["partner"], place, update, row["merge"])
        for own in self.serves:
            assert sorted(own) == list(range(len(own))), "each place among those served is told of"

    def _served(self, partner: int, place: int, update: int, merge: int) -> None:
        assert self.serves[partner].setdefault(place, (update, merge)) == (update, merge), "both tell the same"

    def _serve(self, partner: int) -> None:
        """Work out what comes next, as far as it is known."""
        while self.num_served[partner] in self.serves[partner]:
            base, number = self.serves[partner][self.num_served[partner]]
            merge = self.told.merges[number]
            theirs = self.snapshots.get((merge["members"][0], merge["updates"][0]))
            if base > self.base[partner] or theirs is None:
                return
            half = (theirs - self.offered[partner]) * 0.5
            self.offered[partner] = self.offered[partner] + half
            self.halves[number] = half
            self.pending[partner].append(number)
            self.num_served[partner] += 1

    def found(self, row: Row) -> Found | None:
        partner = self.told.merges[row["merge"]]["partner"]
        self._serve(partner)
        half = self.halves.get(row["merge"])
        if half is None:
            return None
        return Found(-half, self.snapshots[row["pipeline"], row["contributed"]] - half)

    def renewed(self, pipeline: int, update: int, snapshot: Tensor) -> bool:
        self._serve(pipeline)
        base, _ = self.serves[pipeline].get(self.num_served[pipeline], (update, 0))
        if base < update:
            return False  # somebody met what was offered before
        self.offered[pipeline] = snapshot + self._sum(self.pending[pipeline], snapshot)
        self.base[pipeline] = update
        return True

    def surprise(self, pipeline: int, rows: Sequence[Row]) -> Tensor | None:
        self._serve(pipeline)
        merges = [row["merge"] for row in rows]
        if not self.halves.keys() >= set(merges):
            return None
        assert self.pending[pipeline][: len(merges)] == merges, "in the order in which they came"
        del self.pending[pipeline][: len(merges)]
        return self._sum(merges, self.offered[pipeline])

    def _sum(self, merges: Sequence[int], like: Tensor) -> Tensor:
        return sum((self.halves[number] for number in merges), start=torch.zeros_like(like))


class Pushes(Means):
    """WSP: a parameter server adds up, in the order in which they come, shares of what pipelines changed."""

    def __init__(self, replay: "Replay") -> None:
        super().__init__(replay)
        self.pushed = [learner.held.snapshot() for learner in replay.learners]
        self.changes: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # with what was pushed before
        self.results: dict[int, Tensor] = {}  # by merge: what the server had then
        own = [row for row in self.told.applied if not row.get("last")]
        self.order = [row["merge"] for row in sorted(own, key=lambda row: row["place"])]
        assert sorted(row["place"] for row in own) == list(range(len(own)))
        (self.first,) = (row["merge"] for row in own if "began" in row)  # whose weights the server begins with

    def contribute(self, pipeline: int, update: int, snapshot: Tensor) -> None:
        super().contribute(pipeline, update, snapshot)
        change, before = snapshot.clone(), self.pushed[pipeline]
        change[self.weights] -= before[self.weights]
        self.changes[pipeline, update] = change, before
        self.pushed[pipeline] = snapshot

    def found(self, row: Row) -> Found | None:
        while len(self.results) < len(self.order) and row["merge"] not in self.results:
            if not self._push(self.order[len(self.results)]):
                return None
        result = self.results[row["merge"]]
        return Found(result - self.snapshots[row["pipeline"], row["contributed"]], result)

    def _push(self, number: int) -> bool:
        """Add the next push to what the server has. False: it is not worked out yet."""
        change = self._of(number)
        if not self.results and self._of(self.first) is None:
            return False
        if change is None:
            return False
        server = self.results[self.order[len(self.results) - 1]] if self.results else self._begun()
        merge, found = self.told.merges[number], change[0] - server  # of buffers: towards the pipeline's
        assert merge["partner"] == SERVER
        found[self.weights] = change[0][self.weights]
        self.results[number] = server + found * merge["weights"][0]
        return True

    def _begun(self) -> Tensor:
        change, before = self._of(self.first)
        begun = change.clone()  # its buffers
        begun[self.weights] = before[self.weights]
        return begun

    def _of(self, number: int) -> tuple[Tensor, Tensor] | None:
        merge = self.told.merges[number]
        return self.changes.get((merge["members"][0], merge["updates"][0]))

    def applied(self, pipeline: int, found: Found) -> None:
        self.pushed[pipeline] = self.pushed[pipeline] + found.correction


MERGINGS: Mapping[Arithmetic, type[Means]] = {
    Arithmetic.MEAN_GRADIENTS: Means,
    Arithmetic.MEAN_WEIGHTS: Means,
    Arithmetic.PAIR: Pairs,
    Arithmetic.SERVER: Pushes,
    Arithmetic.OUTER_STEP: OuterSteps,
}


class Replay:
    """Works out again what a run came to. Pipelines wait for each other where the record says that they met."""

    def __init__(self, result: PipelinesResult, plan: Plan, config: RunConfig, *, epoch_minibatches: int) -> None:
        count = len(plan.pipelines)
        self.told, self.rule = Told(result, count, epoch_minibatches), plan.replication
        of_gradients = self.rule.arithmetic is Arithmetic.MEAN_GRADIENTS
        self.learners = [Learner(plan.local(k), config, averages_gradients=of_gradients) for k in range(count)]
        self.snapshots: dict[tuple[int, int], Tensor] = {}  # what was contributed, by pipeline and update
        self.ends: dict[tuple[int, int], Tensor] = {}  # what the last average is of
        self.merging = MERGINGS[self.rule.arithmetic](self)
        self._moved = False

    def run(self) -> dict[str, Tensor]:
        """Return the tensors that all pipelines end with. Fails where a loss is another than the run's."""
        waiting = [self._pipeline(k) for k in range(len(self.learners))]
        while waiting:
            self._moved = False
            waiting = [one for one in waiting if next(one, "ended") != "ended"]
            assert self._moved or not waiting, "the record has merges that wait for each other"
        (last,) = {row["merge"] for row in self.told.applied if row.get("last")}
        mean, held = weighted(self.told.merges[last], self.ends), self.learners[0].held
        if self.rule.arithmetic is not Arithmetic.MEAN_GRADIENTS or len(self._last_steps(last)) > 1:
            held.apply(mean, in_place_of=True)
        return held.tensors()

    def _last_steps(self, end: int) -> set[int]:
        """The merges of the last steps of all pipelines, before that at the end: one, where they made it together."""
        of_members = {
            member: number for number, row in self.told.merges.items() if number != end for member in row["members"]
        }
        return set(of_members.values())

    def _pipeline(self, k: int) -> Generator[None]:
        learner, update = self.learners[k], -1
        for update, minibatch in enumerate(self.told.minibatches[k]):
            loss, gradients = learner.gradients(minibatch)
            assert loss == self.told.losses[minibatch], f"pipeline {k}, update {update}"
            if self.rule.arithmetic is Arithmetic.MEAN_GRADIENTS:
                gradients = yield from self._mean_gradients(k, update, gradients)
                learner.step(gradients)
                continue
            learner.step(gradients)
            if not self.rule.overlap:
                self._contribute(k, update)
            yield from self._take(k, update)
            if self.rule.overlap:
                self._contribute(k, update)
            yield from self._awaited(
                lambda update=update: self.merging.renewed(k, update, learner.held.snapshot()) or None
            )
        yield from self._take(k, update, at_end=True)
        self.ends[k, update] = learner.held.snapshot()

    def _awaited(self, find: Callable[[], Any]) -> Generator[None, None, Any]:
        while (found := find()) is None:
            yield
        self._moved = True
        return found

    def _contribute(self, k: int, update: int) -> None:
        if (k, update) in self.told.contributed:
            self._moved = True
            self.merging.contribute(k, update, self.learners[k].held.snapshot())

    def _take(self, k: int, update: int, *, at_end: bool = False) -> Generator[None]:
        held, found = self.learners[k].held, list[Found]()
        for row in self.told.taken(k, update, at_end=at_end):
            found.append((yield from self._awaited(lambda row=row: self.merging.found(row))))
        changes = [one.correction for one in found]
        if surprises := self.told.taken(k, update, at_end=at_end, role="partner"):
            changes.append((yield from self._awaited(lambda: self.merging.surprise(k, surprises))))
        if found and not self.rule.overlap and self.rule.arithmetic is not Arithmetic.PAIR:
            held.apply(found[0].result, in_place_of=True)
        elif changes:
            held.apply(sum(changes[1:], start=changes[0]))
        for one in found:
            self.merging.applied(k, one)

    def _mean_gradients(self, k: int, update: int, gradients: list[Tensor]) -> Generator[None, None, list[Tensor]]:
        held, self._moved = self.learners[k].held, True
        self.merging.contribute(k, update, held.snapshot_of(gradients))
        for row in self.told.taken(k, update):
            found = yield from self._awaited(lambda row=row: self.merging.found(row))
            gradients = held.gradients(found.result)
        return gradients


def weighted(merge: Row, parts: Mapping[tuple[int, int], Tensor]) -> Tensor | None:
    """The weighted mean of a merge's parts, by member and update; None while one of them is missing."""
    found = None
    for member, update, weight in zip(merge["members"], merge["updates"], merge["weights"], strict=True):
        if (member, update) not in parts:
            return None
        part = parts[member, update] * weight
        found = part if found is None else found + part
    return found


def same_ends(result: PipelinesResult, tensors: Mapping[str, Tensor]) -> None:
    """Fail where a run's last checkpoint has other bits."""
    found = result.tensors() | result.tensors("buffer")
    for name, tensor in tensors.items():
        assert torch.equal(found[name.split(":", 1)[1]], tensor.detach()), name
