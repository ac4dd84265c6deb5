"""Pipelines whose plans change while others train: each minibatch once, averages as before, records that say so."""

from pathlib import Path

import pytest
from coded import raises
from pipeline_jobs import PipelinesResult, pipelines_of
from processes import ENOUGH, until
from replayed_pipelines import Replay, same_ends
from runtime_jobs import NORMED, settings, shapes

from sparsepipe.launchers import Job, launch
from sparsepipe.plan import Plan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FLUSH = {"schedule": "1f1b-flush", "num_microbatches": 1}
EPOCH, EPOCHS = 5, 6  # minibatches
NOTE = "ignore:whether there is memory for the plan could not be told beforehand"  # of plans by hand, without a profile


@pytest.fixture(scope="module")
def clouds(tmp_path_factory) -> Path:
    return shapes(tmp_path_factory.mktemp("clouds"))


class OfFirstStage(PipelinesResult):
    """What the first stage of each pipeline took of merges: the others took the same, however many there are."""

    def lines(self, name: str) -> list[dict]:
        return [row for row in super().lines(name) if row["event"] != "applied" or row["stage"] == 0]


def _cut(rule: str, *cuts: int) -> Plan:
    """Two pipelines of two stages, the second of which begins at these layers."""
    return pipelines_of(NORMED, [[0], [1]], [[2], [3]], rule=rule, cuts={k: (cut,) for k, cut in enumerate(cuts)}, **FLUSH)


def _step(job: Job, minibatch: int) -> None:
    until(lambda: any(row.get("minibatch", -1) >= minibatch for row in job.rows), f"minibatch {minibatch}")


@pytest.mark.filterwarnings(NOTE)
@pytest.mark.parametrize("rule", ["all-reduce", "local-sgd:every=2", "partial-reduce", "ad-psgd", "wsp:every=2", "diloco:every=2", "quorum"])
def test_a_pipeline_moves_and_trains_as_one_that_does_not(tmp_path, clouds, rule) -> None:
    """Worked out again in one process, by who took which minibatch and which contributions met: to the same bits."""
    plan, other = _cut(rule, 5, 9), _cut(rule, 11, 9)
    config = settings(clouds, model=NORMED, epochs=EPOCHS, momentum=0.0, stragglers="jitter:p=1,seconds=0.3")
    job = launch(plan, config, run_dir=tmp_path / "run")
    _step(job, 4)
    first = job.replan(other, reason="a test")
    assert job.record.plan == other and first is not None
    summary = job.wait(timeout=ENOUGH)
    assert job.state == "finished" and summary["minibatches"] == EPOCHS * EPOCH
    result = OfFirstStage(job.record.folder)
    assert sum((result.seen[epoch] for epoch in range(EPOCHS)), []) == list(range(EPOCHS * EPOCH)), "each once"
    (row,) = job.record.metrics("replan")
    assert row["pipeline"] == 0 and row["minibatch"] == first and row["reason"] == "a test" and row["moved_bytes"] > 0
    assert [one["minibatch"] for one in summary["replans"]] == [first]
    moved, still = job.record.pipelines
    assert [own for _, own in moved.plans] == [plan.local(0), other.local(0)]
    assert [own for _, own in still.plans] == [plan.local(1)], "the other's plan stays"
    alone = pipelines_of(NORMED, [[0]], [[1]], rule=rule, **FLUSH)
    same_ends(result, Replay(result, alone, config, epoch_minibatches=EPOCH).run())
