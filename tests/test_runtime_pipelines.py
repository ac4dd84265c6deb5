"""Several pipelines that train one network: who took which minibatch, what they end with, what their record says."""

from pathlib import Path

import pytest
import torch
from pipeline_jobs import PipelinesResult, pipelines_of, run_pipelines
from runtime_jobs import NORMED, settings, shapes

from sparsepipe.plan import Plan
from sparsepipe.record import RunRecord
from sparsepipe.replication import RULES
from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.processes.process import Process
from sparsepipe.runtime.replication.between_pipelines.held import Held
from sparsepipe.runtime.stages.base import Output
from sparsepipe.runtime.worker.connections import Connections
from sparsepipe.runtime.worker.stage_replica import StageReplica
from sparsepipe.runtime.workloads.learning import Learning
from sparsepipe.schedule import compile_until_steady

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
EPOCH = 5  # minibatches
REPLAYED = {"local-sgd", "partial-reduce", "quorum"}  # rules of which a run is replayed from its record


@pytest.fixture(scope="module")
def clouds(tmp_path_factory) -> Path:
    return shapes(tmp_path_factory.mktemp("clouds"))


def _each_once(result: PipelinesResult, epochs: int) -> None:
    expected = {epoch: list(range(epoch * EPOCH, (epoch + 1) * EPOCH)) for epoch in range(epochs)}
    assert result.seen == expected, "each minibatch once an epoch"


@pytest.mark.parametrize("rule", sorted(RULES.keys() - REPLAYED))
def test_pipelines_of_one_stage_train_to_the_end_by_every_rule(tmp_path, clouds, rule) -> None:
    plan = pipelines_of(NORMED, [[0]], [[1]], rule=rule)
    config = settings(clouds, model=NORMED, epochs=6, validate=True, momentum=0.0)
    result = run_pipelines(tmp_path / "run", plan, config)
    _each_once(result, 6)
    losses = [row["loss"] for row in sorted(result.rows("step"), key=lambda row: row["minibatch"])]
    assert sum(losses[-2 * EPOCH :]) / 2 < sum(losses[:EPOCH])
    (summary,) = result.rows("summary")
    assert summary["minibatches"] == 6 * EPOCH and summary["replication"]["rule"] == rule
    assert {row["pipeline"] for row in result.rows("step")} == {0, 1}, "each had some"


@pytest.mark.parametrize("rule", ["partial-reduce", "all-reduce", "diloco:every=1"])
def test_a_pipeline_that_trained_on_nothing_takes_the_others_weights(tmp_path, clouds, rule) -> None:
    """There is one minibatch for two pipelines: both end with the weights that one process has after it."""
    plan = pipelines_of(NORMED, [[0]], [[1]], rule=rule)
    config = settings(clouds, model=NORMED, epochs=1, batch_size=18)
    result = run_pipelines(tmp_path / "run", plan, config)
    assert sum(result.seen.values(), []) == [0]
    alone = Learner(plan.local(0), config)
    alone.train(0)
    tensors = result.tensors() | result.tensors("buffer")
    for name, tensor in alone.held.tensors().items():
        assert torch.equal(tensors[name.split(":", 1)[1]], tensor.detach()), name


@pytest.mark.parametrize("rule", ["partial-reduce", "local-sgd:every=2"])
def test_pipelines_cut_unlike_train_together(tmp_path, clouds, rule) -> None:
    plan = pipelines_of(NORMED, [[0], [1]], [[2]], rule=rule)
    result = run_pipelines(tmp_path / "run", plan, settings(clouds, model=NORMED, epochs=3, validate=True))
    _each_once(result, 3)
    record = RunRecord.load(result.folder)
    trace = record.trace()
    assert trace.ranks == (0, 1, 2)
    assert {span.stage for span in trace.spans} == {0, 1, 2}
    assert all(torch.isfinite(tensor).all() for tensor in result.tensors().values())


class Learner:
    """One pipeline of one stage in this process: trains on minibatches by their numbers, as its rank did."""

    def __init__(self, plan: Plan, config: RunConfig) -> None:
        self.workload, self.config = Learning.open(config), config
        connections = Connections(Process(0, 1, torch.device("cpu"), 60), compile_until_steady(plan))
        self.replica = StageReplica.open(plan, config, position=connections.at(0), workload=self.workload)
        self.held = Held(self.replica)
        self.snapshots: dict[int, torch.Tensor] = {}  # by update

    def train(self, number: int) -> float:
        """Train on one minibatch; return its loss."""
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
        weights.update(weights.take_gradients(), self.config.learning_rate)
        return outcome.loss


@pytest.mark.parametrize("rule", ["local-sgd:every=2", "partial-reduce:wait=5", "quorum"])
def test_a_run_is_replayed_in_one_process_from_its_record_to_the_same_bits(tmp_path, clouds, rule) -> None:
    """Who took which minibatch, which contributions were averaged, and after which update each took the mean."""
    plan = pipelines_of(NORMED, [[0]], [[1]], rule=rule)
    config = settings(clouds, model=NORMED, epochs=4, shuffle=True)
    result = run_pipelines(tmp_path / "run", plan, config)
    rows = result.lines("merges.jsonl")
    merges = {row["merge"]: row for row in rows if row["event"] == "merge"}
    applied = [row for row in rows if row["event"] == "applied" and row["applied"]]
    assert applied and any(len(merges[row["merge"]]["members"]) == 2 for row in applied[:-2]), "some before the end"
    own: dict[int, list[int]] = {0: [], 1: []}
    for row in result.lines("minibatches.jsonl"):
        if row["event"] == "taken":
            own[row["pipeline"]] += [EPOCH * row["epoch"] + m for m in row["minibatches"]]
    losses = {row["minibatch"]: row["loss"] for row in result.rows("step")}
    learners = [Learner(plan.local(k), config) for k in range(2)]
    # What was contributed after the last update of all was taken at the run's end.
    taken = [row for row in applied if not row.get("last") and row["contributed"] < row["update"]]
    late = [row for row in applied if not row.get("last") and row["contributed"] == row["update"]]
    updates = [0, 0]

    def mean(merge: dict) -> torch.Tensor | None:
        found = None
        for member, update, weight in zip(merge["members"], merge["updates"], merge["weights"], strict=True):
            if update not in learners[member].snapshots:
                return None
            part = learners[member].snapshots[update] * weight
            found = part if found is None else found + part
        return found

    while any(updates[k] < len(own[k]) for k in range(2)):
        moved = False
        for k, learner in enumerate(learners):
            update = updates[k]
            if update == len(own[k]):
                continue
            due = [row for row in taken if (row["pipeline"], row["update"]) == (k, update)]
            means = [(row, mean(merges[row["merge"]])) for row in due]
            if any(found is None for _, found in means):
                continue  # the other has to come so far first
            assert learner.train(own[k][update]) == losses[own[k][update]]
            for row, found in means:
                learner.held.apply(found - learner.snapshots[row["contributed"]])
            learner.snapshots[update] = learner.held.snapshot()
            updates[k], moved = update + 1, True
        assert moved, "merges that wait for each other"
    ends = [(learners[row["pipeline"]], row["contributed"], mean(merges[row["merge"]])) for row in late]
    for learner, update, found in ends:
        learner.held.apply(found - learner.snapshots[update])
    for k, learner in enumerate(learners):
        learner.snapshots[updates[k] - 1] = learner.held.snapshot()
    (last,) = {row["merge"] for row in applied if row.get("last")}
    final = mean(merges[last])
    assert final is not None
    learners[0].held.apply(final, in_place_of=True)
    tensors = result.tensors() | result.tensors("buffer")
    for name, tensor in learners[0].held.tensors().items():
        assert torch.equal(tensors[name.split(":", 1)[1]], tensor.detach()), name
