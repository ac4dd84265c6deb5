"""Pipelines whose plans change while others train: each minibatch once, averages as before, records that say so."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
import torch
from pipeline_jobs import OfFirstStage, PipelinesResult, pipelines_of
from processes import ENOUGH, until
from replayed_pipelines import Replay, same_ends
from runtime_jobs import NORMED, settings, shapes

from sparsepipe.launching import Job, launch
from sparsepipe.util.io.files import read_rows
from sparsepipe.values.plan import Plan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FLUSH = {"schedule": "1f1b-flush", "num_microbatches": 1}
EPOCH, EPOCHS = 5, 6  # minibatches
NOTE = "ignore:the plan's memory need could not be checked before the run"  # of plans by hand, without a profile


@pytest.fixture(scope="module")
def clouds(tmp_path_factory) -> Path:
    return shapes(tmp_path_factory.mktemp("clouds"))


def _cut(rule: str, *cuts: int) -> Plan:
    """Two pipelines of two stages, the second of which begins at these layers."""
    return pipelines_of(
        NORMED, [[0], [1]], [[2], [3]], rule=rule, cuts={k: (cut,) for k, cut in enumerate(cuts)}, **FLUSH
    )


def _step(job: Job, minibatch: int) -> None:
    until(lambda: any(row.get("minibatch", -1) >= minibatch for row in job.rows), f"minibatch {minibatch}")


def _moved(job: Job, rule: str) -> int:
    """Have the first pipeline move while both train; return the first minibatch after that. The run is whole then."""
    _step(job, 4)
    other = _cut(rule, 11, 9)
    first = job.replan(other, reason="a test")
    assert job.record.plan == other and first is not None
    summary = job.wait(timeout=ENOUGH)
    assert job.state == "finished" and summary["minibatches"] == EPOCHS * EPOCH
    seen = PipelinesResult(job.record.folder).seen
    assert sum((seen[epoch] for epoch in range(EPOCHS)), []) == list(range(EPOCHS * EPOCH)), "each once"
    (row,) = job.record.metrics("replan")
    assert row["pipeline"] == 0 and row["minibatch"] == first and row["reason"] == "a test" and row["moved_bytes"] > 0
    assert [one["minibatch"] for one in summary["replans"]] == [first]
    moved, still = job.record.pipelines
    assert [own for _, own in moved.plans] == [_cut(rule, 5, 9).local(0), other.local(0)]
    assert [own for _, own in still.plans] == [other.local(1)], "the other's plan stays"
    assert not [row for row in read_rows(job.record.folder / "minibatches.jsonl") if row["event"] == "left"]
    return first


@pytest.mark.filterwarnings(NOTE)
@pytest.mark.parametrize("rule", ["all-reduce", "diloco:every=2,overlap=false"])
def test_a_pipeline_moves_and_trains_as_one_that_does_not(tmp_path, clouds, rule) -> None:
    """Worked out again in one process, by who took which minibatch and which contributions met: to the same bits."""
    config = settings(clouds, model=NORMED, epochs=EPOCHS, momentum=0.0, stragglers="jitter:p=1,seconds=0.3")
    job = launch(_cut(rule, 5, 9), config, run_dir=tmp_path / "run")
    _moved(job, rule)
    result = OfFirstStage(job.record.folder)
    alone = pipelines_of(NORMED, [[0]], [[1]], rule=rule, **FLUSH)
    same_ends(result, Replay(result, alone, config, epoch_minibatches=EPOCH).run())


@pytest.mark.filterwarnings(NOTE)
@pytest.mark.parametrize("rule", ["ad-psgd", "wsp:every=2"])
def test_what_is_under_way_is_settled_before_layers_move(tmp_path, clouds, rule) -> None:
    """Of rules whose stages take results at updates of their own: all of it is done, and nobody is given up."""
    config = settings(clouds, model=NORMED, epochs=EPOCHS, stragglers="jitter:p=1,seconds=0.3")
    job = launch(_cut(rule, 5, 9), config, run_dir=tmp_path / "run")
    _moved(job, rule)
    merges = read_rows(job.record.folder / "merges.jsonl")
    contributed = {(row["pipeline"], row["contribution"]) for row in merges if row["event"] == "contribution"}
    decided = [row for row in merges if row["event"] == "merge"]
    assert contributed <= {pair for row in decided for pair in zip(row["members"], row["contributions"], strict=True)}
    assert all(torch.isfinite(tensor).all() for tensor in PipelinesResult(job.record.folder).tensors().values())


@pytest.mark.filterwarnings(NOTE)
@pytest.mark.parametrize("moment", ["asked", "written"])
def test_a_rank_killed_during_a_move_comes_back_under_the_old_plan_or_the_new(tmp_path, clouds, moment) -> None:
    """As soon as the move is asked for, or its plan written down. Its pipeline takes its weights from the other."""
    rule = "partial-reduce"
    config = settings(clouds, model=NORMED, epochs=8, stragglers="jitter:p=1,seconds=0.3", max_restarts=1)
    job = launch(_cut(rule, 5, 9), config, run_dir=tmp_path / "run")
    _step(job, 4)
    other, moving = _cut(rule, 11, 9), job.record.pipelines[0]
    job.replan(other, wait=False)
    if moment == "written":
        until(lambda: moving.plan == other.local(0), "the plan is written")
    os.kill(int((moving.folder / "logs" / "rank1.pid").read_text()), signal.SIGKILL)
    summary = job.wait(timeout=ENOUGH)
    assert job.state == "finished" and summary["minibatches"] == 8 * EPOCH
    told = Counter(row["minibatch"] for row in job.record.metrics("step"))
    assert told == dict.fromkeys(range(8 * EPOCH), 1), "each once"
    assert [line.partition(":")[0] for line in job.record.status["went_on"]] == ["pipeline 0"], "it came back"
    assert moving.plan == (other.local(0) if moment == "written" else moving.plan)
    assert job.record.plan.local(0) == moving.plan, "the record of all says the same"


@pytest.mark.filterwarnings(NOTE)
def test_a_run_cancelled_during_a_move_is_resumed(tmp_path, clouds) -> None:
    rule = "local-sgd:every=2,overlap=false"
    config = settings(clouds, model=NORMED, epochs=6, stragglers="jitter:p=1,seconds=0.3")
    run, other = {"run_dir": tmp_path / "run"}, _cut(rule, 11, 9)
    job = launch(_cut(rule, 5, 9), config, **run)
    until(lambda: job.record.metrics("epoch"), "a checkpoint")
    job.replan(other, wait=False)
    moving = job.record.pipelines[0]
    until(lambda: moving.plan == other.local(0), "the plan is written")
    job.cancel()
    again = launch(job.record.plan, config, resume=True, **run)
    assert again.wait(timeout=ENOUGH)["minibatches"] == 6 * EPOCH and again.state == "finished"
    told = Counter(row["minibatch"] for row in again.record.metrics("step"))
    assert told == dict.fromkeys(range(6 * EPOCH), 1), "each once"
