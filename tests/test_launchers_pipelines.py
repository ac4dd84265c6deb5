"""Jobs of several pipelines on this machine: they end, are killed, stopped and resumed as they should."""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from coded import mentions, raises
from pipeline_jobs import pipelines_of, replayed_pipelines
from processes import ENOUGH, processes_of, until
from runtime_jobs import NORMED, PLAIN, plan_of, settings, shapes

from sparsepipe.launching import attach, launch
from sparsepipe.launching.pipelines_parent import rejoined
from sparsepipe.launching.resuming import RESUME, go_on_from_checkpoint
from sparsepipe.planning.simulator import simulate_pipelines
from sparsepipe.records import RunRecord
from sparsepipe.util.host.imports import python_environment
from sparsepipe.util.io.files import read_json, read_rows, write_json, write_rows
from sparsepipe.values.stragglers import Stragglers

slow = pytest.mark.slow
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def clouds(tmp_path_factory) -> Path:
    return shapes(tmp_path_factory.mktemp("clouds"))


def _trained_once(record: RunRecord, count: int) -> None:
    told = Counter(row["minibatch"] for row in record.metrics("step"))
    assert told == dict.fromkeys(range(count), 1), "each minibatch once"


def _rows(record: RunRecord, event: str) -> list[dict]:
    return [row for row in read_rows(record.folder / "minibatches.jsonl") if row["event"] == event]


@slow
def test_a_pipeline_whose_rank_is_killed_comes_back_while_the_other_goes_on(tmp_path) -> None:
    plan, config, profile, cluster = replayed_pipelines((2, 1), rule="partial-reduce", seconds=0.08)
    config = config.replace(minibatches=180, max_restarts=1)
    job = launch(
        plan, config, run_dir=tmp_path / "run", profile=profile, cluster=cluster, stragglers="kill:rank=1,at=20"
    )
    summary = job.wait(timeout=ENOUGH)
    assert job.state == "finished" and summary["minibatches"] == 180
    _trained_once(job.record, 180)
    joined = [(row["pipeline"], row["attempt"]) for row in _rows(job.record, "joined")]
    assert joined[-1] == (0, 1) and sorted(joined) == [(0, 0), (0, 1), (1, 0)]
    (told,) = job.record.status["went_on"]
    assert re.fullmatch(r"pipeline 0: .*\d+\.\d s .*\d+\.\d s .*\d+ minibatch(es)? .*", told)
    taken = Counter(m for row in _rows(job.record, "taken") for m in row["minibatches"])
    back = {m for row in _rows(job.record, "put back") for m in row["minibatches"]}
    assert {m for m, times in taken.items() if times > 1} <= back and len(back) <= 8, "what was in flight"
    assert len(job.record.pipelines) == 2 and job.record.trace().ranks == (0, 1, 2)
    # Each takes its share as in a simulation in which the pipeline is gone for as long, in minibatches of the other.
    died = next(row["seconds"] for row in _rows(job.record, "left") if row["pipeline"] == 0)
    back = next(row["seconds"] for row in _rows(job.record, "joined") if row["attempt"] == 1)
    meanwhile = [row for row in _rows(job.record, "done") if row["pipeline"] == 1 and died < row["seconds"] < back]
    gone = 0.16 * sum(len(row["minibatches"]) for row in meanwhile)  # whatever the machine's own pace is
    facts = {"stragglers": Stragglers.parse("kill:rank=1,at=20"), "restart_seconds": gone}
    simulated = simulate_pipelines(plan, profile, cluster, [1.0] * 180, **facts)
    for k, own in enumerate(simulated.pipelines):
        done = sum(len(row["minibatches"]) for row in _rows(job.record, "done") if row["pipeline"] == k)
        assert done == pytest.approx(own.minibatches, abs=12)
    until(lambda: not processes_of(tmp_path / "run"), "end of all processes")


@slow
def test_a_coordinator_that_is_killed_is_replaced_and_nothing_is_lost(tmp_path) -> None:
    plan, config, profile, cluster = replayed_pipelines((1, 1), rule="local-sgd:every=4", seconds=0.02)
    config = config.replace(minibatches=300)  # so that it is not over before it is killed
    job = launch(plan, config, run_dir=tmp_path / "run", profile=profile, cluster=cluster)
    until(lambda: len(job.record.metrics("step")) > 20, "some minibatches")
    (pid,) = (p for p, words in processes_of(tmp_path / "run").items() if "pipelines.service" in words)
    os.kill(pid, signal.SIGKILL)
    assert job.wait(timeout=ENOUGH)["minibatches"] == 300
    _trained_once(job.record, 300)


def test_what_is_told_of_a_pipeline_that_came_back_is_what_the_others_did_meanwhile(tmp_path) -> None:
    """A pipeline died and joined again, and the end of the run did not say so."""
    done = {"event": "done", "seconds": 2.5, "pipeline": 0, "minibatches": [3, 4]}
    came_back = [
        {"event": "left", "seconds": 2.0, "pipeline": 1, "attempt": 0},
        done,
        {"event": "joined", "seconds": 3.25, "pipeline": 1, "attempt": 1},
    ]
    beside = [{"event": "joined", "seconds": 0.1, "pipeline": 1, "attempt": 0}, done, *came_back, done]
    beside += [{"event": "left", "seconds": 4.0, "pipeline": 0, "attempt": 0}]  # and does not come back
    write_rows(tmp_path / "minibatches.jsonl", beside)
    told = "pipeline 1: ended 2.0 s after the start and trained again from 3.2 s on; the others trained 2 minibatches "
    assert list(rejoined(tmp_path)) == [f"{told}meanwhile"]
    write_rows(tmp_path / "minibatches.jsonl", [*came_back, {"event": "resume", "seconds": 5.0, "minibatches": 5}])
    assert not list(rejoined(tmp_path)) and not list(rejoined(tmp_path / "none"))


def test_the_end_says_which_pipeline_the_others_went_on_without(tmp_path) -> None:
    """Half of a run's pipelines died, and all that was said of it were its fewer samples per second."""
    plan, config, profile, cluster = replayed_pipelines((1, 1), rule="all-reduce", seconds=0.01)
    config = config.replace(minibatches=40, stragglers="kill:rank=0,at=5")
    job = launch(plan, config, run_dir=tmp_path / "run", profile=profile, cluster=cluster)
    assert job.wait(timeout=ENOUGH)["minibatches"] == 40 and job.state == "finished"
    (told,) = job.record.status["went_on"]
    assert mentions(told, "pipeline 0", "rank 0"), told


@slow
def test_a_job_of_pipelines_stops_resumes_and_is_cancelled(tmp_path, clouds) -> None:
    plan = pipelines_of(NORMED, [[0]], [[1]], rule="local-sgd:every=2")
    config = settings(clouds, model=NORMED, epochs=10_000, momentum=0.0)
    job = launch(plan, config, run_dir=tmp_path / "run")
    until(lambda: len(job.record.metrics("step")) > 12, "some minibatches")
    job.stop()
    stopped = job.wait(timeout=ENOUGH)
    assert job.state == "stopped" and 12 < stopped["minibatches"] < 50_000
    assert {one.status["state"] for one in (job.record, *job.record.pipelines)} == {"stopped"}
    again = launch(plan, config, run_dir=tmp_path / "run", resume=True)
    until(lambda: len(again.record.metrics("step")) > stopped["minibatches"] + 12, "it goes on")
    told = Counter(row["minibatch"] for row in again.record.metrics("step"))
    assert max(told.values()) == 1 and len(told) > stopped["minibatches"], "none is done twice"
    assert attach(tmp_path / "run").running
    attach(tmp_path / "run").cancel()
    until(lambda: not again.running and not processes_of(tmp_path / "run"), "end of all processes")
    assert again.record.status["state"] == "cancelled"
    assert [one.status["state"] for one in again.record.pipelines] == ["cancelled"] * 2
    _goes_on_from_what_its_rows_tell_of(tmp_path / "run")


def _goes_on_from_what_its_rows_tell_of(folder) -> None:
    """Of a host that was lost the newest checkpoint had come, and not the rows before it: two steps were missing."""

    def chosen():
        go_on_from_checkpoint(folder)
        return read_json(folder / RESUME)

    def done(progress):
        each, left = progress["epoch_minibatches"], {int(epoch): own for epoch, own in progress["left"].items()}
        first = min(left, default=progress["done"] // each)
        past = set(range(first * each))
        return past | {epoch * each + m for epoch, own in left.items() for m in range(each) if m not in own}

    newest = chosen()
    place = folder / "checkpoints" / newest["checkpoint"]
    place.rename(folder / "aside")
    older = chosen()
    (folder / "aside").rename(place)
    assert older["done"] < newest["done"] and chosen() == newest
    rows = read_rows(folder / "metrics.jsonl")
    lost = max(done(newest) - done(older))
    write_rows(folder / "metrics.jsonl", [row for row in rows if row.get("minibatch") != lost])
    assert chosen() == older
    write_rows(folder / "metrics.jsonl", [row for row in rows if row["event"] != "step"])
    assert chosen() == newest, "no checkpoint has all of its rows: weights are worth more"


PARENT = """
import json, sys, time
from pathlib import Path
from sparsepipe.values.cluster import Cluster
from sparsepipe.launching import launch
from sparsepipe.values.plan import Plan
from sparsepipe.values.profile import Profile
from sparsepipe.runtime.pipelines.journal import RESUME
from sparsepipe.runtime import RunConfig
folder = Path(sys.argv[1])
read = lambda kind, name: kind.from_json(json.loads((folder / f"{name}.json").read_text()))
given = {"profile": Profile.load(folder / "profile.json"), "cluster": Cluster.load(folder / "cluster.toml")}
job = launch(read(Plan, "plan"), read(RunConfig, "config"), run_dir=folder / "run", **given)
while not job.record.metrics("step"):
    time.sleep(0.05)
print("running", flush=True)
time.sleep(600)
"""


@slow
@pytest.mark.parametrize("victim", ["guard", "launcher"])
def test_nobody_is_left_when_a_process_above_pipelines_is_killed(tmp_path, victim) -> None:
    plan, config, profile, cluster = replayed_pipelines((2, 1), rule="partial-reduce", seconds=0.03)
    (tmp_path / "cluster.toml").write_text(cluster.to_toml())
    given = {"plan": plan, "profile": profile, "config": config.replace(minibatches=20_000)}
    for name, value in given.items():
        write_json(tmp_path / f"{name}.json", value.to_json())
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, env=python_environment(), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "running\n"
        record, rank = RunRecord.load(tmp_path / "run"), "-m sparsepipe.runtime --run-dir"
        until(lambda: str(processes_of(tmp_path / "run")).count(rank) == 3, "three ranks")
        until(lambda: all("launcher" in one.status for one in record.pipelines), "their launchers are known")
        begun, status = processes_of(tmp_path / "run"), record.status
        assert len(begun) == 8, "a guard, a parent, a coordinator, two launchers, three ranks"
        launchers = {begun[one.status["launcher"]].split()[-1] for one in record.pipelines}
        assert launchers == {str(one.folder) for one in record.pipelines}, "forked from the parent, known by name"
        os.kill(status[victim], signal.SIGKILL)
        until(lambda: not processes_of(tmp_path / "run"), "end of all processes")
        parent.kill()
    if victim != "guard":  # nobody is left to say it then: the parent is dead too
        until(lambda: RunRecord.load(tmp_path / "run").status["state"] == "failed", "failed")
    assert RunRecord.load(tmp_path / "run").metrics("step")


def test_what_pipelines_cannot_do_is_told_in_one_line(tmp_path) -> None:
    plan, config, profile, cluster = replayed_pipelines((1, 1), rule="partial-reduce", seconds=0.01)
    given = {"run_dir": tmp_path / "run", "profile": profile, "cluster": cluster}
    for options, error in (
        ({"stragglers": "slow:rank=2,factor=4"}, ("straggler.rank_unknown", "2")),
        ({"stragglers": "slow:rank=1"}, ("option.missing", "factor")),
        ({"replication": "nobody"}, ("replication.unknown",)),
        ({"replication": "quorum:quorum=3"}, ("plan.violations", "3")),
        ({"port": 29500}, ("port.of_several_pipelines",)),
    ):
        with raises(*error) as found:
            launch(plan, config, **given, **options)
        assert "\n" not in str(found.value)
        assert not (tmp_path / "run" / "plan.json").exists(), "nothing is begun"
    with raises("replication.one_pipeline"):
        launch(plan.local(0), config, **given, replication="local-sgd")
    with raises("straggler.rank_unknown", rank=1):
        launch(plan.local(0), config, **given, stragglers="slow:rank=1,factor=2")
    unlike = pipelines_of(PLAIN, [[0, 1], [2]], [[3]], rule="all-reduce")
    with raises("schedule.units_differ"):
        launch(unlike, settings(tmp_path), run_dir=tmp_path / "run")
    assert plan_of(PLAIN, [[0]]).layers == unlike.pipelines[1].layers


@slow
def test_a_run_that_ended_within_an_epoch_goes_on_to_a_later_end(tmp_path, clouds) -> None:
    """As of one pipeline: the epoch is trained to its end, its row is of all of it; what cannot be changes nothing."""
    plan = pipelines_of(NORMED, [[0]], [[1]], rule="all-reduce")
    config = settings(clouds, model=NORMED, minibatches=4)
    run = {"run_dir": tmp_path / "run"}
    assert launch(plan, config, **run).wait(timeout=ENOUGH)["minibatches"] == 4
    before = {path: path.read_bytes() for path in (tmp_path / "run").glob("*.json*")}
    with raises("resume.ends_before"):
        launch(plan, config.replace(minibatches=3), resume=True, **run)
    assert {path: path.read_bytes() for path in (tmp_path / "run").glob("*.json*")} == before
    job = launch(plan, config.replace(minibatches=8), resume=True, **run)
    assert job.wait(timeout=ENOUGH)["minibatches"] == 8 and job.state == "finished"
    _trained_once(job.record, 8)
    assert [row["epoch"] for row in job.record.metrics("epoch")] == [0, 1]
    assert [row["train"]["minibatches"] for row in job.record.metrics("epoch")] == [5, 3]
