"""The command line on several pipelines: planned, written, simulated, and what is wrong told in one line."""

import json

import pytest
from coded import mentions

from sparsepipe import Cluster, CostSample, DeviceType, Layer, LayerCost, LayerGraph, Link, Node, Plan, Profile
from sparsepipe.cli import main
from sparsepipe.values.replication import rule


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
    code, out, _ = run("plan", *files, "--json", capsys=capsys)
    assert code == 0 and document["data_parallel_seconds"] == json.loads(out)["data_parallel_seconds"] > 0
    assert document["replication"] == {"rule": "partial-reduce", "options": document["replication"]["options"]}
    ranks = [r["rank"] for one in document["pipelines"] for stage in one["stages"] for r in stage["replicas"]]
    assert len(ranks) == len(set(ranks))
    code, out, _ = run("plan", *files, "--pipelines", 2, capsys=capsys)
    assert code == 0 and out.startswith("2 pipelines on ") and "pipeline 1: optimal" in out


def test_a_rule_is_kept_in_the_plan(tmp_path, files, capsys):
    path = tmp_path / "plan.json"
    settings = ("--pipelines", 2, "--replication", "local-sgd:every=8", "--out", path)
    assert run("plan", *files, *settings, capsys=capsys)[0] == 0
    assert Plan.load(path).replication == rule("local-sgd", {"every": 8})


def test_one_pipeline_is_an_ordinary_plan(tmp_path, files, capsys):
    path = tmp_path / "plan.json"
    assert run("plan", *files, "--pipelines", 1, "--out", path, capsys=capsys)[0] == 0
    assert Plan.load(path).planner == "optimal"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--replication", "local-sgd"), "--replication requires pipeline replicas"),
        (("--pipelines", 1, "--replication", "local-sgd"), "--replication requires pipeline replicas"),
        (("--pipelines", 5), "5 pipelines on 4 devices"),
        (("--pipelines", 0), "expected 1 or more"),
        (("--pipelines", 2, "--replication", "telepathy"), "telepathy"),
        (("--pipelines", 2, "--replication", "quorum:quorum=5"), "quorum"),
        (("--pipelines", 2, "--planner", "optimal", "--planner", "pipedream"), "a single planner"),
        (("--pipelines", 2, "--factor", 2), "does not apply to planner optimal"),
    ],
)
def test_what_cannot_be_planned_is_told_in_a_line(files, given, told, capsys):
    code, out, err = run("plan", *files, *given, capsys=capsys)
    assert code == 2 and out == ""
    assert told in err and err.count("\n") == 1


@pytest.fixture
def planned(tmp_path, files, capsys):
    path = tmp_path / "plan.json"
    assert run("plan", *files, "--pipelines", 2, "--out", path, capsys=capsys)[0] == 0
    return path


def test_simulate_tells_paces_and_merges(planned, files, tmp_path, capsys):
    trace = tmp_path / "trace.json"
    given = ("--minibatches", 60, "--straggler", "slow:rank=0,factor=3", "--trace", trace)
    code, out, _ = run("simulate", planned, *files, *given, "--json", capsys=capsys)
    told = json.loads(out)
    assert code == 0
    assert told["replication"]["rule"] == "partial-reduce" and told["stragglers"] == "slow:rank=0,factor=3"
    assert sum(one["minibatches"] for one in told["replication"]["pipelines"]) == 60
    assert told["sum_of_paces"] == pytest.approx(told["own_pace"], rel=0.02)
    assert sum(told["replication"]["group_sizes"].values()) > 0 and told["replication"]["bytes"] > 0
    assert {event["tid"] for event in json.loads(trace.read_text())["traceEvents"]} == {0, 1, 2, 3}
    waiting = run("simulate", planned, *files, *given, "--replication", "all-reduce", "--json", capsys=capsys)
    slower = json.loads(waiting[1])
    assert slower["replication"]["rule"] == "all-reduce" and slower["samples_per_second"] < told["samples_per_second"]
    paces = [one["samples_per_second"] for one in told["replication"]["pipelines"]]
    assert told["sum_of_paces"] == pytest.approx(sum(paces)) != pytest.approx(told["samples_per_second"])
    code, out, _ = run("simulate", planned, *files, *given, "--replication", "all-reduce", capsys=capsys)
    assert code == 0 and "waited for pipeline" in out and mentions(out, "rank 0", 3)


def test_stragglers_of_an_ordinary_plan(tmp_path, files, capsys):
    path = tmp_path / "one.json"
    assert run("plan", *files, "--out", path, capsys=capsys)[0] == 0
    paces = {}
    for spec in ("slow:rank=0,factor=1", "slow:rank=0,factor=4"):
        code, out, _ = run("simulate", path, *files, "--straggler", spec, "--json", capsys=capsys)
        paces[spec] = json.loads(out)["minibatches_per_second"]
        assert code == 0 and json.loads(out)["stragglers"] == spec
    assert paces["slow:rank=0,factor=4"] < 0.5 * paces["slow:rank=0,factor=1"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--replication", "telepathy"), "telepathy"),
        (("--replication", "quorum:quorum=3"), "quorum"),
        (("--straggler", "slow:rank=7,factor=2"), "[straggler.rank_unknown]"),
        (("--straggler", "hare:rank=1"), "hare"),
        (("--epoch-minibatches", 4), "this plan has several"),
        (("--restart-seconds", "3"), "--restart-seconds requires --inject kill"),
        (("--straggler", "kill:rank=0,at=3", "--replication", "all-reduce"), "averages gradients by all-reduce"),
    ],
)
def test_what_cannot_be_simulated_is_told_in_a_line(planned, files, given, told, capsys):
    code, out, err = run("simulate", planned, *files, *given, capsys=capsys)
    assert code == 2 and out == ""
    assert told in err and err.count("\n") == 1


def test_a_rule_for_one_pipeline_is_told(tmp_path, files, capsys):
    path = tmp_path / "one.json"
    run("plan", *files, "--out", path, capsys=capsys)
    code, _, err = run("simulate", path, *files, "--replication", "quorum", capsys=capsys)
    assert code == 2 and err.endswith("[option.of_several_pipelines]\n")


def test_heturuns_nodes_are_a_cluster(tmp_path, files, capsys):
    nodes, one = tmp_path / "nodes.yml", tmp_path / "one.json"
    nodes.write_text("nodes: [{host: w0, servers: 1, workers: 2, chief: true}, {host: w1, workers: 2}]")
    document = Profile.load(files[1])
    Profile(document.graph, {"big": document.costs["big"]}, document.sizes).save(one)
    given = ("--profile", one, "--cluster", nodes, "--bandwidth", "1GB/s", "--bandwidth", "1kB/s")
    code, out, _ = run("plan", *given, "--pipelines", 2, "--json", capsys=capsys)
    found = [
        {r["node"] for stage in plan["stages"] for r in stage["replicas"]} for plan in json.loads(out)["pipelines"]
    ]
    assert code == 0 and found == [{"w0"}, {"w1"}]
    code, _, err = run("plan", *given, "--bandwidth", "1kB/s", capsys=capsys)
    assert code == 2 and err.endswith("[option.too_many_bandwidths]\n")
    code, _, err = run("plan", "--profile", files[1], "--cluster", nodes, capsys=capsys)
    assert code == 2 and err.endswith("[cluster.no_device_types]\n")
