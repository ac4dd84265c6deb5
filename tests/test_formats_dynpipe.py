"""DynPipe's files: every partition file and every list that it ships, and damaged ones."""

import json

import pytest
from coded import mentions, raises

from sparsepipe import Cluster, Layer, LayerGraph, Link, partition
from sparsepipe.cli.command import main
from sparsepipe.records.formats.dynpipe import BANDWIDTH, load_layer_lists, load_partition
from sparsepipe.records.formats.plan_files import load_plan

IMAGES = "configs/dynpipe/runtime/image_classification/models"
BERT = "configs/dynpipe/runtime_bert/bert"
# file → (layers of the network, layers of each stage, ranks of each stage)
SHIPPED = {
    f"{IMAGES}/vgg16/gpus=8/vgg16_8.json": (38, [15, 5, 18], [[0, 1, 2, 3, 4, 5], [6], [7]]),
    f"{IMAGES}/vgg16/gpus=8/vgg_8.json": (38, [2, 3, 4, 5, 5, 6, 6, 7], [[k] for k in range(8)]),
    f"{IMAGES}/vgg16/gpus=6/vgg16_6.json": (38, [20, 18], [[0, 1, 2, 3, 4], [5]]),
    f"{IMAGES}/vgg16/gpus=4/vgg_4.json": (38, [17, 21], [[0, 1, 2], [3]]),
    f"{IMAGES}/vgg16/gpus=4_straight/vgg_4.json": (38, [10, 6, 8, 14], [[0], [1], [2], [3]]),
    f"{IMAGES}/vgg16/gpus=2/vgg16_2.json": (38, [8, 30], [[0], [1]]),
    f"{IMAGES}/vgg16/gpus=1/vgg_1.json": (38, [10, 9, 5, 14], [[0, 1, 2, 3], [4, 5], [6], [7]]),
    f"{IMAGES}/resnet50/gpus=8/resnet50_8.json": (176, [71, 50, 23, 32], [[0, 1, 2, 3], [4, 5], [6], [7]]),
    f"{IMAGES}/resnet50/gpus=8/vgg_8.json": (176, [72, 54, 50], [[0, 1, 2, 3], [4, 5], [6, 7]]),
    f"{IMAGES}/resnet50/gpus=1/vgg_1.json": (176, [176], [[0]]),
    f"{BERT}/vgpus=4/vpipe_1.json": (49, [2, 23, 13, 11], [[0], [1], [2], [3]]),
    f"{BERT}/vgpus=4/gpipe.json": (49, [13, 13, 13, 10], [[0], [1], [2], [3]]),
    f"{BERT}/vgpus=2/vpipe.json": (49, [25, 24], [[0], [1]]),
    f"{BERT}/vgpus=1/gpipe.json": (49, [26, 23], [[0], [1]]),
}


def chain(num_layers):
    return LayerGraph.chain(Layer(f"l{k}") for k in range(num_layers))


@pytest.mark.parametrize("name", SHIPPED)
def test_the_partition_files_that_dynpipe_ships(shared_reference, name):
    num_layers, sizes, ranks = SHIPPED[name]
    plan = load_plan(shared_reference / name, chain(num_layers))
    assert [len(stage.layers) for stage in plan.stages] == sizes
    assert [list(stage.ranks) for stage in plan.stages] == ranks
    assert plan.layers == tuple(f"l{k}" for k in range(num_layers))
    given = json.loads((shared_reference / name).read_text())
    assert [stage.recompute for stage in plan.stages] == [bool(ratio) for ratio in given["recompute_ratio"]]


def test_no_partition_file_that_dynpipe_ships_is_refused(shared_reference):
    """Of a network with as many layers as they count."""
    read = 0
    for path in (shared_reference / "configs/dynpipe").rglob("*.json"):
        if path.name.endswith("conf.json") or "partition" not in path.read_text():
            continue
        num_layers = sum(json.loads(path.read_text())["partition"])
        assert len(load_partition(path, lambda count=num_layers: chain(count)).layers) == num_layers
        read += 1
    assert read == 25


def test_what_a_plan_of_ours_cannot_say_is_in_its_warnings(shared_reference):
    told = load_partition(shared_reference / BERT / "vgpus=4/vpipe_1.json", chain(49)).warnings
    assert len(told) == 1 and mentions(told[0], "stage 0", 0.3)
    told = load_partition(shared_reference / IMAGES / "vgg16/gpus=8/vgg_8.json", chain(38)).warnings
    assert len(told) == 1 and mentions(told[0], "3 stages", 8)
    told = load_partition(shared_reference / IMAGES / "vgg16/gpus=8/vgg16_8.json", chain(38)).warnings
    assert len(told) == 1 and "replicas" in told[0]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"partition": [1, 2]}, ("partition.layer_count", "3 layers", "4")),
        ({"partition": [0, 4]}, ("number.not_whole", "partition", "0")),
        ({"partition": 4}, ("partition.value_malformed", "partition", "4", "a list")),
        ({"partition": []}, ("partition.value_malformed", "partition")),
        ({"partition": [4.0]}, ("number.not_whole", "partition", "4.0")),
        ({"partition": [2, 2], "recompute_ratio": [0]}, ("partition.value_malformed", "2 of them")),
        ({"partition": [2, 2], "recompute_ratio": [0, 1.5]}, ("partition.recompute_out_of_range", "1.5")),
        ({"partition": [2, 2], "batch_size": [1, 2]}, ("partition.batch_size_lacking",)),
        ({"partition": [2, 2], "batch_size": [2, 3], "batch_size_all": [4]}, ("partition.batch_size_uneven", "3", "4")),
        (
            {"partition": [2, 2], "batch_size": [1, 1], "batch_size_all": [60_000]},
            ("partition.too_many_replicas", "120000", "65536"),
        ),
        (
            {"partition": [2, 2], "batch_size": [1, 10**8], "batch_size_all": [10**8]},
            ("partition.batch_size_uneven", "1"),
        ),
        ([], ("plan.malformed",)),
    ],
)
def test_a_wrong_partition_file_is_told_in_a_line(tmp_path, content, error):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    with raises(*error) as caught:
        load_plan(path, chain(4))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("conf", "error"),
    [
        ({}, ("partition.no_ranks",)),
        ({"stage_to_rank_map": {"0": [0], "2": [1]}}, ("partition.no_ranks",)),
        ({"stage_to_rank_map": {"0": [0], "1": []}}, ("partition.ranks_malformed", "1")),
        ({"stage_to_rank_map": {"0": [0], "1": [-1]}}, ("number.not_whole", "rank of stage 1", "-1")),
        ({"stage_to_rank_map": {"0": [0, 1], "1": [2]}}, ("partition.replica_count", "[1, 1]")),
    ],
)
def test_a_wrong_conf_beside_it_too(tmp_path, conf, error):
    path = tmp_path / "two.json"
    path.write_text(json.dumps({"partition": [2, 2], "batch_size": [8, 8], "batch_size_all": [8]}))
    (tmp_path / "hybrid_conf.json").write_text(json.dumps(conf))
    with raises(*error) as caught:
        load_partition(path, chain(4))
    assert "\n" not in str(caught.value)


def test_a_conf_that_is_named_must_fit(tmp_path):
    path = tmp_path / "one.json"
    path.write_text('{"partition": [4]}')
    conf = tmp_path / "other.json"
    conf.write_text('{"stage_to_rank_map": {"0": [3]}}')
    assert load_partition(path, chain(4), conf=conf).ranks == (3,)
    conf.write_text('{"stage_to_rank_map": {"0": [3], "1": [1]}}')
    with raises("partition.ranks_not_whole", "other.json has 2 stages, the partition 1"):
        load_partition(path, chain(4), conf=conf)


def test_the_lists_that_dynpipe_ships(shared_data):
    folder = shared_data / "dynpipe_logs/runtime/image_classification"
    profile = load_layer_lists(folder / "vgg16_data_1_for_.txt", device_type="gpu")
    assert len(profile.graph.layers) == 38 and profile.graph.is_chain
    first, last = profile.cost(0, "gpu"), profile.cost(37, "gpu")
    assert (first.forward, first.backward) == pytest.approx((0.022307, 0.024613))
    assert (last.forward, last.backward, last.output_bytes) == pytest.approx((0.000393, 0.000548, 0))
    assert Link(BANDWIDTH).transfer_time(first.output_bytes) == pytest.approx(0.392e-3)
    other = load_layer_lists(folder / "models/vgg16/vgg16_data_1_for_.txt")
    assert len(other.graph.layers) == 38 and other.cost(0, "device").forward > 0


def test_they_are_planned_and_simulated_with_a_partition_file(shared_data, shared_reference, capsys):
    lists = shared_data / "dynpipe_logs/runtime/image_classification/vgg16_data_1_for_.txt"
    words = ["--profile", lists, "--devices", 2, "--bandwidth", BANDWIDTH, "--json"]
    assert main([*map(str, ["plan", *words, "--planner", "dynpipe"])]) == 0
    assert [len(stage["layers"]) for stage in json.loads(capsys.readouterr().out)["stages"]] == [8, 30]
    assert main([*map(str, ["plan", *words, "--planner", "dynpipe", "--sizes", "8,30", "--top-k", 3])]) == 0
    told = json.loads(capsys.readouterr().out)
    again = partition(load_layer_lists(lists), Cluster.uniform(2), planner="dynpipe", sizes=(8, 30), top_k=3)
    assert [len(stage["layers"]) for stage in told["stages"]] == [len(stage.layers) for stage in again.stages]
    assert told["provenance"]["settings"]["top_k"] == 3 and told["provenance"]["settings"]["sizes"] == [8, 30]
    given = shared_reference / IMAGES / "vgg16/gpus=2/vgg16_2.json"
    assert main([*map(str, ["simulate", given, *words])]) == 0
    pace = json.loads(capsys.readouterr().out)["minibatches_per_second"]
    expected = partition(load_layer_lists(lists), Cluster.uniform(2), planner="dynpipe", sizes=(8, 30)).estimate
    assert pace == pytest.approx(1 / max(stage.compute_seconds for stage in expected.stages), rel=0.01)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("net_data_1_for_.txt", "1\nnan\n2", ("number.malformed", "net_data_1_for_.txt:2: milliseconds", "nan")),
        ("net_data_1_for_.txt", "1\ntwo\n2", ("number.malformed", "net_data_1_for_.txt:2: milliseconds", "two")),
        ("net_data_1_for_.txt", "1\n2\n-3", ("number.malformed", "net_data_1_for_.txt:3: milliseconds", "-3")),
        ("net_data_1_for_.txt", "", ("layer_times.line_count", "0")),
        ("net_data_1_bac_.txt", "1\n2", ("layer_times.line_count", "net_data_1_bac_.txt", "2", "3 layers", "3")),
        ("net_out_put_com_time.txt", "1", ("layer_times.line_count", "net_out_put_com_time.txt", "1", "3 layers", "2")),
        ("net_out_put_com_time.txt", None, ("file.not_found", "net_out_put_com_time.txt")),
    ],
)
def test_wrong_lists_are_told_in_a_line(tmp_path, name, text, error):
    for one, content in {"net_data_1_for_.txt": "1\n2\n3", "net_data_1_bac_.txt": "1\n2\n3"}.items():
        (tmp_path / one).write_text(content)
    (tmp_path / "net_out_put_com_time.txt").write_text("1\n2")
    if text is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(text)
    with raises(*error) as caught:
        load_layer_lists(tmp_path / "net_data_1_for_.txt")
    assert "\n" not in str(caught.value)
    with raises("layer_times.malformed", "_for_.txt"):
        load_layer_lists(tmp_path / "other.txt")
