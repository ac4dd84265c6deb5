"""Runs over ssh that lose hosts: they go on from the last checkpoint on those left, or once the host is back."""

import json
import shutil

import pytest
from coded import mentions
from hosts_desk import FLUSH, MODEL, config
from processes import ENOUGH, until
from runtime_jobs import plan_of

from sparsepipe.records import RunRecord
from sparsepipe.util.io.files import read_json

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def log_of(desk, name):
    path = desk.folder / name / "logs" / "launcher.log"
    return path.read_text() if path.exists() else ""


def await_first_checkpoint(desk, name, process):
    """Wait until the record has one; the run ends in minutes at the soonest, since a rank stands still or dawdles."""
    folder = desk.folder / name / "checkpoints"
    until(lambda: (folder / "minibatch-00000005").exists() or process.poll() is not None, "a checkpoint")
    assert process.poll() is None


def test_a_run_waits_for_a_host_whose_cable_was_pulled(desk):
    first, second, _ = desk.network.hosts
    more = {"max_restarts": 1, "on_lost_host": "wait", "timeout_seconds": 8}
    slow = config(stragglers="jitter:rank=1,p=1,seconds=1", **more)
    told = desk.told("back", plan_of(MODEL, [[0], [1]], **FLUSH), slow, first, second)
    with desk.launched(told) as process:
        await_first_checkpoint(desk, "back", process)
        desk.network.cut(second)
        until(lambda: "waiting for host2" in log_of(desk, "back") or process.poll() is not None, "the loss is told")
        desk.network.mend(second)
        said = process.communicate(timeout=ENOUGH)[0]
    assert json.loads(said) == "finished"
    assert "host2 is back" in log_of(desk, "back")
    assert desk.losses("back") == desk.losses("one")
    desk.check_nothing_is_left()


def test_hosts_that_die_one_after_the_other_are_planned_around_and_every_shard_is_elsewhere(desk):
    """The last host dies with all it had, then that of rank 0: the shards of both are in the record."""
    first, second, third = desk.network.hosts
    slow = "stop:rank=2,at=6,seconds=600;stop:rank=1,at=7,seconds=600"  # until their hosts are gone
    told = desk.told(
        "left",
        plan_of(MODEL, [[0], [1], [2]], **FLUSH),
        config(stragglers=slow, max_restarts=2, timeout_seconds=30),
        *(first, second, third),
    )
    with desk.launched(told) as process:
        await_first_checkpoint(desk, "left", process)
        third.process.kill()
        shutil.rmtree(third.home / ".local")
        until(lambda: "on host1, host2" in log_of(desk, "left") or process.poll() is not None, "another plan")
        until(lambda: desk.steps("left") >= 6 or process.poll() is not None, "more minibatches")
        first.process.kill()
        shutil.rmtree(first.home / ".local")
        said = process.communicate(timeout=ENOUGH)[0]
    assert json.loads(said) == "finished", said
    assert desk.losses("left") == desk.losses("one")
    log = log_of(desk, "left")
    assert mentions(log, "rank 2") and mentions(log, "host1", "host2", 2)
    assert mentions(log, "rank 0") and mentions(log, "host2", 1)
    record = RunRecord.load(desk.folder / "left")
    assert [line in log for line in record.status["went_on"]] == [True, True], "a run that succeeded tells what it lost"
    assert [len(followed.plan.stages) for followed in record.plans] == [3, 2, 1]
    assert [followed.first_minibatch for followed in record.plans] == [0, 5, 5]
    assert record.plan.stages[0].nodes == ("host2",)
    manifest = read_json(record.folder / "checkpoints" / "minibatch-00000010" / "manifest.json")
    assert set(manifest["files"]) == {"stage0.safetensors"}
