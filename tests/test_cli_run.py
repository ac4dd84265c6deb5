"""`sparsepipe run` end to end: real processes, what goes wrong, and going on from there."""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
from coded import mentions
from command_line import sparsepipe
from processes import ENOUGH

from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Plan, Profile, RunRecord, Stage, partition
from sparsepipe.cli.arguments import OPTIONS
from sparsepipe.cli.launches import run_lines
from sparsepipe.data import make_shapes
from sparsepipe.data.shapes import FAMILIES
from sparsepipe.launching import LAUNCHERS, SLURM
from sparsepipe.monitoring.variants import VARIANTS
from sparsepipe.networks import network
from sparsepipe.records import Origin
from sparsepipe.util.host.background_load import BackgroundLoad

MODEL = "minkvgg11bn-narrow"
IDS = tuple(row.id for row in network(MODEL, num_classes=2).rows)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "shapes"
    return make_shapes(folder, num_train=8, num_test=2, seed=0, families=list(FAMILIES)[:3])


@pytest.fixture
def plan(tmp_path):
    return Plan((Stage(IDS[:9], (0,)), Stage(IDS[9:], (1,)))).save(tmp_path / "plan.json")


def run(plan, shapes, folder, *more):
    """The words that train a plan."""
    settings = "--voxel-size 0.1 --batch-size 4 --engine native --threads 1 --num-points 256 --seed 3".split()
    return ["run", plan, "--model", MODEL, "--data", shapes, "--run-dir", folder, "--json", *settings, *more]


@pytest.mark.slow
def test_a_run_takes_its_settings_tells_what_it_reached_and_resumes(plan, shapes, tmp_path):
    more = "--features occupancy --task classification --optimizer adamw --learning-rate-schedule cosine".split()
    more += ["--cache", str(tmp_path / "cache"), "--compression", "bfloat16"]
    code, out, errors = sparsepipe(*run(plan, shapes, tmp_path / "run", "--epochs", 1, *more))
    assert code == 0, errors
    config = RunRecord.load(tmp_path / "run").config
    assert (config["optimizer"], config["compression"], config["features"]) == ("adamw", "bfloat16", ["occupancy"])
    assert any((tmp_path / "cache").rglob("*")), "samples are kept there"
    summary = json.loads(out)
    assert summary["minibatches"] == 6
    assert summary["samples_per_second"] > 0
    assert 0 <= summary["validation"]["accuracy"] <= 1
    assert len(summary["stages"]) == 2
    assert all(0 <= stage["busy_fraction"] <= 1 for stage in summary["stages"])
    assert summary["load"].keys() == BackgroundLoad().to_json().keys()
    assert summary["load"]["threads_per_processor"] == 2 / len(os.sched_getaffinity(0))
    (epoch,) = RunRecord.load(tmp_path / "run").metrics("epoch")
    assert epoch["load"].keys() == summary["load"].keys()
    code, out, _ = sparsepipe("run", "--resume", tmp_path / "run", "--epochs", 2, "--json")
    assert code == 0
    assert json.loads(out)["minibatches"] == 12
    assert RunRecord.load(tmp_path / "run").status["state"] == "finished"


@pytest.mark.slow
def test_pipedreams_conf_runs_to_the_depths_it_gives(shapes, tmp_path):
    """hybrid_conf.json with stage_to_depth_map and a module a layer; without depths 2 and 1 would be in flight."""
    conf = {
        "module_to_stage_map": [0] * 9 + [1] * (len(IDS) - 9) + [1],
        "stage_to_rank_map": {"0": [0], "1": [1]},
        "stage_to_depth_map": {"0": 3, "1": 0},
    }
    (tmp_path / "hybrid_conf.json").write_text(json.dumps(conf))
    words = run(tmp_path / "hybrid_conf.json", shapes, tmp_path / "run", "--minibatches", 6, "--no-validation")
    code, out, errors = sparsepipe(*words)
    assert code == 0, errors
    assert json.loads(out)["minibatches"] == 6
    record = RunRecord.load(tmp_path / "run")
    assert [stage.layers for stage in record.plan.stages] == [IDS[:9], IDS[9:]]
    for rank, most in ((0, 4), (1, 1)):
        deep = [0]
        for span in record.trace().spans:
            if span.rank == rank and span.kind in ("forward", "backward"):
                deep.append(deep[-1] + (1 if span.kind == "forward" else -1))
        assert (max(deep), deep[-1], len(deep)) == (most, 0, 13)
    _nothing_arrives_before_it_is_sent(record.trace().spans)


def _nothing_arrives_before_it_is_sent(spans):
    """The ranks' clocks are one, to 0.1 ms: in both directions, each wait for a packet ends after its send began."""
    sent = {(span.name[1], span.minibatch, span.rank): span.start for span in spans if span.kind == "send"}
    waits = [span for span in spans if span.kind == "wait" and span.peer >= 0]  # for a packet, not for all ranks
    assert len(sent) == len(waits) == 12
    for wait in waits:
        assert wait.end > sent[wait.name[1], wait.minibatch, wait.peer] - 1e-4, wait


@pytest.mark.slow
def test_a_loss_that_is_not_finite_ends_the_run_with_one_line_and_a_readable_record(plan, shapes, tmp_path):
    """A learning rate that blows the weights up."""
    code, out, errors = sparsepipe(*run(plan, shapes, tmp_path / "run", "--learning-rate", 1e30))
    assert (code, out) == (1, "")
    loss = r"the loss of minibatch \d+ \(epoch \d+\) is (nan|inf) in stage 1; "
    assert re.search(rf"rank 1 \(stage 1\): LossNotFinite: {loss}.*logs/rank1", errors[-1])
    assert "Traceback" not in "\n".join(errors)
    record = RunRecord.load(tmp_path / "run")
    assert record.status["state"] == "failed"
    assert record.plan == Plan.load(plan)
    assert record.metrics("step"), "the record stays readable"
    error = json.loads((tmp_path / "run/logs/rank1.error.json").read_text())
    assert "Traceback" in error["traceback"] and "LossNotFinite" in error["traceback"]


def test_a_port_in_use_is_refused_before_anything_starts(plan, shapes, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, errors = sparsepipe(*run(plan, shapes, tmp_path / "run", "--port", port))
    assert (code, out, len(errors)) == (2, "", 1)
    assert f"port {port} " in errors[0] and errors[0].endswith("[port.in_use]")
    assert not (tmp_path / "run").exists()


def test_what_a_run_would_do_without_in_silence_is_refused(plan, shapes, tmp_path):
    """Samples were not kept, which workers' logs alone told; a job of Slurm ended as the run within it was detached."""
    (tmp_path / "file").write_text("")
    for words, told in (
        (["--cache", tmp_path / "file" / "under"], "file/under: Not a directory; choose another path"),
        (
            ["--launcher", "slurm", "--detach"],
            "--detach does not apply to --launcher slurm, whose jobs are always detached",
        ),
    ):
        code, out, errors = sparsepipe(*run(plan, shapes, tmp_path / "run", *words))
        assert (code, out) == (2, "") and told in errors[-1]
    assert not (tmp_path / "run").exists()


def test_a_plan_with_more_stages_than_layers_is_refused(shapes, tmp_path):
    stages = (Stage(IDS, (0,)), Stage((), (1,)))
    plan = Plan(stages).save(tmp_path / "plan.json")
    code, _, errors = sparsepipe(*run(plan, shapes, tmp_path / "run"))
    assert (code, len(errors)) == (2, 1)
    assert "stage 1 " in errors[0] and errors[0].endswith("[plan.violations]")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_data_that_cannot_be_read_names_the_file(plan, tmp_path):
    broken = make_shapes(tmp_path / "shapes", num_train=4, num_test=1, seed=0, families=list(FAMILIES)[:2])
    victim = sorted(broken.rglob("train/*.off"))[0]
    victim.write_text(victim.read_text()[:200])
    code, out, errors = sparsepipe(*run(plan, broken, tmp_path / "run", "--epochs", 2, "--max-restarts", 3))
    assert (code, out) == (2, "")
    assert len(errors) == 1 and victim.name in errors[-1]
    assert not (tmp_path / "run").exists(), "it is refused before the run begins"


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("--loss clases", "--loss is 'clases': did you mean 'classes'?"),
        ("--augmentation shape", "--augmentation is 'shape': did you mean 'shapes'?"),
        ("--features ocupancy", "--features is 'ocupancy': did you mean 'occupancy'?"),
        ("--optimizer sgdd", "--optimizer is 'sgdd': did you mean 'sgd'?"),
        ("--data modelnet11", "unknown data set 'modelnet11', expected one of"),
        ("--data modelnet11", "did you mean 'modelnet10'?"),
        ("--data ./nowhere", "./nowhere: no such folder"),
    ],
)
def test_a_typo_is_told_before_a_run_is_made(plan, shapes, tmp_path, typo, meant):
    """A worker looked the name up: the run's folder stayed, with logs and a record that had failed."""
    code, out, errors = sparsepipe(*run(plan, shapes, tmp_path / "run"), *typo.split())
    assert (code, out, len(errors)) == (2, "", 1) and meant in errors[0]
    assert not (tmp_path / "run").exists()


def test_run_offers_what_its_settings_take() -> None:
    """Choices are the library's own: a setting takes each of them and nothing else, and all of them are offered."""
    from sparsepipe.networks.losses import LOSSES
    from sparsepipe.runtime import RunConfig
    from sparsepipe.util.io.settings import Choice, rows

    verb = argparse.ArgumentParser()
    OPTIONS["train"][1](verb)
    offered = {action.dest: action.choices for action in verb._actions if action.choices}
    assert {"engine", "launcher", "precision", "compression", "balance", "task"} <= offered.keys()
    others = {"launcher": {*LAUNCHERS, SLURM}, "replan": set(VARIANTS)}  # no settings of a run
    for name, choices in offered.items():
        if name in others:
            assert set(choices) == others[name]
            continue
        taken = [getattr(RunConfig("m", "d", **{name: choice}), name) for choice in choices]
        assert taken == list(choices)
    chosen = {name: row.kind.names for name, row in rows(RunConfig).items() if isinstance(row.kind, Choice)}
    assert chosen.pop("loss") == tuple(LOSSES), "or a function of the user's own"
    of_users = {"augmentation", "optimizer", "learning_rate_schedule", "metrics", "best", "sampler"}  # or their own
    assert {name: names for name, names in chosen.items() if name not in of_users} == {
        name: tuple(offered[name]) for name in chosen if name not in of_users
    }


@pytest.mark.slow
def test_outputs_are_computed_from_a_run_and_bad_words_are_told(plan, shapes, tmp_path):
    code, _, errors = sparsepipe(*run(plan, shapes, tmp_path / "run"))
    assert code == 0, errors
    words = ["run", "--forward-only", tmp_path / "run"]
    code, out, errors = sparsepipe(*words, "--run-dir", tmp_path / "out", "--json")
    assert code == 0, errors
    told = json.loads(out)
    assert told["samples"] == 6 and 0 < told["latency_seconds"]["median"] <= told["latency_seconds"]["p95"]
    assert told["samples_per_second"] > 0 and told["validation"]["accuracy"] >= 0
    with np.load(told["predictions"]) as found:
        assert found["outputs"].shape == (6, 3) and found["sample"].tolist() == list(range(6))
    assert 0 < told["latency_seconds"]["mean"] <= max(told["latency_seconds"].values())
    code, out, _ = sparsepipe("runs", "show", tmp_path / "out")
    assert re.search(r"latency.*[\d.,]+ ms \(mean\), [\d.,]+ ms \(median\)", out)
    code, out, _ = sparsepipe("runs", "show", tmp_path / "out", "--json")
    assert json.loads(out)["latency_seconds"] == told["latency_seconds"]
    code, out, _ = sparsepipe("run", "--resume", tmp_path / "run")
    recorded = RunRecord.load(tmp_path / "run").metrics("summary")[0]
    assert code == 0 and mentions(out, recorded["minibatches"])
    for more, expected in (
        (["--resume", tmp_path / "run"], "omit --resume"),
        (["--replan", "live"], "omit --replan"),
    ):
        code, _, errors = sparsepipe(*words, *more)
        assert code == 2 and len(errors) == 1 and expected in errors[0]
    code, out, _ = sparsepipe(*words, "--launcher", "slurm")
    assert code == 0 and f"--forward-only {tmp_path / 'run'}" in out
    code, _, errors = sparsepipe("run", plan, "--forward-only", tmp_path / "none")
    assert code == 2 and len(errors) == 1 and "no such folder" in errors[0]
    code, _, errors = sparsepipe("run", plan, "--forward-only", shapes)
    assert code == 2 and len(errors) == 1 and "neither a run" in errors[0]


@pytest.mark.slow
def test_a_detached_run_is_listed_followed_and_cancelled(plan, shapes, tmp_path):
    code, out, _ = sparsepipe(*run(plan, shapes, tmp_path / "runs/long", "--epochs", 10_000, "--detach"))
    assert (code, json.loads(out)) == (0, {"run_dir": str(tmp_path / "runs/long"), "state": "running"})
    code, out, _ = sparsepipe("runs", "list", "--json", folder=tmp_path)
    assert [(row["run"], row["state"]) for row in json.loads(out)] == [("long", "running")]
    follower = subprocess.Popen(
        [sys.executable, "-m", "sparsepipe", "runs", "attach", tmp_path / "runs/long"],
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = iter(follower.stderr.readline, "")  # a run that is slow says more before: how far it is within the epoch
    assert any(line.startswith("epoch 1: loss") for line in lines)
    follower.send_signal(signal.SIGINT)
    _, told = follower.communicate(timeout=ENOUGH)
    assert follower.returncode == 130
    assert "continues" in told
    code, out, _ = sparsepipe("runs", "cancel", "long", "--json", folder=tmp_path)
    assert (code, json.loads(out)) == (0, {"run": "long", "state": "cancelled"})
    code, out, errors = sparsepipe("runs", "cancel", "long", folder=tmp_path)
    assert (code, out, len(errors)) == (2, "", 1)
    assert errors[0].endswith("[run.not_running]")
    code, _, errors = sparsepipe("runs", "attach", "long", folder=tmp_path)
    assert (code, "cancelled" in errors[-1]) == (1, True)
    code, _, _ = sparsepipe("runs", "export", "long", "--perfetto", tmp_path / "trace.json", folder=tmp_path)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert code == 0
    assert {event["args"]["stage"] for event in events if event["ph"] == "X"} == {0, 1}


def test_a_runs_numbers_are_called_in_text_as_in_figures():
    """`runs list` had "samples_per_second", an accuracy of 0.1765, and PipeDream's "2-1" under "stages"."""
    row = {"run": "first", "stages": "2-1", "samples_per_second": 94.96, "accuracy": 0.1765}
    assert run_lines(row) == ["run: first", "replicas of stages: 2-1", "samples/s: 95.0", "validation accuracy: 17.6%"]
    assert run_lines({"accuracy": None}) == ["validation accuracy: –"]


def test_a_run_that_is_not_there_is_one_line(tmp_path):
    for verb in (["attach"], ["cancel"], ["export", "--chrome", "t.json"]):
        code, out, errors = sparsepipe("runs", verb[0], "nothing", *verb[1:], folder=tmp_path)
        assert (code, out, len(errors)) == (2, "", 1)
        assert errors[0].endswith("[run.not_found]")
    code, _, errors = sparsepipe("runs", "export", "nothing", "--chrome", "t.txt", folder=tmp_path)
    assert code == 2 and "t.txt: " in errors[0] and ".json" in errors[0]


def test_a_folder_without_runs_is_told(tmp_path):
    code, out, errors = sparsepipe("runs", "list", "--folder", tmp_path, "--json")
    assert (code, json.loads(out)) == (0, []) and errors[0].startswith(f"no runs in {tmp_path}: `sparsepipe train`")


def test_a_runs_name_is_taken_wherever_a_run_is(tmp_path):
    """`runs show a` found runs/a, while `trace show a`, `run --resume a` and `run --forward-only a` did not."""
    record = RunRecord.create(
        tmp_path / "runs/a", Plan((Stage(("l",), (0,)),)), {"model": "m", "engine": "native"}, Origin()
    )
    verbs = (
        ("runs", "show"),
        ("trace", "show"),
        ("trace", "whatif"),
        ("trace", "export", "--out", "trace.json"),
        ("run", "--resume"),
    )
    for verb in verbs:
        code, _, errors = sparsepipe(*verb, "nothing", folder=tmp_path)
        assert code == 2 and len(errors) == 1 and errors[0].endswith("[run.not_found]")
    code, _, errors = sparsepipe("run", "--forward-only", "nothing", folder=tmp_path)
    assert code == 2 and len(errors) == 1 and "nothing: no such folder" in errors[0]
    for verb in ("trace", "show"), ("trace", "whatif"):
        (line,) = sparsepipe(*verb, "a", folder=tmp_path)[2]
        assert line.startswith("sparsepipe: runs/a: ") and line.endswith("[run.no_trace]")
    span = {"rank": 0, "name": "0F0", "start": 0.0, "end": 1.0, "kind": "forward", "stage": 0, "minibatch": 0}
    (record.folder / "trace-rank0.jsonl").write_text(json.dumps(span | {"peer": -1}) + "\n")
    assert json.loads(sparsepipe("trace", "show", "a", "--json", folder=tmp_path)[1])["spans"] == 1
    code, _, errors = sparsepipe("trace", "export", "a", "--out", "a.txt", folder=tmp_path)
    assert code == 2 and len(errors) == 1 and "ends in .json" in errors[0] and not (tmp_path / "a.txt").exists()
    assert sparsepipe("trace", "export", "a", "--out", "a.json", folder=tmp_path)[0] == 0
    assert json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    (tmp_path / "runs/a/config.json").write_text("[]")
    for option in "--resume", "--forward-only":
        code, _, errors = sparsepipe("run", option, "a", folder=tmp_path)
        assert code == 2 and len(errors) == 1 and "runs/a/config.json" in errors[0]


def test_what_a_plan_and_its_profile_have_to_warn_of_is_said_once(tmp_path):
    graph = LayerGraph.chain(Layer(id) for id in IDS)
    origin = {"source": "measured", "layers_over_whole": 0.5}
    profile = Profile(graph, {"cpu": (LayerCost((CostSample(1, 0.01, 0.02, 40),)),) * len(IDS)}, origin=origin)
    planned = partition(profile, Cluster.uniform(2, device_type="cpu"))
    assert set(profile.warnings) <= set(planned.warnings) and profile.warnings
    words = ["--profile", profile.save(tmp_path / "profile.json"), "--model", MODEL, "--data", "none"]
    words += ["--detach", "--log", "tensorboard", "board"]  # refused, once the plan and the profile are told of
    code, _, told = sparsepipe("run", planned.save(tmp_path / "plan.json"), *words, folder=tmp_path)
    assert code == 2 and told[:-1] == [f"warning: plan: {text}" for text in planned.warnings]


@pytest.mark.slow
def test_a_profile_is_replayed_at_the_pace_that_is_simulated(tmp_path):
    graph = LayerGraph.chain(Layer(id) for id in "ab")
    costs = (LayerCost((CostSample(1, 0.01, 0.02, 4000),)), LayerCost((CostSample(1, 0.01, 0.01, 40),)))
    Profile(graph, {"cpu": costs}, (1.0,), {"batch_size": 64}).save(tmp_path / "profile.json")
    Plan((Stage(("a",), (0,)), Stage(("b",), (1,)))).save(tmp_path / "plan.json")
    machines = ["--profile", tmp_path / "profile.json", "--devices", 2, "--bandwidth", 1e9]
    words = ["replay", tmp_path / "plan.json", *machines, "--minibatches", 20, "--run-dir", tmp_path / "run", "--json"]
    code, out, _ = sparsepipe(*words)
    told = json.loads(out)
    assert code == 0
    assert told["minibatches"] == 20
    assert told["simulated_minibatches_per_second"] == pytest.approx(1 / 0.03, rel=0.01)
    assert 0 < told["minibatches_per_second"] <= told["simulated_minibatches_per_second"] * 1.05
    assert told["samples_per_second"] == pytest.approx(64 * told["minibatches_per_second"])
    trace = RunRecord.load(tmp_path / "run").trace()
    assert trace.source == "emulated" and trace.makespan > 20 * 0.03, "no faster than the profile allows"
    code, _, errors = sparsepipe("replay", tmp_path / "plan.json", "--profile", tmp_path / "profile.json")
    assert (code, len(errors)) == (2, 1)
    assert "no devices" in errors[0]
