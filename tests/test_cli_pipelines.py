"""The command line on several pipelines: planned, written, simulated, and what is wrong told in one line."""

import json

import pytest

from sparsepipe import Cluster, CostSample, DeviceType, Layer, LayerCost, LayerGraph, Link, Node, Plan, Profile
from sparsepipe.cli import main
from sparsepipe.pipelines import Pipelines
from sparsepipe.replication import rule


@pytest.fixture
def files(tmp_path):
    """A profile of two device types, one twice as fast, and a cluster of two nodes with both."""
    graph = LayerGraph.chain(Layer(id, f"layer {id}", 1000) for id in "abcd")
    costs = {kind: (LayerCost((CostSample(100, t, 2 * t, 4000),)),) * 4 for kind, t in (("big", 0.01), ("tiny", 0.02))}
    profile = Profile(graph, costs, (100.0,), origin={"batch_size": 8}).save(tmp_path / "profile.json")
    kinds = tuple(map(DeviceType, ("big", "tiny")))
    devices = Cluster((Node("n0", kinds, Link(1e9)), Node("n1", kinds, Link(1e9))), Link(1e8))
    (tmp_path / "cluster.toml").write_text(devices.to_toml())
    return ("--profile", profile, "--cluster", tmp_path / "cluster.toml")


def run(*arguments, capsys):
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as ended:
        code = ended.code
    output = capsys.readouterr()
    return code, output.out, output.err


def test_plan_splits_the_devices(tmp_path, files, capsys):
    path = tmp_path / "plan.json"
    code, out, _ = run("plan", *files, "--pipelines", 2, "--out", path, "--json", capsys=capsys)
    document = json.loads(out)
    assert code == 0 and document == json.loads(path.read_text())
    paces = [one["samples_per_second"] for one in document["pipelines"]]
    assert document["samples_per_second"] == pytest.approx(sum(paces))
    assert sum(paces) == pytest.approx(8 * 2 * (1 / 0.12 + 1 / 0.24), rel=0.35), "of two big and two tiny devices"
    assert 0 <= document["gap"] < 0.5 and document["planner"] == "optimal"
    assert document["replication"] == {"rule": "partial-reduce", "options": document["replication"]["options"]}
    ranks = [r["rank"] for one in document["pipelines"] for stage in one["stages"] for r in stage["replicas"]]
    assert len(ranks) == len(set(ranks))
    code, out, _ = run("plan", *files, "--pipelines", 2, capsys=capsys)
    assert code == 0 and out.startswith("2 pipelines on ") and "pipeline 1: optimal" in out


def test_a_rule_is_kept_in_the_plan(tmp_path, files, capsys):
    path = tmp_path / "plan.json"
    settings = ("--pipelines", 2, "--replication", "local-sgd:every=8", "--out", path)
    assert run("plan", *files, *settings, capsys=capsys)[0] == 0
    assert Pipelines.load(path).replication == rule("local-sgd", {"every": 8})


def test_one_pipeline_is_an_ordinary_plan(tmp_path, files, capsys):
    path = tmp_path / "plan.json"
    assert run("plan", *files, "--pipelines", 1, "--out", path, capsys=capsys)[0] == 0
    assert Plan.load(path).planner == "optimal"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--replication", "local-sgd"), "--replication goes with several pipelines"),
        (("--pipelines", 1, "--replication", "local-sgd"), "--replication goes with several pipelines"),
        (("--pipelines", 5), "5 pipelines on 4 devices"),
        (("--pipelines", 0), "expected 1 or more"),
        (("--pipelines", 2, "--replication", "telepathy"), "telepathy"),
        (("--pipelines", 2, "--planner", "optimal", "--planner", "pipedream"), "expected one"),
        (("--pipelines", 2, "--factor", 2), "means nothing to planner optimal"),
    ],
)
def test_what_cannot_be_planned_is_told_in_a_line(files, given, told, capsys):
    code, out, err = run("plan", *files, *given, capsys=capsys)
    assert code == 2 and out == ""
    assert told in err and err.count("\n") == 1
