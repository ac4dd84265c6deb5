"""The native engine against MinkowskiEngine, layer by layer and on a whole network: outputs, gradients, state_dicts."""

import subprocess
import sys

import pytest
import torch
from coded import mentions, raises
from engine_clouds import close, leaf, random_batch, real_batch, sorted_rows

from sparsepipe.data import PointBatch
from sparsepipe.engines import CoordinateSet, Feature, Parts, Subnetwork, engine
from sparsepipe.engines.subnetwork import initialise
from sparsepipe.errors import InputError
from sparsepipe.networks import INPUT, Network, Row, network

NATIVE = engine("native")
ROWS = [
    Row("a", "convolution", (INPUT,), {"in_channels": 2, "out_channels": 5, "kernel_size": 3}),
    Row(
        "b", "convolution", (INPUT,), {"in_channels": 2, "out_channels": 5, "kernel_size": 3, "stride": 2, "bias": True}
    ),
    Row("c", "convolution", (INPUT,), {"in_channels": 2, "out_channels": 3, "kernel_size": 2, "stride": 2}),
    Row("d", "convolution", (INPUT,), {"in_channels": 2, "out_channels": 3, "kernel_size": 2}),
    Row("e", "convolution", (INPUT,), {"in_channels": 2, "out_channels": 3, "kernel_size": 1}),
    Row("f", "convolution", (INPUT,), {"in_channels": 2, "out_channels": 3, "kernel_size": 1, "stride": 2}),
    Row("g", "convolution", (INPUT,), {"in_channels": 2, "out_channels": 3, "kernel_size": 5, "bias": True}),
    Row("h", "convolution", (INPUT,), {"in_channels": 2, "out_channels": 3, "kernel_size": 3, "dilation": 2}),
    Row("i", "convolution", (INPUT,), {"in_channels": 2, "out_channels": 3, "kernel_size": 3, "stride": 3}),
    Row("j", "batch_norm", (INPUT,), {"channels": 2}),
    Row("k", "relu", (INPUT,)),
    Row("l", "max_pool", (INPUT,), {"kernel_size": 2, "stride": 2}),
    Row("m", "max_pool", (INPUT,), {"kernel_size": 3, "stride": 2}),
    Row("n", "max_pool", (INPUT,), {"kernel_size": 3, "stride": 1}),
    Row("o", "global_max_pool", (INPUT,)),
    Row("q", "average_pool", (INPUT,), {"kernel_size": 2, "stride": 2}),
    Row("r", "average_pool", (INPUT,), {"kernel_size": 3, "stride": 1}),
    Row("s", "sum_pool", (INPUT,), {"kernel_size": 3, "stride": 2}),
    Row("t", "global_average_pool", (INPUT,)),
    Row("u", "global_sum_pool", (INPUT,)),
    Row("v", "instance_norm", (INPUT,), {"channels": 2}),
    Row("w", "gelu", (INPUT,)),
    Row("x", "leaky_relu", (INPUT,), {"negative_slope": 0.2}),
    Row("p", "linear", (INPUT,), {"in_channels": 2, "out_channels": 4}),
]


def run(chosen, row, batch, *, stride=None, state=None):
    """Run one layer forward and backward; return coordinates, output, input gradient, module, in coordinate order.

    Features and the output's gradient are functions of the coordinates, so engines agree whatever their row order.
    """
    module = chosen.layer(row)
    initialise(module, row, seed=1)
    if state is not None:
        module.load_state_dict(state)
    order = chosen.split({"x": chosen.tensor(batch)}).coordinate_sets[0].coordinates
    x, features = leaf(chosen, batch, stride=stride, rows=wave(order, batch.features.shape[1]))
    output = module(x)
    rows = chosen.features(output)
    sets = chosen.split({"y": output}).coordinate_sets
    coordinates = sets[0].coordinates if sets else torch.arange(len(rows)).unsqueeze(1)
    rows.backward(wave(coordinates, rows.shape[1], phase=1.0))
    in_order = sorted_rows(order, features.grad)
    return *sorted_rows(coordinates, rows.detach()), in_order[1], module, sets[0].tensor_stride if sets else None


def wave(coordinates, channels, *, phase=0.0):
    """Distinct values for every voxel and channel (a maximum has one winner), the same whatever the order of rows."""
    axes = torch.tensor([0.9137, 1.7719, 2.3371, 3.1953, 4.7117], dtype=torch.float64)[: coordinates.shape[1]]
    places = coordinates.double() @ axes  # in single precision, the order in which a row is added up would show
    return torch.sin(places.unsqueeze(1) * (1 + torch.arange(channels)) + phase).float()


def compare(minkowski, row, batch, *, stride=None):
    ours = run(NATIVE, row, batch, stride=stride)
    theirs = run(minkowski, row, batch, stride=stride)
    assert torch.equal(ours[0], theirs[0])
    assert ours[4] == theirs[4]
    close(ours[1], theirs[1], 1e-5)
    close(ours[2], theirs[2], 1e-5)
    for (name, a), (other, b) in zip(ours[3].named_parameters(), theirs[3].named_parameters(), strict=True):
        assert name == other
        close(a.grad, b.grad, 1e-5)
    states = ours[3].state_dict(), theirs[3].state_dict()
    assert list(states[0]) == list(states[1])
    for name, value in states[0].items():
        assert value.shape == states[1][name].shape
        close(value.float(), states[1][name].float(), 1e-5)
    ours[3].load_state_dict(states[1])
    theirs[3].load_state_dict(states[0])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.description)
def test_layers_equal_minkowski_on_random_voxels(minkowski, row):
    compare(minkowski, row, random_batch())


@pytest.mark.parametrize("row", [row for row in ROWS if row.id in "abhlm"], ids=lambda row: row.description)
def test_layers_equal_minkowski_on_a_coarser_grid(minkowski, row):
    compare(minkowski, row, random_batch(seed=1), stride=(4, 4, 4))


@pytest.fixture(scope="module")
def real(shared_data):
    """Two real shapes, two channels."""
    batch = real_batch(shared_data, num_samples=2)
    return type(batch)(batch.coordinates, batch.features.expand(-1, 2).contiguous(), batch.labels)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.description)
def test_layers_equal_minkowski_on_real_voxels(minkowski, row, real):
    compare(minkowski, row, real)


@pytest.mark.parametrize("num_samples", [1, 4, 13])
def test_global_pools_give_each_sample_its_own_row(chosen, num_samples):
    """MinkowskiEngine's means and sums of four samples and more stood in the rows of other samples."""
    tensor = chosen.tensor(random_batch(num_samples=num_samples, num_points=300))
    parts = chosen.split({"x": tensor})
    place, rows = parts.coordinate_sets[0].coordinates[:, 0], parts.features["x"].rows
    pools = {"max": lambda x: x.max(0).values, "average": lambda x: x.mean(0), "sum": lambda x: x.sum(0)}
    for name, pool in pools.items():
        expected = torch.stack([pool(rows[place == sample]) for sample in range(num_samples)])
        close(chosen.layer(Row("p", f"global_{name}_pool", (INPUT,)))(tensor), expected, 1e-5)


@pytest.mark.parametrize("pool", ["global_average_pool", "global_sum_pool"])
def test_global_pools_of_many_samples_equal_minkowski(minkowski, pool):
    compare(minkowski, Row("p", pool, (INPUT,)), random_batch(num_samples=13, num_points=300))


# No batch norm; bottlenecks; skips, transposed convolutions and a head of every voxel.
NARROW = ["minkvgg11-narrow", "minkresnet50-narrow", "minkunet14c-segmentation-narrow"]


_GRADIENTS = 1e-9  # in double precision: rounding, times what some fifty batch norms in a row make of it


@pytest.mark.slow
@pytest.mark.parametrize("name", NARROW)
def test_whole_networks_equal_minkowski(minkowski, name, request):
    """In training and, with the running statistics that this left, in evaluation.

    Gradients are held together in double precision: in single, a pre-activation within rounding of 0 passes its
    gradient in one engine and not in the other, and batch norm spreads that over the minibatch. Without batch norm it
    does not spread.
    """
    try:
        batch = real_batch(request.getfixturevalue("shared_data"), voxel_size=0.02)
    except pytest.skip.Exception:
        batch = random_batch(channels=1, reach=25, num_points=900)
    net = network(name, num_classes=10)
    normed = any(row.kind == "batch_norm" for row in net.rows)
    single = [run_table(chosen, net, batch) for chosen in (NATIVE, minkowski)]
    assert torch.equal(single[0][0], single[1][0])
    close(single[0][1], single[1][1], 1e-4)
    if not normed:
        for parameter, value in single[0][3].named_parameters():
            close(value.grad, single[1][3].get_parameter(parameter).grad, 1e-4)
    ours, theirs = (run_table(chosen, net, batch, dtype=torch.float64) for chosen in (NATIVE, minkowski))
    close(ours[1], theirs[1], 1e-10)
    close(ours[2], theirs[2], _GRADIENTS)
    for parameter, value in ours[3].named_parameters():
        close(value.grad, theirs[3].get_parameter(parameter).grad, _GRADIENTS)
    for key, value in ours[3].state_dict().items():
        close(value.double(), theirs[3].state_dict()[key].double(), 1e-10)
    ours, theirs = (
        run_table(c, net, batch, module=m[3].eval()) for c, m in zip((NATIVE, minkowski), single, strict=True)
    )
    close(ours[1], theirs[1], 1e-4)


def deep_batch(name, request):
    """Real voxels that leave a network several for each sample where it is coarsest: a MinkResNet's stride is 192."""
    return real_batch(request.getfixturevalue("shared_data"), voxel_size=0.004 if "resnet" in name else 0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["minkresnet18-narrow", "minkunet14a-narrow"])
def test_running_statistics_of_whole_networks_equal_minkowski_in_single_precision(minkowski, name, request):
    net, batch = network(name, num_classes=10), deep_batch(name, request)
    ours, theirs = (run_table(chosen, net, batch)[3].state_dict() for chosen in (NATIVE, minkowski))
    for key in (key for key in ours if "running" in key):
        close(ours[key], theirs[key], 1e-4)


def test_a_network_trained_by_one_engine_goes_on_in_the_other(minkowski, request):
    """Both ways: the state_dict after a training pass loads, and gives the outputs and gradients of where it was."""
    net = network("minkunet14a-narrow", num_classes=10)
    batch = deep_batch(net.name, request)
    for one, other in ((NATIVE, minkowski), (minkowski, NATIVE)):
        trained = run_table(one, net, batch, dtype=torch.float64)[3].eval()
        trained.zero_grad()
        loaded = Subnetwork(net, other, seed=2).double().eval()
        loaded.load_state_dict(trained.state_dict())
        expected = run_table(one, net, batch, dtype=torch.float64, module=trained)
        found = run_table(other, net, batch, dtype=torch.float64, module=loaded)
        close(found[1], expected[1], 1e-10)
        close(found[2], expected[2], _GRADIENTS)
        for parameter, value in loaded.named_parameters():
            close(value.grad, trained.get_parameter(parameter).grad, _GRADIENTS)


@pytest.mark.parametrize("name", ["native", "minkowski"])
def test_bad_tensors_are_refused(name, request):
    chosen = request.getfixturevalue("minkowski") if name == "minkowski" else NATIVE
    tensor = chosen.tensor(random_batch())
    parts = chosen.split({"x": tensor})
    (stride, coordinates, *_), (rows, _) = parts.coordinate_sets[0], parts.features["x"]
    twice = CoordinateSet(stride, torch.cat([coordinates, coordinates[-1:]]))
    with pytest.raises(InputError, match="distinct"):
        chosen.join(Parts((twice,), {"x": Feature(torch.cat([rows, rows[:1]]), 0)}))
    with raises("tensor.row_count", len(rows) - 1, len(rows)):
        chosen.join(Parts(parts.coordinate_sets, {"x": Feature(rows[:-1], 0)}))
    with raises("output.still_sparse"):
        chosen.rows(tensor)
    narrow = {"in_channels": 1, "out_channels": 3, "kernel_size": 3}
    with raises("layer.channels", "2", "meets a convolution", channels=1):
        chosen.layer(Row("c", "convolution", (INPUT,), narrow))(tensor)
    one = chosen.tensor(PointBatch(torch.zeros(1, 4, dtype=torch.int32), torch.ones(1, 2), torch.zeros(1).long()))
    norm = chosen.layer(Row("n", "batch_norm", (INPUT,), {"channels": 2}))
    with raises("batch_norm.too_few_voxels"):
        norm(one)
    assert chosen.features(norm.eval()(one)).shape == (1, 2)


def test_names_of_engines(capsys, monkeypatch):
    with raises("engine.unknown", "torch, native, minkowski, spconv, auto", name="dense"):
        engine("dense")
    monkeypatch.setitem(sys.modules, "MinkowskiEngine", None)  # what import finds where it is not installed
    monkeypatch.delitem(sys.modules, "sparsepipe.engines.minkowski", raising=False)
    with raises("engine.not_importable"):
        engine("minkowski")
    monkeypatch.setattr("sparsepipe.engines.native.direct.compiled", lambda: (0, "no compiler"))
    assert engine("auto").name == "native"
    assert mentions(capsys.readouterr().err, "(MinkowskiEngine")


def test_minkowski_leaves_the_number_of_threads_alone(minkowski):
    """Its coordinate manager sets OpenMP's number for the whole process, by default to that of the processors."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        minkowski.layer(ROWS[0])(minkowski.tensor(random_batch()))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_engines_are_imported_only_when_asked_for():
    code = (
        "import sys, sparsepipe.engines as e; assert 'MinkowskiEngine' not in sys.modules; "
        "e.engine('native'); assert 'MinkowskiEngine' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def table(*rows, in_channels=2):
    return Network("table", rows, in_channels, 1)


COARSE = Row("coarse", "convolution", (INPUT,), {"in_channels": 2, "out_channels": 4, "kernel_size": 2, "stride": 2})
COARSER = Row(
    "coarser", "convolution", ("coarse",), {"in_channels": 4, "out_channels": 4, "kernel_size": 3, "stride": 2}
)
UP = {"in_channels": 4, "out_channels": 3, "stride": 2}
TABLES = {
    "transposed 2": table(COARSE, Row("up", "transposed_convolution", ("coarse", INPUT), UP | {"kernel_size": 2})),
    "transposed 3, bias": table(
        COARSE, Row("up", "transposed_convolution", ("coarse", INPUT), UP | {"kernel_size": 3, "bias": True})
    ),
    "transposed, not the finest": table(
        COARSE, COARSER, Row("up", "transposed_convolution", ("coarser", "coarse"), UP | {"kernel_size": 2})
    ),
    "unpool 2": table(COARSE, Row("up", "unpool", ("coarse", INPUT), {"kernel_size": 2, "stride": 2})),
    "unpool 3": table(COARSE, Row("up", "unpool", ("coarse", INPUT), {"kernel_size": 3, "stride": 2})),
    "skips": table(
        COARSE,
        Row("up", "transposed_convolution", ("coarse", INPUT), UP | {"kernel_size": 2}),
        Row("both", "concatenate", ("up", INPUT)),
        Row("conv", "convolution", ("both",), {"in_channels": 5, "out_channels": 5, "kernel_size": 3}),
        Row("sum", "add", ("conv", "both", "both")),
    ),
    "dropout": table(COARSE, Row("drop", "dropout", ("coarse",), {"probability": 0.4})),
    "dense": table(
        Row("grid", "dense_grid", (INPUT,), {"size": 8}),
        Row(
            "conv",
            "dense_convolution",
            ("grid",),
            {"in_channels": 2, "out_channels": 3, "kernel_size": 3, "padding": 1},
        ),
        Row("bn", "dense_batch_norm", ("conv",), {"channels": 3}),
        Row("relu", "relu", ("bn",)),
        Row("twice", "add", ("relu", "conv")),
        Row("pool", "dense_max_pool", ("twice",), {"kernel_size": 2, "stride": 2}),
        Row("flat", "flatten", ("pool",)),
        Row("fc", "linear", ("flat",), {"in_channels": 192, "out_channels": 2}),
    ),
}


def run_table(chosen, net, batch, *, dtype=torch.float32, module=None):
    """Like `run`, for a whole table: coordinates, output rows, input gradient, module."""
    module = module or Subnetwork(net, chosen, seed=1).to(dtype)
    order = chosen.split({"x": chosen.tensor(batch)}).coordinate_sets[0].coordinates
    x, features = leaf(chosen, batch, rows=wave(order, batch.features.shape[1]), dtype=dtype)
    last = net.rows[-1].id
    output = module({INPUT: x}, minibatch=0, keep=(last,))[last]
    rows = chosen.features(output)
    sets = chosen.split({"y": output}).coordinate_sets
    coordinates = sets[0].coordinates if sets else torch.arange(len(rows)).unsqueeze(1)
    rows.backward(wave(coordinates, rows.shape[1], phase=1.0).to(dtype))
    return *sorted_rows(coordinates, rows.detach()), sorted_rows(order, features.grad)[1], module


def compare_tables(minkowski, net, batch):
    ours, theirs = (run_table(chosen, net, batch) for chosen in (NATIVE, minkowski))
    assert torch.equal(ours[0], theirs[0])
    close(ours[1], theirs[1], 1e-5)
    close(ours[2], theirs[2], 1e-5)
    for parameter, value in ours[3].named_parameters():
        close(value.grad, theirs[3].get_parameter(parameter).grad, 1e-5)


@pytest.mark.parametrize("name", TABLES)
def test_tables_equal_minkowski(minkowski, name):
    batch = random_batch(reach=4)
    if name == "dense":
        batch = type(batch)(
            batch.coordinates + torch.tensor([0, 4, 4, 4], dtype=torch.int32), batch.features, batch.labels
        )
    compare_tables(minkowski, TABLES[name], batch)


@pytest.mark.parametrize("name", [name for name in TABLES if name != "dense"])
def test_tables_equal_minkowski_on_real_voxels(minkowski, name, real):
    compare_tables(minkowski, TABLES[name], real)


@pytest.mark.parametrize("kind", ["add", "concatenate"])
def test_tensors_on_other_voxels_do_not_merge(kind, minkowski):
    net = table(COARSE, Row("both", kind, ("coarse", INPUT)))
    for chosen in (NATIVE, minkowski):
        with raises("tensor.strides_differ"):
            Subnetwork(net, chosen)({INPUT: chosen.tensor(random_batch())}, minibatch=0)


def test_voxels_outside_a_dense_grid():
    net = table(Row("grid", "dense_grid", (INPUT,), {"size": 4}))
    with raises("dense.out_of_range", "3", "0.25", low=-6, high=5, size=4):
        Subnetwork(net, NATIVE)({INPUT: NATIVE.tensor(random_batch())}, minibatch=0)
