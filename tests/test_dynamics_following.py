"""Jobs that change their plan by themselves: a replay whose rank becomes slow, and what is refused before a launch."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from coded import mentions, raises
from command_line import sparsepipe
from dynamics_worlds import cpus, network
from processes import ENOUGH, until

import sparsepipe as sp
from sparsepipe import Plan, RunConfig, partition
from sparsepipe.data.shapes import make_shapes
from sparsepipe.monitoring.drift_file import Alarm, DriftFile
from sparsepipe.monitoring.following import DECISIONS, Following
from sparsepipe.monitoring.launching import launch
from sparsepipe.monitoring.of_runs import drift_of
from sparsepipe.records import Origin, RunRecord
from sparsepipe.values.replication import parse_rule

CONFIG = RunConfig("net", "replay", engine="replay", batch_size=1, minibatches=75, timeout_seconds=120)


@pytest.mark.slow
def test_a_replay_moves_layers_away_from_a_rank_that_becomes_slow(tmp_path):
    """Four times as slow: no load of the machine that runs tests makes more of it, or hides it."""
    profile, cluster = network(seconds=[0.006] * 12), cpus(2)
    plan, told = partition(profile, cluster), list[str]()
    settings = {"profile": profile, "cluster": cluster, "stragglers": "slow:rank=1,factor=4,from=20"}
    job = launch(plan, CONFIG, run_dir=tmp_path / "run", replan="live", tell=told.append, **settings)
    summary = job.wait(timeout=300)
    assert summary["minibatches"] == 75
    newest = job.record.plan
    work = sum(
        len(stage.layers) * share / sum(stage.shares)
        for stage in newest.stages
        for rank, share in zip(stage.ranks, stage.shares, strict=True)
        if rank == 1
    )
    assert work < 6, "it has less to do at the end"
    rows = [json.loads(line) for line in (job.record.folder / DECISIONS).read_text().splitlines()]
    changed = [row for row in rows if row["event"] == "changed"]
    assert [row["minibatch"] for row in changed] == [row["minibatch"] for row in summary["replans"]]
    assert [first for first, _ in job.record.plans] == [0, *(row["minibatch"] for row in changed)]
    assert all(row["predicted_gain_seconds"] > row["predicted_cost"]["seconds"] for row in rows if row.get("changes"))
    assert any(alarm["rank"] == 1 and alarm["factor"] > 2 for alarm in job.record.drift() if "rank" in alarm)
    outcomes = [row for row in rows if row["event"] == "outcome"]
    assert all(row["measured_share"] <= 1 and row["predicted_share"] > 0 for row in outcomes)
    assert len(outcomes) == sum("; predicted: " in line for line in told)
    assert any("another plan" in line for line in told) and any("from minibatch" in line for line in told)
    forwards = [s.minibatch for s in job.record.trace().spans if (s.stage, s.kind) == (0, "forward")]
    assert sorted(forwards) == list(range(75)), "each minibatch once"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_replay_leaves_out_a_rank_that_stands_almost_still_and_takes_it_back(tmp_path):
    """So slow that any layer would hold the others up; when it is itself again its process shows that, as it stays."""
    profile, cluster = network(seconds=[0.003] * 12), cpus(3)
    config = replace(CONFIG, minibatches=20_000)
    settings = {"profile": profile, "cluster": cluster, "stragglers": "slow:rank=0,factor=15,from=20,to=120"}
    job = launch(partition(profile, cluster), config, run_dir=tmp_path / "run", replan="live", **settings)
    until(lambda: 0 not in job.record.plan.ranks, "left out")
    until(lambda: 0 in job.record.plan.ranks, "taken back")
    job.stop()
    done = job.wait(timeout=ENOUGH)["minibatches"]
    # Under a plan of replicas rows are in the order in which these are done.
    assert done > 120 and sorted(row["minibatch"] for row in job.record.metrics("step")) == list(range(done))
    rows = job.record.metrics("left_out")
    assert {row["rank"] for row in rows} == {0}
    assert max(row["probe_seconds"] for row in rows) > 5 * min(row["probe_seconds"] for row in rows)
    drift = drift_of(job.record)
    first, *later = [alarm.slower for alarm in drift.alarms if alarm.rank == 0]
    assert first and not all(later), "slow, and, on however busy a machine, quicker again"


@pytest.mark.slow
def test_a_job_can_be_followed_from_a_cell_and_left_alone(tmp_path):
    profile, cluster = network(seconds=[0.002] * 8), cpus(2)
    config, plan, told = replace(CONFIG, minibatches=20_000), partition(profile, cluster), list[str]()
    layers = [layer for stage in plan.stages for layer in stage.layers]
    parts = zip(plan.stages, (layers[:5], layers[5:]), strict=True)
    other = replace(plan, stages=tuple(replace(stage, layers=tuple(own)) for stage, own in parts), estimate=None)
    job = sp.launch(plan, config, run_dir=tmp_path / "run", profile=profile, cluster=cluster)
    with Following(job, "never", tell=told.append) as following:
        until(lambda: job.rows, "its first row")
        first = job.replan(other)
        until(lambda: following.plan == other, "who follows knows of the plan that others asked for")
        job.stop()
        assert job.wait(timeout=ENOUGH)["minibatches"] > first and job.state == "stopped"
    assert not following.fault and not any(made.changes for _, made in following.decisions)
    assert [line for line in told if mentions(line, f"minibatch {first}")]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"replan": "always"}, ("replan.unknown", "always", "never, epoch, measured, predicted, live")),
        ({"replan": "live"}, ("replan.no_profile", "live")),
        ({"replan": "live", "detach": True}, ("replan.detached",)),
        ({"replan": "live", "profile": network(12)}, ("replan.no_profile",)),
        ({"replan": "live", "profile": network(11), "cluster": cpus(2)}, ("plan.violations", "the plan cannot run")),
        ({"replan": "live", "profile": network(12), "cluster": cpus(1)}, ("plan.violations", "the plan cannot run")),
    ],
)
def test_what_cannot_be_followed_is_refused_before_anything_is_started(tmp_path, given, error):
    with raises(*error) as caught:
        launch(partition(network(12), cpus(2)), CONFIG, run_dir=tmp_path / "run", **given)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["all-reduce", "partial-reduce"])
def test_the_pipeline_whose_rank_becomes_slow_moves_alone(tmp_path, rule):
    """Four times as slow: its layers go to the pipeline's other rank; the other pipeline keeps its plan."""
    profile, cluster, told = network(seconds=[0.006] * 12), cpus(4), list[str]()
    plan = Plan.alike(partition(profile, cluster.part([0, 1])), 2, parse_rule(rule))
    settings = {"profile": profile, "cluster": cluster, "stragglers": "slow:rank=3,factor=4,from=20"}
    config = replace(CONFIG, minibatches=160)
    job = launch(plan, config, run_dir=tmp_path / "run", replan="live", tell=told.append, **settings)
    summary = job.wait(timeout=300)
    assert summary["minibatches"] == 160 and not job.record.status.get("went_on")
    assert sorted(row["minibatch"] for row in job.record.metrics("step")) == list(range(160)), "each once"
    still, moved = job.record.pipelines
    assert [own for _, own in still.plans] == [plan.local(0)] and len(moved.plans) > 1
    rows = [json.loads(line) for line in (moved.folder / DECISIONS).read_text().splitlines()]
    changed = [row["minibatch"] for row in rows if row["event"] == "changed"]
    assert [first for first, _ in moved.plans] == [0, *changed]
    assert [(row["pipeline"], row["minibatch"]) for row in summary["replans"]] == [(1, first) for first in changed]
    assert job.record.plan.local(1) == moved.plan and set(moved.plan.ranks) == {0, 1}, "it keeps its ranks"
    assert any(alarm["rank"] == 3 and alarm["pipeline"] == 1 for alarm in job.record.drift() if "rank" in alarm)
    assert any(line.startswith("pipeline 1: minibatch") for line in told)
    code, out, _ = sparsepipe("runs", "show", tmp_path / "run")
    assert code == 0 and mentions(out, "pipeline 1", f"minibatch {changed[0]}")
    drift = drift_of(job.record)
    ranks = {alarm.rank for alarm in drift.alarms if alarm.slower}
    assert ranks - {None} == {3}  # None: a link, which other work delays


def test_pipelines_that_find_drifts_at_once_write_each_to_the_record(tmp_path):
    record = RunRecord.create(tmp_path / "run", partition(network(12), cpus(2)), CONFIG.to_json(), Origin.here())
    drift, rows = DriftFile(record.folder), range(60)
    alarms = [Alarm(minibatch=m, began=m, factor=2.0, before=1.0, seconds=0.1, rank=m % 3) for m in rows]
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda alarm: drift.add([alarm]), alarms))
    drift.close()
    assert sorted(row["minibatch"] for row in record.drift()) == list(rows)


def test_run_wants_the_profile(tmp_path):
    plan = partition(network(12), cpus(2)).save(tmp_path / "plan.json")
    data = make_shapes(tmp_path / "shapes", num_train=2, num_test=1, seed=0)
    words = ("run", plan, "--model", "minkvgg11bn-narrow", "--data", data, "--run-dir", tmp_path / "run")
    code, out, lines = sparsepipe(*words, "--replan", "live")
    assert (
        code == 2
        and not out
        and "give --expect [TYPE=]FILE, and --cluster FILE" in lines[-1]
        and lines[-1].endswith("[replan.no_profile]")
    )
