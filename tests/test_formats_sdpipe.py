"""SDPipe's files: those that it ships, and layouts written as its device_list.py is."""

import pytest
from coded import raises

from sparsepipe import CostSample, Layer, LayerCost, LayerGraph, Link, Profile, simulate_pipelines
from sparsepipe.records.formats.sdpipe import HetuNode, cluster_of, load_layouts, load_nodes, pipelines_of
from sparsepipe.values.replication import rule

LISTS = """
from hetu import rgpu, gpu, cpu
import socket

alone = [[gpu(0)], [gpu(1)]]
shared = [[gpu(0), gpu(1)]] * 2

def names():
    raise SystemExit("this file must not be run")

m0, m1 = names()

two_by_two = [
    [rgpu(m0, 0), rgpu(m1, 0)],
    [rgpu(m0, 1), rgpu(m1, 1)],
]
twice = [
    [rgpu("w0", 0), rgpu("w1", 1)],
    [rgpu("w0", 0), rgpu("w1", 1)],
    [rgpu("w0", 2), rgpu("w1", 3)],
]
my_device = two_by_two

def add_cpu_ctx(device_list):
    return [row + [cpu(0)] for row in device_list]
"""


def graph(num_layers=4):
    return LayerGraph.chain(Layer(f"l{k}", "", 8.0) for k in range(num_layers))


@pytest.fixture
def lists(tmp_path):
    path = tmp_path / "device_list.py"
    path.write_text(LISTS)
    return path


@pytest.mark.parametrize(
    ("name", "hosts", "workers"),
    [
        ("config_local.yaml", ["localhost"], 4),
        ("w0_w1.yml", ["w0", "w1"], 8),
        ("w2_w3.yml", ["w2", "w3"], 8),
        ("w4_w5.yml", ["w4", "w5"], 8),
    ],
)
def test_the_files_that_sdpipe_ships(shared_reference, name, hosts, workers):
    folder = shared_reference / "configs/sdpipe/artifacts/pipeline/config"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    nodes = load_nodes(folder / name)
    assert [node.host for node in nodes] == hosts and {node.workers for node in nodes} == {workers}
    assert [node.chief for node in nodes] == [k == 0 for k in range(len(nodes))] and nodes[0].servers == 1
    cluster = cluster_of(nodes, device_type="gpu", link=Link(1e9), network=Link(1e8))
    assert [node.name for node in cluster.nodes] == hosts and len(cluster.devices) == workers * len(hosts)


def test_a_layout_is_a_row_a_stage_and_a_column_a_pipeline(lists):
    layouts = load_layouts(lists, ["w0", "w1"])
    assert set(layouts) == {"alone", "shared", "two_by_two", "twice", "my_device"}
    assert layouts["my_device"] == layouts["two_by_two"]
    nodes = (HetuNode("w0", 1, 4, True), HetuNode("w1", 0, 4))
    cluster = cluster_of(nodes, device_type="gpu")
    found = pipelines_of(layouts["my_device"], cluster, graph(), rule("partial-reduce"), layers=[1, 3])
    found.check(graph(), cluster)
    assert [[stage.ranks for stage in plan.stages] for plan in found.pipelines] == [[(0,), (1,)], [(4,), (5,)]]
    assert [stage.layers for stage in found.pipelines[1].stages] == [("l0",), ("l1", "l2", "l3")]
    assert found.pipelines[1].stages[0].nodes == ("w1",)
    cost = LayerCost((CostSample(1, 1.0, 2.0, 0.0),))
    told = simulate_pipelines(found, Profile(graph(), {"gpu": (cost,) * 4}), cluster, [1] * 20)
    assert [one.minibatches for one in told.pipelines] == [10, 10]


def test_rows_on_the_same_gpus_are_one_stage(lists):
    cluster = cluster_of((HetuNode("w0", 0, 4, True), HetuNode("w1", 0, 4)), device_type="gpu")
    layout = load_layouts(lists, ["w0", "w1"])["twice"]
    found = pipelines_of(layout, cluster, graph(6), rule("partial-reduce")).check(graph(6), cluster)
    assert [[stage.ranks for stage in plan.stages] for plan in found.pipelines] == [[(0,), (2,)], [(5,), (7,)]]
    assert [stage.layers for stage in found.pipelines[0].stages] == [("l0", "l1", "l2", "l3"), ("l4", "l5")]


def test_gpus_without_a_host_are_those_of_the_only_one(lists):
    cluster = cluster_of((HetuNode("localhost", 1, 2, True),), device_type="gpu")
    found = pipelines_of(load_layouts(lists, ["a", "b"])["shared"], cluster, graph(), rule("quorum"))
    assert [plan.stages[0].ranks for plan in found.pipelines] == [(0,), (1,)], "data parallel: a stage each"
    alone = pipelines_of(load_layouts(lists, ["a", "b"])["alone"], cluster, graph(), rule("quorum"))
    with raises("plan.violations", "1 pipeline"):
        alone.check(graph(), cluster)
    two = cluster_of((HetuNode("w0", 0, 2, True), HetuNode("w1", 0, 2)), device_type="gpu")
    with raises("sdpipe.host_needed"):
        pipelines_of(load_layouts(lists, ["a", "b"])["shared"], two, graph(), rule("quorum"))


MANY = "".join(f"- {{host: w{k}, workers: 65536}}\n" for k in range(3000))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("hosts: []", ("sdpipe.no_nodes",)),
        ("nodes: [w0]", ("sdpipe.node_malformed", "nodes[0]", "w0")),
        ("nodes: [{host: w0, workers: -1, chief: true}]", ("number.not_whole", "workers", "-1")),
        ("nodes: [{host: w0, gpus: 3, chief: true}]", ("sdpipe.key_unknown", "gpus")),
        ("nodes: [{host: 3, chief: true}]", ("hostfile.host_malformed", "3")),
        ("nodes: [{host: w0, workers: 1}]", ("sdpipe.several_chiefs", "0 nodes")),
        ("nodes: [{host: w0, chief: true}, {host: w0}]", ("hostfile.host_twice", "w0")),
        ("nodes: [{host: w0, chief: 1}]", ("value.not_a_boolean", "chief", "1")),
        ("nodes: [", ("yaml.malformed",)),
        ("nodes:\n- {host: w, chief: true}\n" + MANY, ("hostfile.too_many_devices", "196608000", "65536")),
    ],
)
def test_a_wrong_nodes_file_is_told_in_a_line(tmp_path, text, told):
    path = tmp_path / "nodes.yml"
    path.write_text(text)
    with raises(*told) as error:
        load_nodes(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


def test_hosts_without_workers_make_no_cluster():
    with raises("sdpipe.no_workers"):
        cluster_of((HetuNode("w0", 1, 0, True),), device_type="gpu")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f(:", ("sdpipe.not_python",)),
        ("x = 3", ("sdpipe.no_layout",)),
        ("x = [[cpu(0)]]", ("sdpipe.not_lists", "cpu(0")),
        ("x = [[open('secret')]]", ("sdpipe.not_lists",)),
        ("x = [[rgpu(y, 0)]]", ("sdpipe.name_unknown", "y")),
        ("x = [[gpu(0)]] * 10000000", ("sdpipe.not_lists",)),
        ("x = [[gpu(0)], [gpu(0), gpu(1)]]", ("sdpipe.stages_differ", "1", "2 GPUs")),
        ("x = [gpu(0)]", ("sdpipe.layout_malformed",)),
        ("x = [[3]]", ("sdpipe.device_malformed", "x", "3")),
        ("a, b = f()\nx = [[rgpu(a, 0)]]", ("sdpipe.host_count",)),
        ("a = [[gpu(0)]] * 1024\nb = a * 1024\nc = b * 1024", ("sdpipe.not_lists",)),
        ("a = [[gpu(0)] * 1024] * 1024", ("sdpipe.too_many_devices", "65536")),
        (
            "a = [[gpu(0)] * 60000]\n" + "".join(f"x{k} = a\n" for k in range(100)),
            ("sdpipe.too_many_devices", "1048576"),
        ),
    ],
)
def test_a_wrong_device_list_is_told_in_a_line(tmp_path, text, told):
    path = tmp_path / "device_list.py"
    path.write_text(text)
    with raises(*told) as error:
        load_layouts(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("layout", "layers", "error"),
    [
        (((("w9", 0),),), None, ("sdpipe.host_unknown", "w9")),
        (((("w0", 9),),), None, ("sdpipe.device_unknown", "9", "w0")),
        (((("w0", 0),), (("w0", 1),)), [1, 2], ("sdpipe.layer_counts", "4")),
        (((("w0", 0),), (("w0", 1),)), [0, 4], ("sdpipe.layer_counts",)),
    ],
)
def test_layouts_that_do_not_fit_are_told(layout, layers, error):
    cluster = cluster_of((HetuNode("w0", 1, 2, True),), device_type="gpu")
    with raises(*error):
        pipelines_of(layout, cluster, graph(), rule("quorum"), layers=layers)
