"""Networks are tables of rows: their shapes, names, parameters and graphs."""

import pytest
import torch
from coded import raises
from engine_clouds import random_batch, sorted_rows

from sparsepipe.engines import Subnetwork, engine
from sparsepipe.networks import INPUT, NETWORKS, Network, Row, network
from sparsepipe.values.graph_text import GraphText


def kinds(net):
    letters = {"convolution": "c", "batch_norm": "b", "relu": "r", "max_pool": "M"}
    return " ".join(letters.get(row.kind, row.kind) for row in net.rows)


def test_minkvgg16bn_is_the_52_layers_of_sparsepipe():
    net = network("minkvgg16bn", num_classes=40)
    assert len(net.rows) == 52
    assert kinds(net) == (
        "c b r c b r M c b r c b r M c b r c b r c b r M c b r c b r c b r M c b r c b r c b r M "
        "global_max_pool linear r dropout linear r dropout linear"
    )
    assert net.rows[0].inputs == (INPUT,)
    assert all(row.inputs == (before.id,) for before, row in zip(net.rows, net.rows[1:], strict=False))
    assert [row.id for row in net.rows[:4]] == ["conv1_1", "bn1_1", "relu1_1", "conv1_2"]
    assert [row.id for row in net.rows[-9:]] == [
        "pool5", "global_pool", "fc1", "relu_fc1", "dropout1", "fc2", "relu_fc2", "dropout2", "fc3",
    ]  # fmt: skip


def test_minkvgg16bn_weighs_what_sparsepipe_published(shared_reference):
    """Every layer of SparsePipe's own profile (ModelNet40, RTX), its input node aside, has our kind and our bytes."""
    published = GraphText.load(shared_reference / "profiles/minkvgg/minkvgg_v0.02_b64_RTX/graph.txt")
    names = {"convolution": "MinkowskiConvolution", "batch_norm": "MinkowskiBatchNorm", "relu": "MinkowskiReLU"}
    names |= {"max_pool": "MinkowskiMaxPooling", "global_max_pool": "MinkowskiGlobalMaxPooling"}
    names |= {"linear": "MinkowskiLinear", "dropout": "Dropout"}
    node_of = {node.id: node for node in published.nodes}
    theirs = [layer for layer in published.graph.layers if not layer.description.startswith("Input")]
    net = network("minkvgg16bn", num_classes=40)
    for row, layer, other in zip(net.rows, net.graph().layers, theirs, strict=True):
        assert node_of[other.id].description.partition("(")[0] == names[row.kind], row.id
        assert layer.parameter_bytes == other.parameter_bytes, row.id


@pytest.mark.parametrize(("name", "convolutions"), [("minkvgg11", 8), ("minkvgg13bn", 10), ("minkvgg19", 16)])
def test_depths_count_convolutions(name, convolutions):
    net = network(name, num_classes=10)
    assert sum(row.kind == "convolution" for row in net.rows) == convolutions
    assert any(row.kind == "batch_norm" for row in net.rows) == name.endswith("bn")
    assert all(row.args["bias"] != name.endswith("bn") for row in net.rows if row.kind == "convolution")


def test_narrow_is_a_quarter_everywhere():
    wide, narrow = (network(name, num_classes=10) for name in ("minkvgg11bn", "minkvgg11bn-narrow"))
    for a, b in zip(wide.rows, narrow.rows, strict=True):
        assert a.id == b.id
        if "out_channels" in a.args and a.id != "fc3":
            assert a.args["out_channels"] == 4 * b.args["out_channels"]


@pytest.mark.parametrize("name", NETWORKS)
def test_parameter_bytes_are_those_of_the_modules(name):
    net = network(name, num_classes=7, in_channels=2)
    chosen = engine("native")
    with torch.device("meta"):  # shapes without memory
        modules = [chosen.layer(row) for row in net.rows]
    for layer, module in zip(net.graph().layers, modules, strict=True):
        counted = sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
        assert layer.parameter_bytes == counted, layer.id


# What the classes of MinkowskiEngine's examples (minkunet.py, resnet.py, classification_modelnet40.py, pointnet.py)
# have when built from the modules of MinkowskiEngine 0.5.4, with 3 input channels; the paper publishes no counts.
@pytest.mark.parametrize(
    ("name", "num_classes", "parameters"),
    [
        ("minkunet14a-segmentation", 20, 8_024_500),
        ("minkunet14b-segmentation", 20, 8_961_588),
        ("minkunet14c-segmentation", 20, 11_919_924),
        ("minkunet14d-segmentation", 20, 43_315_764),
        ("minkunet18a-segmentation", 20, 15_493_172),
        ("minkunet18b-segmentation", 20, 17_204_660),
        ("minkunet18d-segmentation", 20, 79_874_484),
        ("minkunet34a-segmentation", 20, 36_607_412),
        ("minkunet34b-segmentation", 20, 36_226_484),
        ("minkunet34c-segmentation", 20, 37_856_052),
        ("minkresnet14", 40, 21_442_408),
        ("minkresnet101", 40, 198_516_712),
        ("minkfcnn", 40, 21_835_112),
        ("minkpointnet", 40, 696_168),
    ],
)
def test_parameters_are_those_of_minkowskiengines_examples(name, num_classes, parameters):
    net = network(name, num_classes=num_classes, in_channels=3)
    assert sum(row.num_parameters for row in net.rows) == parameters


def test_size_of_vgg_on_a_plane():
    net = network("vgg16bn", num_classes=20, in_channels=3)
    assert sum(row.num_parameters for row in net.rows) / 1e6 == pytest.approx(33.65, abs=0.06)


def test_minkfcnn_reads_four_levels_at_every_voxel(chosen):
    """What MinkowskiEngine's example slices: at each voxel the pooled features of the four coarser voxels around it."""
    net = network("minkfcnn-narrow", num_classes=3, in_channels=2)
    batch = random_batch(reach=12)
    tensors = Subnetwork(net, chosen)({INPUT: chosen.tensor(batch)}, minibatch=0)

    def rows_of(name):
        parts = chosen.split({name: tensors[name]})
        stride, coordinates, *_ = parts.coordinate_sets[0]
        return stride[0], coordinates, parts.features[name].rows

    _, coordinates, read = rows_of("up0")
    expected = []
    for name in ("pool1", "pool2", "pool3", "pool4"):
        stride, places, rows = rows_of(name)
        row_at = {tuple(place): row for place, row in zip(places.tolist(), rows, strict=True)}
        above = coordinates.clone()
        above[:, 1:] = above[:, 1:].div(stride, rounding_mode="floor") * stride
        expected.append(torch.stack([row_at[tuple(place)] for place in above.tolist()]))
        assert stride == {"pool1": 2, "pool2": 8, "pool3": 32, "pool4": 128}[name]
    assert torch.equal(read, torch.cat(expected, 1))
    torch.testing.assert_close(*(sorted_rows(at, at)[0] for at in (coordinates, batch.coordinates)))


def test_a_linear_layer_may_have_no_bias(chosen):
    row = Row("linear", "linear", (INPUT,), {"in_channels": 2, "out_channels": 3, "bias": False})
    module = chosen.layer(row)
    assert row.num_parameters == sum(parameter.numel() for parameter in module.parameters()) == 6
    assert chosen.features(module(chosen.tensor(random_batch()))).shape[1] == 3


def test_unet_keeps_its_skips_alive_across_every_cut():
    graph = network("minkunet14a", num_classes=10).graph()
    deepest = graph.index["relu4_1"]
    alive = [graph.layers[k].id for k in graph.producers_across(deepest + 1)]
    assert alive == ["relu0", "relu1_1", "relu2_1", "relu3_1", "relu4_1"]
    assert graph.inputs[graph.index["conv5_up"]] == (graph.index["relu3_1"], deepest)


def test_residual_blocks_shorten_only_where_shapes_change():
    net = network("minkresnet18", num_classes=10)
    inputs = {row.id: row.inputs for row in net.rows}
    assert inputs["add1_1"] == ("bn1_1_2", "bn1_1_short")  # stride 2
    assert inputs["add1_2"] == ("bn1_2_2", "relu1_1")
    assert sum(row.kind == "convolution" for row in network("minkresnet50", num_classes=10).rows) == 1 + 3 * 16 + 4 + 1


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ((Row("a", "sigmoid", (INPUT,)),), ("layer.kind_unknown", "sigmoid", "convolution")),
        ((Row("a", "relu", ("b",)), Row("b", "relu", (INPUT,))), ("layer.input_unknown", "b")),
        ((Row("a", "relu", (INPUT,)), Row("a", "relu", ("a",))), ("layer.name_malformed",)),
        ((Row("a b", "relu", (INPUT,)),), ("layer.name_malformed",)),
    ],
)
def test_bad_rows(rows, error):
    with raises(*error):
        Network("bad", rows, 1, 1)


def test_bad_names():
    with raises("model.unknown", "'vgg'", "vgg19, vgg16, vgg13, vgg11"):
        network("vgg", num_classes=10)
    with raises("model.below_one", num_classes=0):
        network("minkvgg11", num_classes=0)
