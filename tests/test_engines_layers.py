"""Layers in 1 to 4 dimensions against MinkowskiEngine and gradcheck; transposed pools, unions; what is refused."""

import itertools

import pytest
import torch
from coded import raises
from engine_clouds import close, leaf, random_batch, sorted_rows

from sparsepipe.data import PointBatch
from sparsepipe.engines import CoordinateSet, Feature, Parts, Subnetwork, engine
from sparsepipe.engines.subnetwork import initialise
from sparsepipe.networks import INPUT, Network, Row

NATIVE = engine("native")
SHAPES = {
    "3": {"kernel_size": 3},
    "3 / 2": {"kernel_size": 3, "stride": 2},
    "2 / 2": {"kernel_size": 2, "stride": 2},
    "3, dilation 2": {"kernel_size": 3, "dilation": 2},
}
UNEQUAL = {  # on three axes
    "3 3 1": {"kernel_size": (3, 3, 1)},
    "1 3 5, dilation 1 2 1": {"kernel_size": (1, 3, 5), "dilation": (1, 2, 1)},
    "2 2 1, stride 2 2 1": {"kernel_size": (2, 2, 1), "stride": (2, 2, 1)},
    "3 2 1, stride 2 2 1": {"kernel_size": (3, 2, 1), "stride": (2, 2, 1)},
    "3, stride 1 2 2": {"kernel_size": 3, "stride": (1, 2, 2)},
    "1, stride 2 1 1": {"kernel_size": 1, "stride": (2, 1, 1)},
}


def both(minkowski, row, batch, *, like=False):
    """Run a layer under both engines; return coordinates, output and input gradient of each, in coordinate order."""
    found = []
    for chosen in (NATIVE, minkowski):
        module = chosen.layer(row)
        initialise(module, row, seed=3)
        x, features = leaf(chosen, batch)
        order = chosen.split({"x": x}).coordinate_sets[0].coordinates
        y = module(x)
        coordinates = chosen.split({"y": y}).coordinate_sets[0].coordinates
        rows = chosen.features(y)
        weights = torch.sin(coordinates.float().sum(1, keepdim=True) + torch.arange(rows.shape[1]))
        (rows * weights).sum().backward()
        gradients = [p.grad for p in module.parameters()]
        found.append([*sorted_rows(coordinates, rows.detach()), sorted_rows(order, features.grad)[1], *gradients])
    return found


@pytest.mark.parametrize("dimension", [1, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_convolutions_equal_minkowski_in_other_dimensions(minkowski, dimension, shape):
    batch = random_batch(dimension=dimension, reach=5, channels=2)
    args = {"in_channels": 2, "out_channels": 3, "dimension": dimension, "bias": True, **SHAPES[shape]}
    ours, theirs = both(minkowski, Row("c", "convolution", (INPUT,), args), batch)
    assert torch.equal(ours[0], theirs[0])
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        close(a, b, 1e-5)


@pytest.mark.parametrize("shape", UNEQUAL)
@pytest.mark.parametrize("kind", ["convolution", "max_pool", "average_pool", "sum_pool"])
def test_kernels_that_differ_by_axis_equal_minkowski(minkowski, kind, shape):
    args = {"stride": 1, **UNEQUAL[shape]}
    if kind == "convolution":
        args |= {"in_channels": 2, "out_channels": 3, "bias": True}
    elif "dilation" in args:
        pytest.skip("no pool is dilated")
    row = Row("c", kind, (INPUT,), args)
    if kind == "max_pool" and args["kernel_size"] == 1:  # of the maximum of no voxel it writes out of bounds
        with raises("layer.pool_with_gaps"):
            minkowski.layer(row)
        return
    ours, theirs = both(minkowski, row, random_batch(reach=5, channels=2))
    assert torch.equal(ours[0], theirs[0])
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        close(a, b, 1e-5)
    layers = [Subnetwork(Network("one", (row,), 2, 1), chosen) for chosen in (NATIVE, minkowski)]
    layers[0].load_state_dict(layers[1].state_dict())
    layers[1].load_state_dict(layers[0].state_dict())
    assert row.num_parameters == sum(parameter.numel() for parameter in layers[1].parameters())


@pytest.mark.parametrize("kind", ["unpool", "transposed_convolution"])
def test_layers_upwards_with_strides_that_differ_by_axis_equal_minkowski(minkowski, kind):
    shape = {"kernel_size": (2, 2, 1), "stride": (2, 2, 1)}
    channels = {"in_channels": 2, "out_channels": 3} if kind == "transposed_convolution" else {}
    rows = (Row("down", "sum_pool", (INPUT,), shape), Row("up", kind, ("down", INPUT), shape | channels))
    _equal_upwards(minkowski, Network("up", rows, 2, 1), random_batch(reach=5))


def test_a_kernel_of_other_axes_than_its_layers_is_refused_in_one_line():
    row = Row("c", "max_pool", (INPUT,), {"kernel_size": 2, "stride": (2, 1)})
    with raises("layer.axis_count", "layer 'c' of one: stride [2, 1]", "2", dimension=3):
        Network("one", (row,), 2, 1)


@pytest.mark.parametrize("dimension", [1, 4])
@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2), (3, 1)])
@pytest.mark.parametrize("kind", ["max_pool", "average_pool", "sum_pool"])
def test_pools_equal_minkowski_in_other_dimensions(minkowski, kind, size, stride, dimension):
    row = Row("p", kind, (INPUT,), {"kernel_size": size, "stride": stride, "dimension": dimension})
    ours, theirs = both(minkowski, row, random_batch(dimension=dimension, reach=5))
    assert torch.equal(ours[0], theirs[0])
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        close(a, b, 1e-5)


@pytest.mark.parametrize("dimension", [1, 4])
@pytest.mark.parametrize("kind", ["unpool", "transposed_convolution"])
def test_layers_upwards_equal_minkowski_in_other_dimensions(minkowski, kind, dimension):
    shape = {"kernel_size": 2, "stride": 2, "dimension": dimension}
    channels = {"in_channels": 2, "out_channels": 3} if kind == "transposed_convolution" else {}
    net = Network(
        "up", (Row("down", "sum_pool", (INPUT,), shape), Row("up", kind, ("down", INPUT), shape | channels)), 2, 1
    )
    _equal_upwards(minkowski, net, random_batch(dimension=dimension, reach=5))


def _equal_upwards(minkowski, net, batch):
    found = []
    for chosen in (NATIVE, minkowski):
        x, features = leaf(chosen, batch)
        coordinates = chosen.split({"x": x}).coordinate_sets[0].coordinates
        rows = chosen.features(Subnetwork(net, chosen)({INPUT: x}, minibatch=0)["up"])
        weights = torch.sin(coordinates.float().sum(1, keepdim=True) + torch.arange(rows.shape[1]))
        (rows * weights).sum().backward()
        found.append(sorted_rows(coordinates, rows.detach(), features.grad))
    for ours, theirs in zip(*found, strict=True):
        close(ours, theirs, 1e-5)


@pytest.mark.parametrize("dimension", [1, 4])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [("convolution", shape) for shape in SHAPES]
    + [(kind, "3 / 2") for kind in ("max_pool", "average_pool", "sum_pool")],
)
def test_gradients_in_double_precision_in_other_dimensions(dimension, kind, shape):
    batch = random_batch(num_samples=2, num_points=26, reach=2, dimension=dimension)
    args = {"dimension": dimension, "stride": 1} | SHAPES[shape]
    if kind == "convolution":
        args |= {"in_channels": 2, "out_channels": 2}
    module = NATIVE.layer(Row("c", kind, (INPUT,), args)).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    x, features = leaf(NATIVE, batch, dtype=torch.float64)
    inputs = (features, *module.parameters())
    assert torch.autograd.gradcheck(lambda rows, *_: module(x.replace(rows)).features, inputs, fast_mode=True)


@pytest.mark.parametrize("kind", ["instance_norm", "batch_norm", "transposed_convolution", "unpool", "max_unpool"])
def test_gradients_of_other_layers_in_double_precision(kind):
    batch = random_batch(num_samples=2, num_points=30, reach=2)
    fine, _ = leaf(NATIVE, batch, dtype=torch.float64)
    coarse = NATIVE.layer(Row("p", "sum_pool", (INPUT,), {"kernel_size": 2, "stride": 2}))(fine)
    like = ()
    args = {"channels": 2}
    x = fine
    if "norm" not in kind:
        x, like, args = coarse, (fine,), {"kernel_size": 3, "stride": 2}
        if kind == "transposed_convolution":
            args |= {"in_channels": 2, "out_channels": 2}
    module = NATIVE.layer(Row("l", kind, (INPUT,), args)).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    features = torch.randn(x.features.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    inputs = (features.requires_grad_(), *module.parameters())
    assert torch.autograd.gradcheck(lambda rows, *_: module(x.replace(rows), *like).features, inputs, fast_mode=True)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", ["unpool", "average_unpool", "max_unpool"])
def test_transposed_pools_equal_brute_force(kind, size):
    fine = NATIVE.tensor(random_batch(reach=4))
    coarse = NATIVE.layer(Row("p", "sum_pool", (INPUT,), {"kernel_size": size, "stride": 2}))(fine)
    output = NATIVE.layer(Row("u", kind, (INPUT,), {"kernel_size": size, "stride": 2}))(coarse, fine)
    offsets = list(itertools.product(range(2) if size == 2 else range(-1, 2), repeat=3))
    place = {tuple(c): row for row, c in enumerate(coarse.coordinates.tolist())}
    function = {"unpool": torch.sum, "average_unpool": torch.mean, "max_unpool": torch.amax}[kind]
    for row, (b, *voxel) in enumerate(fine.coordinates.tolist()):
        near = [(b, *(v - o for v, o in zip(voxel, offset, strict=True))) for offset in offsets]
        rows = [place[c] for c in near if c in place]
        torch.testing.assert_close(output.features[row], function(coarse.features[rows], dim=0))


def test_minkowski_has_no_other_transposed_pool(minkowski):
    with raises("layer.kind_unsupported", layer="u", kind="max_unpool"):
        minkowski.layer(Row("u", "max_unpool", (INPUT,), {"kernel_size": 2, "stride": 2}))


def test_an_empty_pool_is_zero_and_sends_nothing_back():
    """A kernel of 2 at stride 3 leaves the third voxel out: MinkowskiEngine leaves such rows undefined."""
    voxels = torch.tensor([[0, 0, 0, 2], [0, 3, 3, 3]], dtype=torch.int32)
    batch = PointBatch(voxels, torch.tensor([[5.0], [-7.0]]), torch.tensor([0]))
    for kind in ("max_pool", "average_pool", "sum_pool"):
        x, features = leaf(NATIVE, batch)
        y = NATIVE.layer(Row("p", kind, (INPUT,), {"kernel_size": 2, "stride": 3}))(x)
        assert y.features.flatten().tolist() == [0.0, -7.0]
        y.features.sum().backward()
        assert features.grad.flatten().tolist() == [0.0, 1.0]


def overlapping(chosen, *, manager_of=None):
    """Two sparse tensors at stride 1 on voxels that overlap; features say where they are."""
    batches = [random_batch(num_samples=2, num_points=60, reach=3, seed=seed) for seed in (0, 1)]
    return [leaf(chosen, batch) for batch in batches]


def test_a_union_equals_minkowski(minkowski):
    import MinkowskiEngine as ME

    (a, ours_a), (b, ours_b) = overlapping(NATIVE)
    union = NATIVE.layer(Row("u", "union_add", (INPUT,)))(a, b)
    assert len(a.features) < len(union.features) < len(a.features) + len(b.features)
    weights = torch.sin(union.coordinates.float().sum(1, keepdim=True) + torch.arange(2))
    (union.features * weights).sum().backward()
    theirs_a, theirs_b = (x.detach().clone().requires_grad_() for x in (ours_a, ours_b))
    first = ME.SparseTensor(theirs_a, a.coordinates)
    second = ME.SparseTensor(theirs_b, b.coordinates, coordinate_manager=first.coordinate_manager)
    theirs = minkowski.layer(Row("u", "union_add", (INPUT,)))(first, second)
    coordinates, rows = sorted_rows(theirs.C, theirs.F)
    assert torch.equal(union.coordinates, coordinates)
    close(union.features, rows, 1e-6)
    (theirs.F * torch.sin(theirs.C.float().sum(1, keepdim=True) + torch.arange(2))).sum().backward()
    for ours, other in ((ours_a, theirs_a), (ours_b, theirs_b)):
        close(ours.grad, other.grad, 1e-6)


def test_a_union_of_the_same_voxels_is_a_sum(minkowski):
    for chosen in (NATIVE, minkowski):
        x = chosen.tensor(random_batch())
        twice = chosen.layer(Row("u", "union_add", (INPUT,)))(x, x)
        assert torch.equal(chosen.features(twice), 2 * chosen.features(x))


def test_a_union_of_other_strides_or_widths_is_refused():
    x = NATIVE.tensor(random_batch())
    coarse = NATIVE.layer(Row("p", "sum_pool", (INPUT,), {"kernel_size": 2, "stride": 2}))(x)
    with raises("tensor.union_differs", "[(1, 1, 1), (2, 2, 2)]", widths="[2, 2]"):
        NATIVE.layer(Row("u", "union_add", (INPUT,)))(x, coarse)


WIDE = {"in_channels": 4, "out_channels": 3}
MISFITS = [
    Row("c", "convolution", (INPUT,), WIDE | {"kernel_size": 3}),
    Row("c", "convolution", (INPUT,), WIDE | {"kernel_size": 1}),
    Row("c", "batch_norm", (INPUT,), {"channels": 4}),
    Row("c", "instance_norm", (INPUT,), {"channels": 4}),
    Row("c", "linear", (INPUT,), WIDE),
]


@pytest.mark.parametrize("name", ["native", "minkowski"])
@pytest.mark.parametrize("row", MISFITS, ids=lambda row: row.description)
def test_a_tensor_that_does_not_fit_its_layer_in_one_line(row, name, request):
    """Channels, then the device, then the axes; in one line that names the layer, what it got and what it needs."""
    chosen = request.getfixturevalue("minkowski") if name == "minkowski" else NATIVE
    module, x = Subnetwork(Network("one", (row,), 4, 1), chosen), chosen.tensor(random_batch())
    with raises("layer.channels", row.kind):
        module({INPUT: x}, minibatch=0)
    x = chosen.tensor(random_batch(channels=4))
    module({INPUT: x}, minibatch=0)
    with raises("layer.device", row.kind):
        module.to("meta")({INPUT: x}, minibatch=0)


@pytest.mark.parametrize("name", ["native", "minkowski"])
def test_a_tensor_of_other_axes_in_one_line(name, request):
    chosen = request.getfixturevalue("minkowski") if name == "minkowski" else NATIVE
    flat, rows = chosen.tensor(random_batch(dimension=2)), torch.ones(3, 2)
    for kind, args in (("max_pool", {"stride": 2}), ("convolution", {"in_channels": 2, "out_channels": 1})):
        layer = chosen.layer(Row("p", kind, (INPUT,), {"kernel_size": 2, **args}))
        for tensor, axes in ((flat, 2), (rows, 0)):
            with raises("layer.dimension", axes, kind):
                layer(tensor)


def test_a_grid_that_does_not_fit_a_dense_layer_in_one_line():
    layer = NATIVE.layer(Row("d", "dense_convolution", (INPUT,), WIDE | {"kernel_size": 3, "dimension": 2}))
    with raises("layer.channels", "1", "meets a dense_convolution", layer="d", channels=4):
        layer(torch.ones(2, 1, 8, 8))
    with raises("layer.dimension", "meets a dense_convolution", layer="d", axes=3, dimension=2):
        layer(torch.ones(2, 4, 8, 8, 8))
    norm = NATIVE.layer(Row("n", "dense_batch_norm", (INPUT,), {"channels": 4}))
    with raises("layer.dimension", "meets a dense_batch_norm", layer="n", axes=2, dimension=3):
        norm(torch.ones(2, 4, 8, 8))


@pytest.mark.parametrize("kind", ["convolution", "max_pool", "sum_pool"])
def test_a_tensor_without_voxels_passes(kind):
    """A replica's share of a minibatch may be empty between layers; a minibatch from data never is."""
    empty = CoordinateSet((1, 1, 1), torch.empty(0, 4, dtype=torch.int32))
    rows = torch.empty(0, 2, requires_grad=True)
    x = NATIVE.join(Parts((empty,), {"x": Feature(rows, 0)}))["x"]
    args = {"in_channels": 2, "out_channels": 3} if kind == "convolution" else {}
    for shape in ({"kernel_size": 3, "stride": 1}, {"kernel_size": 2, "stride": 2}):
        layer = NATIVE.layer(Row("c", kind, (INPUT,), args | shape))
        output = layer(x).features
        assert output.shape == (0, 3 if kind == "convolution" else 2)
        output.sum().backward()


def test_empty_samples_and_duplicates_are_refused_before_the_engine():
    """The policy: a voxel belongs to a sample once; voxelize() merges points, it is not the engine that drops them."""
    ones = torch.ones(2, 1)
    with raises("batch.voxel_twice"):
        PointBatch(torch.zeros(2, 4, dtype=torch.int32), ones, torch.tensor([0]))
    with raises("batch.sample_empty", "1"):
        PointBatch(torch.tensor([[0, 0, 0, 0], [0, 1, 0, 0]], dtype=torch.int32), ones, torch.tensor([0, 1]))
