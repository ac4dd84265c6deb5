"""The native engine against dense torch convolution, gradcheck and brute force over coordinates."""

import itertools

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as functional
from coded import raises
from engine_clouds import close, leaf, random_batch
from hypothesis import given, settings

from sparsepipe.engines import CoordinateSet, Feature, Parts, engine
from sparsepipe.engines.native import convolution, coordinates, direct, kernel_map
from sparsepipe.engines.native.convolution import convolve
from sparsepipe.engines.native.coordinates import CoordinateManager, pack, unpack
from sparsepipe.engines.native.kernel_map import kernel_offsets
from sparsepipe.engines.native.layers import global_max_pool, max_pool
from sparsepipe.networks import INPUT, Row

NATIVE = engine("native")
SIZE = 8  # of the dense grid; random_batch(reach=4) fills [-4, 4)


def dense(voxels, features):
    """Scatter rows onto a grid [B, C, 8, 8, 8] whose origin is -4."""
    grid = features.new_zeros(int(voxels[:, 0].max()) + 1, features.shape[1], SIZE, SIZE, SIZE)
    b, x, y, z = (voxels.long() + torch.tensor([0, 4, 4, 4])).unbind(1)
    grid[b, :, x, y, z] = features
    return grid


def torch_kernel(kernel, size):
    """[K, C_in, C_out], first axis fastest -> [C_out, C_in, X, Y, Z]."""
    volume = kernel.reshape(size, size, size, *kernel.shape[-2:])  # z, y, x
    return volume.permute(4, 3, 2, 1, 0)


SHAPES = [(3, 1, 1), (3, 2, 1), (2, 2, 1), (1, 1, 1), (5, 1, 1), (3, 1, 2), (4, 4, 1)]


@pytest.mark.parametrize(("size", "stride", "dilation"), SHAPES)
def test_convolution_equals_dense_convolution(size, stride, dilation):
    batch = random_batch(reach=4, channels=3)
    x, features = leaf(NATIVE, batch, dtype=torch.float64)
    args = {"in_channels": 3, "out_channels": 4, "bias": True}
    args |= {"kernel_size": size, "stride": stride, "dilation": dilation}
    layer = NATIVE.layer(Row("c", "convolution", (INPUT,), args)).double()
    torch.nn.init.normal_(layer.kernel, generator=torch.Generator().manual_seed(0))
    torch.nn.init.normal_(layer.bias, generator=torch.Generator().manual_seed(1))
    output = layer(x)
    gradient = torch.randn(output.features.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    output.features.backward(gradient)
    ours = output.features.detach(), features.grad, layer.kernel.grad, layer.bias.grad

    dense_features = features.detach().clone().requires_grad_()
    layer.zero_grad()
    first = dilation * (size // 2) if size % 2 else 0  # the grid starts where an odd kernel's first tap reaches out
    last = dilation * (size - 1) - first
    grid = functional.pad(dense(x.coordinates, dense_features), (first, last) * 3)
    result = functional.conv3d(grid, torch_kernel(layer.kernel, size), stride=stride, dilation=dilation)
    b, *axes = (output.coordinates.long() + torch.tensor([0, 4, 4, 4])).unbind(1)
    rows = result[b, :, *(axis // stride for axis in axes)] + layer.bias
    rows.backward(gradient)
    theirs = rows.detach(), dense_features.grad, layer.kernel.grad, layer.bias.grad
    for a, b in zip(ours, theirs, strict=True):
        close(a, b, 1e-12)


@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 1), (3, 2)])
def test_max_pool_equals_brute_force(size, stride):
    x, features = leaf(NATIVE, random_batch(reach=4, channels=3))
    output = NATIVE.layer(Row("m", "max_pool", (INPUT,), {"kernel_size": size, "stride": stride}))(x)
    output.features.sum().backward()
    place = {tuple(c): row for row, c in enumerate(x.coordinates.tolist())}
    gradient = torch.zeros_like(features)
    expected = sorted({(c[0], *(v // stride * stride for v in c[1:])) for c in place})
    assert output.coordinates.tolist() == [list(c) for c in expected]
    for row, (b, *c) in enumerate(expected):
        near = [(b, *(v + o for v, o in zip(c, offset, strict=True))) for offset in kernel_offsets((size,) * 3)]
        rows = [place[c] for c in near if c in place]
        best = features.detach()[rows].max(dim=0)
        assert torch.equal(output.features[row], best.values)
        for channel, winner in enumerate(best.indices):
            gradient[rows[winner], channel] += 1
    assert torch.equal(features.grad, gradient)


def each_axis(*values):
    """One of the values for all axes of up to four, or one for each."""
    some = st.sampled_from(values)
    return st.one_of(some.map(lambda value: (value,) * 4), st.tuples(*[some] * 4))


@given(st.integers(1, 4), each_axis(1, 2, 3), each_axis(1, 2), each_axis(1, 2), st.sampled_from([0, 30, 300, 2**28]))
@settings(max_examples=40)
def test_kernel_maps_equal_brute_force(dimension, size, stride, dilation, cells):
    """All ways to look voxels up: a table of the bounding box, one of its blocks, and bisection, by the box's size."""
    size, stride, dilation = size[:dimension], stride[:dimension], dilation[:dimension]
    generator = torch.Generator().manual_seed(dimension)
    voxels = torch.randint(-3, 3, (40, 1 + dimension), generator=generator)
    voxels[:, 0] %= 2
    voxels = voxels.unique(dim=0)
    manager = CoordinateManager(dimension)
    ones = (1,) * dimension
    manager.insert(ones, pack(voxels))
    target = manager.downsampled(ones, stride)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_map, "_TABLE_CELLS", cells)
        patch.setattr(kernel_map, "_TABLE_CELLS_PER_QUESTION", 2**28)
        found = manager.kernel_map(ones, target, kernel_size=size, dilation=dilation)
    out = manager.coordinates(target)
    steps = torch.tensor(stride)
    floored = torch.cat([voxels[:, :1], voxels[:, 1:] // steps * steps], dim=1)
    assert torch.equal(out.long(), floored.unique(dim=0))
    taps = [range(-(own // 2), own // 2 + 1) if own % 2 else range(own) for own in size]
    place = {tuple(row): i for i, row in enumerate(voxels.tolist())}
    pairs = set()
    for k, offset in enumerate(itertools.product(*reversed(taps))):  # the last axis runs fastest: reversed below
        for j, (b, *c) in enumerate(out.tolist()):
            i = place.get((b, *(v + d * o for v, d, o in zip(c, dilation, offset[::-1], strict=True))))
            if i is not None:
                pairs.add((k, i, j))
    offsets = torch.arange(len(found.counts)).repeat_interleave(torch.tensor(found.counts))
    ours = set(zip(offsets.tolist(), found.in_rows.tolist(), found.out_rows.tolist(), strict=True))
    if found.identity is not None:
        ours |= {(found.identity, i, i) for i in range(len(out))}
    assert ours == pairs
    assert found.num_pairs == len(pairs)
    inputs = found.inputs
    for j in range(len(out)):
        own = inputs.rows[inputs.starts[j] : inputs.starts[j + 1]].tolist()
        assert own == [i for _, i, row in sorted(pairs) if row == j]
    for num_rows in (1, 7, 1000):
        chunks = found.chunks(num_rows)
        assert all(chunk.num_pairs <= num_rows or len(chunk.offsets) == 1 for chunk in chunks)
        offsets = [own for chunk in chunks for own in chunk.offsets]
        for name in ("in_rows", "out_rows"):
            assert [row for own in offsets for row in getattr(own, name).tolist()] == getattr(found, name).tolist()
        assert [own.number for own in offsets] == [k for k, count in enumerate(found.counts) if count]
        for chunk in chunks:
            rows = torch.cat([own.out_rows for own in chunk.offsets])
            ones = chunk.bags.sum(torch.ones(chunk.num_pairs, 1)).flatten()
            assert ones.tolist() == torch.bincount(rows, minlength=len(out)).tolist()


def test_gradients_in_double_precision():
    batch = random_batch(num_samples=2, num_points=30, reach=2)
    manager = NATIVE.tensor(batch).manager
    one = (1, 1, 1)
    features = torch.randn(len(manager.keys(one)), 2, dtype=torch.float64, requires_grad=True)
    for target, size in ((one, 3), (manager.downsampled(one, 2), 2), (manager.downsampled(one, 2), 3)):
        pairs = manager.kernel_map(one, target, kernel_size=size)
        kernel = torch.randn(size**3, 2, 3, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x, k, m=pairs: convolve(x, k, m), (features, kernel), fast_mode=True)
        assert torch.autograd.gradcheck(lambda x, m=pairs: max_pool(x, m), (features,), fast_mode=True)
    sizes = manager.sample_sizes(one)
    assert torch.autograd.gradcheck(lambda x: global_max_pool(x, sizes), (features,))


def test_maps_are_built_once_for_a_minibatch(monkeypatch):
    built = []
    build = coordinates.kernel_map
    monkeypatch.setattr(coordinates, "kernel_map", lambda *args, **shape: built.append(shape) or build(*args, **shape))
    args = {"in_channels": 2, "out_channels": 2, "kernel_size": 3}
    x = NATIVE.tensor(random_batch())
    for name in "abc":
        x = NATIVE.layer(Row(name, "convolution", (INPUT,), args))(x)
    assert len(built) == 1


@given(st.integers(1, 4), st.integers(0, 9))
@settings(max_examples=20)
def test_keys_keep_coordinates_and_their_order(dimension, seed):
    bits = {1: 31, 2: 22, 3: 16, 4: 12}[dimension]
    limit = 3 << (bits - 3)
    generator = torch.Generator().manual_seed(seed)
    voxels = torch.randint(-limit, limit, (50, 1 + dimension), generator=generator)
    voxels[:, 0] = torch.randint(0, 1000, (50,), generator=generator)
    voxels = voxels.int().unique(dim=0)
    keys = pack(voxels)
    assert torch.equal(unpack(keys, dimension), voxels)
    assert bool((keys[1:] > keys[:-1]).all())


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ([0, 0, 0, 24576], ("coordinates.out_of_range", "0", "24576", "-24576", "24575", "3")),
        ([0, -24577, 0, 0], ("coordinates.out_of_range", "-24577", "0")),
        ([-1, 0, 0, 0], ("batch.index_out_of_range", "-1", "-1", "32767", "3")),
        ([40000, 0, 0, 0], ("batch.index_out_of_range",)),
        ([0], ("coordinates.dimension", "0")),
        ([0, 0, 0, 0, 0, 0], ("coordinates.dimension", "5")),
    ],
)
def test_coordinates_that_do_not_fit(row, error):
    with raises(*error):
        pack(torch.tensor([row], dtype=torch.int32))


def test_wrong_channels_in_one_line():
    layer = NATIVE.layer(Row("c", "convolution", (INPUT,), {"in_channels": 3, "out_channels": 3, "kernel_size": 3}))
    with raises("layer.channels", "2", "meets a convolution", channels=3):
        layer(NATIVE.tensor(random_batch(channels=2)))


def test_a_union_crosses_beside_what_it_was_made_of():
    """One coordinate set was sent for both: they have one tensor stride."""
    x = NATIVE.tensor(random_batch(channels=2))
    moved = CoordinateSet((1, 1, 1), x.coordinates + torch.tensor([0, 1, 0, 0], dtype=torch.int32))
    y = NATIVE.join(Parts((moved,), {"y": Feature(x.features, 0)}))["y"]
    union = NATIVE.layer(Row("u", "union_add", (INPUT, INPUT), {}))(x, y)
    parts = NATIVE.split({"x": x, "union": union})
    assert [one.family for one in parts.coordinate_sets] == [0, 1]
    joined = NATIVE.join(parts)
    for name, tensor in {"x": x, "union": union}.items():
        assert torch.equal(joined[name].coordinates, tensor.coordinates)
        assert torch.equal(joined[name].features, tensor.features)
    assert not joined["x"].shares_voxels(joined["union"])


def test_a_later_stage_of_a_process_has_the_kernel_maps_of_sets_that_both_have():
    """A set that another process sent is shared if its voxels are the same, and only then."""
    x, one, two, size = NATIVE.tensor(random_batch(channels=2)), (1, 1, 1), (2, 2, 2), {"kernel_size": 3}
    x.manager.downsampled(one, 2)
    maps = {ends: x.manager.kernel_map(*ends, **size) for ends in ((one, one), (one, two), (two, two))}
    coarse = unpack(x.manager.keys(two), 3)
    for sent, shared in ((coarse, set(maps)), (coarse[1:], {(one, one)})):
        parts = NATIVE.split({"x": x})
        y = Feature(torch.zeros(len(sent), 1), 1)
        sets = (*parts.coordinate_sets, CoordinateSet(two, sent.clone()))
        joined = NATIVE.join(Parts(sets, {**parts.features, "y": y}))
        manager = joined["y"].manager
        assert manager is joined["x"].manager is not x.manager and torch.equal(joined["y"].coordinates, sent)
        alone = CoordinateManager(3)
        alone.insert(one, x.manager.keys(one))
        alone.insert(two, pack(sent))
        for ends, made in maps.items():
            own, again = manager.kernel_map(*ends, **size), alone.kernel_map(*ends, **size)
            assert (own.inputs is made.inputs) == (ends in shared), "what was derived from it, too"
            assert torch.equal(own.in_rows, again.in_rows) and torch.equal(own.out_rows, again.out_rows)
            assert own.counts == again.counts
    assert torch.equal(x.manager.keys(two), pack(coarse)), "the earlier stage's own are as they were"


def test_voxels_whose_coarser_voxel_is_not_there_are_left_out():
    """Coordinate sets that arrive from elsewhere need not be each other's: only pairs that are there count."""
    fine = CoordinateSet((1, 1, 1), torch.tensor([[0, 0, 0, 0], [0, 1, 0, 0], [0, 2, 0, 0]], dtype=torch.int32))
    coarse = CoordinateSet((2, 2, 2), torch.tensor([[0, 0, 0, 0]], dtype=torch.int32))
    rows = torch.tensor([[1.0], [2.0], [4.0]])
    x = NATIVE.join(Parts((fine, coarse), {"x": Feature(rows, 0)}))["x"]
    y = NATIVE.layer(Row("p", "sum_pool", (INPUT,), {"kernel_size": 2, "stride": 2}))(x)
    assert y.features.tolist() == [[3.0]]
    assert x.manager.kernel_map((1, 1, 1), (2, 2, 2), kernel_size=2).counts == (1, 1, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("channels", [(1, 8), (8, 8), (3, 5), (8, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_ways_to_convolve_agree(channels, dtype, monkeypatch):
    """Whole maps and chunks, one input channel and more, torch's grouped products or not; code of its own or none."""
    batch = random_batch(channels=channels[0], reach=4)
    args = {"in_channels": channels[0], "out_channels": channels[1], "kernel_size": 3}
    layer = NATIVE.layer(Row("c", "convolution", (INPUT,), args)).to(dtype)
    torch.nn.init.normal_(layer.kernel, generator=torch.Generator().manual_seed(0))
    results = []
    ways = (True, True, False), (False, True, False), (True, False, False), (True, True, False), (True, True, True)
    suits = direct.suits
    for whole, wants_features, own in ways:
        monkeypatch.setattr(direct, "suits", suits if own else lambda *_: False)
        monkeypatch.setattr(convolution, "_CACHE_BYTES", 2**23 if whole else 0)
        x, features = leaf(NATIVE, batch, dtype=dtype)
        features.requires_grad_(wants_features)
        layer.zero_grad()
        output = layer(x.replace(features)).features
        output.backward(torch.sin(torch.arange(output.numel(), dtype=dtype)).reshape(output.shape))
        results.append((output.detach(), layer.kernel.grad.clone(), features.grad))
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            if b is not None:
                close(b, a, tolerance)
    assert all(torch.equal(a, b) for a, b in zip(results[0], results[3], strict=True))  # the same bits each time
