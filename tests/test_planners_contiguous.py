"""Contiguous splits by dnn-partitioning's cost model: published optima, and every split of small graphs."""

import itertools
import json
from dataclasses import replace

import pytest
from coded import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsepipe import Cluster, DeviceType, InputError, Link, Node, partition
from sparsepipe.cli import main
from sparsepipe.planning.base import Problem
from sparsepipe.planning.published.contiguous import best_split
from sparsepipe.records.formats.dnn_partitioning import PartitioningFile

# Their program's answers, compiled and run on these files; it does not finish the last in 100 s.
OPTIMA = {
    "LayerGraphs/bert24_inference": 17.78990625,
    "LayerGraphs/resnet50_inference": 33.774666,
    "OperatorGraphs/bert_l-3_inference": 27.9185677,
    "OperatorGraphs/resnet50_inference": 124.3488498,
    "LayerGraphs/gnmt_inference": 32.9106582,
    "LayerGraphs/inceptionv3_inference": None,
}


@pytest.fixture
def graphs(shared_data):
    folder = shared_data / "outside" / "exact-partitions" / "throughput-inputs"
    if not folder.is_dir():
        pytest.skip(f"no graphs of dnn-partitioning at {folder}: sparsepipe data fetch dnn-partitioning")
    return folder


@pytest.mark.parametrize("name", OPTIMA)
@pytest.mark.timeout(100)  # in which theirs gives up on inceptionv3; a second or two are taken
def test_published_optima_are_met_and_proven(graphs, name):
    file = PartitioningFile.load(graphs / f"{name}.json")
    plan = partition(file.profile, file.cluster, cost_model="dnn-partitioning")
    assert plan.estimate.gap == 0
    load = plan.estimate.period_seconds
    assert load == pytest.approx(load_of(plan, json.loads((graphs / f"{name}.json").read_text())), abs=1e-9)
    if OPTIMA[name]:
        assert load == pytest.approx(OPTIMA[name], abs=1e-6)
    else:
        assert load == pytest.approx(51.551863586, abs=1e-6)  # ours alone


def load_of(plan, content):
    """The largest load, added up from the file's own nodes and edges as their program checks a result."""
    at = {id: k for k, stage in enumerate(plan.stages) for id in stage.layers}
    names = [node["name"] for node in content["nodes"]]
    of = {n["id"]: n["name"] if names.count(n["name"]) == 1 else f"#{n['id']}" for n in content["nodes"]}
    host = [stage.device_types[0] == "cpu" for stage in plan.stages]
    loads = [0.0] * len(plan.stages)
    colors = {}
    for node in content["nodes"]:
        stage = at[of[node["id"]]]
        loads[stage] += node["cpuLatency" if host[stage] else "fpgaLatency"]
        assert colors.setdefault(node.get("colorClass", ("own", node["id"])), stage) == stage
    crossing = set()
    for edge in content["edges"]:
        a, b = at[of[edge["sourceId"]]], at[of[edge["destId"]]]
        assert a <= b
        if a != b:
            crossing |= {(edge["sourceId"], edge["cost"], a), (edge["sourceId"], edge["cost"], b)}
    for _, cost, stage in crossing:
        loads[stage] += 0.0 if host[stage] else cost
    return max(loads)


def content_of(times, edges, *, accelerators, cpus, memory=1e9, colors=None):
    return {
        "maxFPGAs": accelerators,
        "maxCPUs": cpus,
        "maxSizePerFPGA": memory,
        "nodes": [
            {"id": k, "name": f"n{k}", "fpgaLatency": fast, "cpuLatency": slow, "size": 1.0, "isBackwardNode": 0}
            | ({"colorClass": colors[k]} if colors else {})
            for k, (fast, slow, _) in enumerate(times)
        ],
        "edges": [{"sourceId": a, "destId": b, "cost": times[a][2]} for a, b in edges],
    }


def every_split(content):
    """The smallest largest load over all ways to put nodes on devices whose stages can stand in a line."""
    nodes, edges = content["nodes"], content["edges"]
    kinds = [False] * content["maxFPGAs"] + [True] * content["maxCPUs"]
    best = float("inf")
    for order in set(itertools.permutations(kinds)):
        for at in itertools.product(range(len(order)), repeat=len(nodes)):
            if any(at[e["sourceId"]] > at[e["destId"]] for e in edges):
                continue
            colors = [n.get("colorClass", -1 - n["id"]) for n in nodes]
            if len({(c, s) for c, s in zip(colors, at, strict=True)}) != len(set(colors)):
                continue
            loads, sizes = [0.0] * len(order), [0.0] * len(order)
            for node, stage in zip(nodes, at, strict=True):
                loads[stage] += node["cpuLatency" if order[stage] else "fpgaLatency"]
                sizes[stage] += node["size"]
            crossing = {
                (e["sourceId"], e["cost"], at[end])
                for e in edges
                for end in (e["sourceId"], e["destId"])
                if at[e["sourceId"]] != at[e["destId"]]
            }
            for _, cost, stage in crossing:
                loads[stage] += 0.0 if order[stage] else cost
            if all(host or size <= content["maxSizePerFPGA"] for host, size in zip(order, sizes, strict=True)):
                best = min(best, max(loads))
    return best


@settings(max_examples=24, deadline=None)
@given(st.data())
def test_no_split_of_a_small_graph_is_better(data):
    count = data.draw(st.integers(1, 5))
    number = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0])
    times = data.draw(st.lists(st.tuples(number, number.map(lambda x: 4 * x), number), min_size=count, max_size=count))
    pairs = list(itertools.combinations(range(count), 2))
    edges = [pair for pair in pairs if data.draw(st.booleans())]
    colors = data.draw(st.none() | st.lists(st.integers(0, 3), min_size=count, max_size=count))
    if colors:  # colours that need each other would have to be together as one: their program joins them, too
        joined = {(colors[a], colors[b]) for a, b in edges if colors[a] != colors[b]}
        if any(a >= b for a, b in joined):
            colors = None
    memory = data.draw(st.sampled_from([1e9, 2.0, 3.0]))
    devices = {"accelerators": data.draw(st.integers(1, 2)), "cpus": data.draw(st.integers(0, 1))}
    content = content_of(times, edges, **devices, memory=memory, colors=colors)
    file = PartitioningFile.of(content, name="small")
    expected = every_split(content)
    problem = Problem(file.profile, file.cluster)
    if expected == float("inf") or memory < 1e9:
        # Where memory binds, layers without work are joined to their neighbour first, as their program does.
        try:
            assert best_split(problem).load >= expected - 1e-9
        except InputError as error:
            assert "no plan fits" in str(error)
        return
    assert best_split(problem).load == pytest.approx(expected, abs=1e-9)


def test_a_tensor_costs_once_whoever_needs_it_and_a_cpu_pays_for_none():
    """n0 feeds n1 and n2. Apart from both it costs 5 once, on each side."""
    content = content_of([(10, 40, 5), (10, 40, 0), (10, 40, 0)], [(0, 1), (0, 2)], accelerators=2, cpus=0)
    file = PartitioningFile.of(content, name="fork")
    assert sorted(best_split(Problem(file.profile, file.cluster)).loads) == [15.0, 25.0], (
        "5 once where n1 and n2 are together"
    )
    content["maxCPUs"], content["nodes"][0]["cpuLatency"] = 1, 12
    file = PartitioningFile.of(content, name="fork")
    split = best_split(Problem(file.profile, file.cluster))
    assert split.load == 15.0 and split.stages[0][0], "the CPU takes n0 and pays for no transfer"


def test_what_it_does_not_know_is_refused(tmp_path, capsys):
    content = content_of([(1, 4, 1)] * 3, [(0, 1), (1, 2)], accelerators=2, cpus=1)
    file = PartitioningFile.of(content, name="chain")
    kinds = tuple(DeviceType(name) for name in ("accelerator", "other"))
    mixed = replace(file.profile, costs=file.profile.costs | {"other": file.profile.costs["accelerator"]})
    with raises("planner.devices_unsupported"):
        partition(mixed, Cluster((Node("n", kinds, Link(1.0)),), Link(1.0)), cost_model="dnn-partitioning")
    for change, error in (
        ({"nodes": []}, ("dnn_graph.nodes_malformed",)),
        ({"nodes": [content["nodes"][0] | {"isBackwardNode": 1}], "edges": []}, ("dnn_graph.of_training",)),
        (
            {"nodes": [content["nodes"][0] | {"fpgaLatency": -1}], "edges": []},
            ("number.malformed", "fpgaLatency", "-1"),
        ),
        ({"nodes": content["nodes"] + content["nodes"][:1]}, ("dnn_graph.id_twice", "0")),
        ({"edges": [{"sourceId": 0, "destId": 9, "cost": 1}]}, ("dnn_graph.node_unknown", "9")),
        (
            {"edges": [{"sourceId": 0, "destId": 1, "cost": 1}, {"sourceId": 0, "destId": 2, "cost": 2}]},
            ("dnn_graph.costs_differ",),
        ),
        (
            {"edges": [{"sourceId": 0, "destId": 1, "cost": 1}, {"sourceId": 1, "destId": 0, "cost": 1}]},
            ("graph.cycle",),
        ),
        ({"maxFPGAs": 0, "maxCPUs": 0}, ("dnn_graph.no_devices",)),
        ({"maxSizePerFPGA": float("nan")}, ("number.malformed", "maxSizePerFPGA")),
    ):
        path = tmp_path / "graph.json"
        path.write_text(json.dumps(content | change))
        with raises(*error) as refused:
            PartitioningFile.load(path)
        assert "\n" not in str(refused.value)
    (tmp_path / "graph.json").write_text(json.dumps(content))
    arguments = ["plan", "--profile", str(tmp_path / "graph.json"), "--cost-model", "dnn-partitioning", "--json"]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["period_seconds"] == 3.0
    small = content | {"maxSizePerFPGA": 0.5, "maxCPUs": 0}
    (tmp_path / "graph.json").write_text(json.dumps(small))
    assert main(arguments) == 2
    assert "no plan fits" in capsys.readouterr().err
