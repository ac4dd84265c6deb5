"""Records and checkpoints that version 0.1.0 wrote are read, and their runs continue."""

import shutil
from pathlib import Path

import pytest

from sparsepipe import RunRecord, launch
from sparsepipe.runtime import RunConfig
from sparsepipe.util.io.files import read_json
from sparsepipe.values.plan import Plan

RECORDS = Path(__file__).parent / "records_0_1_0"
MINIBATCHES = 8  # in two epochs


@pytest.fixture
def records(tmp_path, monkeypatch):
    """The records, where they may be written to, with the network they name by a relative path."""
    shutil.copytree(RECORDS, tmp_path / "records")
    monkeypatch.chdir(tmp_path / "records")
    return tmp_path / "records"


def losses(folder):
    rows = {row["minibatch"]: row["loss"] for row in RunRecord.load(folder).metrics("step")}
    return [rows[m] for m in sorted(rows)]


@pytest.mark.parametrize("name", ["one", "several"])
def test_a_record_is_read(name):
    record = RunRecord.load(RECORDS / name)
    assert record.status["state"] == "finished" and record.origin["versions"]["sparsepipe"] == "0.1.0"
    assert bool(record.plan.members) is (name == "several")
    assert len(losses(RECORDS / name)) == MINIBATCHES and set(record.trace().ranks) == {0, 1}
    assert len(record.frame("step")) == MINIBATCHES and len(record.frame("epoch")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "several"])
def test_a_run_continues_from_its_checkpoint(records, name):
    plan = Plan.load(records / name / "plan.json")
    config = RunConfig.from_json(read_json(records / name / "config.json"))
    more, before = config.replace(epochs=3), losses(records / name)
    job = launch(plan, more, run_dir=records / name, resume=True)
    job.wait()
    after = losses(records / name)
    assert job.state == "finished" and after[:MINIBATCHES] == before and len(after) == 12
    if name == "one":  # several take minibatches as they come
        launch(plan, more, run_dir=records / "fresh").wait()
        assert losses(records / "fresh") == pytest.approx(after, rel=1e-5)
