"""Several pipelines that train one network: who took which minibatch, what they end with, what their record says."""

from pathlib import Path

import pytest
import torch
from pipeline_jobs import PipelinesResult, pipelines_of, run_pipelines
from runtime_jobs import NORMED, settings, shapes

from sparsepipe.record import RunRecord
from sparsepipe.replication import RULES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
EPOCH = 5  # minibatches


@pytest.fixture(scope="module")
def clouds(tmp_path_factory) -> Path:
    return shapes(tmp_path_factory.mktemp("clouds"))


def _each_once(result: PipelinesResult, epochs: int) -> None:
    expected = {epoch: list(range(epoch * EPOCH, (epoch + 1) * EPOCH)) for epoch in range(epochs)}
    assert result.seen == expected, "each minibatch once an epoch"


@pytest.mark.parametrize("rule", sorted(RULES))
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
