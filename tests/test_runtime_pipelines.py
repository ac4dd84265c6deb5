"""Several pipelines that train one network: who took which minibatch, what they end with, what their record says."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from pipeline_jobs import PipelinesResult, pipelines_of, run_pipelines
from replayed_pipelines import Learner, Replay, same_ends
from runtime_jobs import NORMED, settings, shapes

from sparsepipe.planning.replaying import what_if
from sparsepipe.records import RunRecord
from sparsepipe.runtime import RunConfig
from sparsepipe.values.plan import Plan
from sparsepipe.values.replication import RULES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
EPOCH = 5  # minibatches
EPOCHS = 2
TRAINED = {"all-reduce": 2, "ad-psgd": 3, "wsp:every=2": 2, "diloco:every=2,overlap=false": 2}  # pipelines
SHUFFLED = ("local-sgd:every=2", "partial-reduce:wait=5", "quorum")


@pytest.fixture(scope="module")
def clouds(tmp_path_factory) -> Path:
    return shapes(tmp_path_factory.mktemp("clouds"))


def _each_once(result: PipelinesResult, epochs: int) -> None:
    expected = {epoch: list(range(epoch * EPOCH, (epoch + 1) * EPOCH)) for epoch in range(epochs)}
    assert result.seen == expected, "each minibatch once an epoch"


def test_every_rule_is_trained_with() -> None:
    assert {rule.partition(":")[0] for rule in (*TRAINED, *SHUFFLED)} == RULES.keys()


@pytest.mark.parametrize("rule", TRAINED)
def test_pipelines_of_one_stage_train_to_the_end_and_are_replayed_to_the_same_bits(tmp_path, clouds, rule) -> None:
    plan = pipelines_of(NORMED, *([[rank]] for rank in range(TRAINED[rule])), rule=rule)
    # Each rank sleeps longer than it computes, so that pipelines take minibatches in turn on a busy machine, too.
    config = settings(
        clouds, model=NORMED, epochs=EPOCHS, validate=True, momentum=0.0, stragglers="jitter:p=1,seconds=0.1"
    )
    result = run_pipelines(tmp_path / "run", plan, config)
    _each_once(result, EPOCHS)
    (summary,) = result.rows("summary")
    assert summary["minibatches"] == EPOCHS * EPOCH and summary["replication"]["rule"] == rule.partition(":")[0]
    assert {row["pipeline"] for row in result.rows("step")} == set(range(TRAINED[rule])), "each had some"
    epochs = result.rows("epoch")
    assert [row["epoch"] for row in epochs] == list(range(EPOCHS)) and epochs[-1]["minibatches"] == EPOCHS * EPOCH
    assert epochs[-1]["validation"] == summary["validation"] and epochs[-1]["samples_per_second"] > 0
    last = [row for row in result.rows("step") if row["epoch"] == EPOCHS - 1]
    loss = sum(row["loss"] * row["counted"] for row in last) / sum(row["counted"] for row in last)
    assert epochs[-1]["train"]["loss"] == pytest.approx(loss), "of all pipelines' minibatches"
    _replayed(result, plan, config)


@pytest.mark.parametrize("rule", ["partial-reduce", "diloco:every=1"])
def test_a_pipeline_that_trained_on_nothing_takes_the_others_weights(tmp_path, clouds, rule) -> None:
    """There is one minibatch for two pipelines: both end with the weights that one process has after it."""
    plan = pipelines_of(NORMED, [[0]], [[1]], rule=rule)
    config = settings(clouds, model=NORMED, epochs=1, batch_size=18)
    result = run_pipelines(tmp_path / "run", plan, config)
    assert sum(result.seen.values(), []) == [0]
    (summary,), (epoch,) = result.rows("summary"), result.rows("epoch")
    assert summary["minibatches"] == 1 and summary["train"] == epoch["train"], "whoever of the two closes the run"
    alone = Learner(plan.local(0), config)
    alone.train(0)
    tensors = result.tensors() | result.tensors("buffer")
    for name, tensor in alone.held.tensors().items():
        assert torch.equal(tensors[name.split(":", 1)[1]], tensor.detach()), name


def test_pipelines_cut_unlike_train_together(tmp_path, clouds) -> None:
    plan = pipelines_of(NORMED, [[0], [1]], [[2]], rule="partial-reduce")
    result = run_pipelines(tmp_path / "run", plan, settings(clouds, model=NORMED, epochs=2, validate=True))
    _each_once(result, 2)
    record = RunRecord.load(result.folder)
    trace = record.trace()
    assert trace.ranks == (0, 1, 2) and trace.facts["pipelines"] == [[0, 1], [2]]
    assert what_if(trace).culprit.endswith("are not included"), "of pipelines that take minibatches by pace"
    assert {span.stage for span in trace.spans} == {0, 1, 2}
    trained = [span for span in trace.spans if span.kind == "forward"]
    for row in (*result.rows("epoch"), *result.rows("summary")):
        own = {
            (span.stage, span.rank)
            for span in trained
            if span.minibatch // EPOCH == row.get("epoch", span.minibatch // EPOCH)
        }
        assert [(one["stage"], *one["ranks"]) for one in row["stages"]] == sorted(own), "of all, as the trace has them"
        assert "pipeline" not in row and all(0 < one["busy_fraction"] <= 1 for one in row["stages"])
    assert {*record.frame("stage")["stage"]} == {0, 1, 2}
    assert all(torch.isfinite(tensor).all() for tensor in result.tensors().values())


@pytest.mark.parametrize("rule", SHUFFLED)
def test_a_run_is_replayed_in_one_process_from_its_record_to_the_same_bits(tmp_path, clouds, rule) -> None:
    """With momentum, which stays each pipeline's own, and in an order drawn anew each epoch.

    Each rank sleeps longer than it computes, so that both are at work when averages are due.
    """
    plan = pipelines_of(NORMED, [[0]], [[1]], rule=rule)
    config = settings(clouds, model=NORMED, epochs=EPOCHS, shuffle=True, stragglers="jitter:p=1,seconds=0.1")
    _replayed(run_pipelines(tmp_path / "run", plan, config), plan, config)


def _replayed(result: PipelinesResult, plan: Plan, config: RunConfig) -> None:
    """Work a run out again: who took which minibatch, which contributions met in what order, after which update each
    pipeline took the result. Fails where a loss or a weight has other bits."""
    replay = Replay(result, plan, config, epoch_minibatches=EPOCH)
    assert any(_met(replay.told.merges[row["merge"]]) for row in replay.told.applied if not row.get("last"))
    same_ends(result, replay.run())


def _met(merge: Mapping[str, Any]) -> bool:
    return len(merge["members"]) > 1 or merge["partner"] is not None
