"""One scene over several devices: outputs, gradients and statistics are those of one device, and halos no larger."""

import itertools
import random
from functools import partial

import pytest
import torch
from engine_clouds import close, random_batch
from scene_parts import in_threads

from sparsepipe.data import PointBatch
from sparsepipe.engines import engine
from sparsepipe.engines.native.space import Regions
from sparsepipe.engines.subnetwork import build
from sparsepipe.networks import network
from sparsepipe.networks.rows import Network, Row
from sparsepipe.profiling.measure import profile
from sparsepipe.values.costs import LayerTable

NATIVE = engine("native")


def of_table(*rows, in_channels=2):
    """Make a network of (id, kind, inputs, args) rows."""
    return Network("test", tuple(Row(*row) for row in rows), in_channels, 3)


def surface(seed, *, size=40, clouds=2):
    """Clouds on a curved surface, as scans are: density differs from place to place."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for cloud in range(clouds):
        flat = (torch.randn(700, 2, generator=generator) * size / 4).int()
        height = (6 * torch.sin(flat[:, :1] / 7.0 + cloud)).int()
        parts.append(torch.cat([torch.full((len(flat), 1), cloud), flat, height], dim=1))
    coordinates = torch.cat(parts).int().unique(dim=0)
    return PointBatch(coordinates, torch.randn(len(coordinates), 2, generator=generator), torch.arange(clouds))


def forward_and_backward(table, tensor, *, weigh, dtype, seed=3, chosen=NATIVE):
    """Return output rows, gradients by name of `weigh(output)`, and buffers, of one training pass."""
    module = build(table, chosen, seed=seed).to(dtype)
    rows = chosen.features(tensor).to(dtype, copy=True).requires_grad_()
    tensor = chosen.replace(tensor, rows)
    output = chosen.features(module.result(module(module.enter(tensor), minibatch=5, keep=table.outputs)))
    weigh(output, tensor).backward()
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    return output.detach(), {"input": rows.grad} | gradients, dict(module.named_buffers())


def compare_with_one_device(table, batch, shares, *, dtype=torch.float32, tolerance=1e-5, chosen=NATIVE):
    """Assert that parts of a minibatch give what one device does."""
    whole = chosen.tensor(batch)
    num_voxels = len(chosen.features(whole))
    run = partial(forward_and_backward, table, dtype=dtype, chosen=chosen)
    generator = torch.Generator().manual_seed(1)
    probe = build(table, chosen, seed=3)
    with torch.no_grad():
        shape = chosen.features(probe.result(probe(probe.enter(whole), minibatch=5, keep=table.outputs))).shape
    wanted = torch.randn(shape, generator=generator).to(dtype)  # the gradient of each output
    per_voxel = len(wanted) == num_voxels

    def of_part(group):
        tensor = chosen.part(chosen.tensor(batch), group, shares=shares, step=table.coarsest_sparse_stride)
        rows = chosen.rows_of_part(tensor)

        def weigh(output, _):  # dense outputs are everywhere: each part has its share of the loss
            return (output * wanted[rows]).sum() if per_voxel else (output * wanted).sum() / len(shares)

        return rows, *run(tensor, weigh=weigh), group

    expected = run(whole, weigh=lambda output, _: (output * wanted).sum())
    parts = in_threads(len(shares), of_part)
    rows = torch.cat([part[0] for part in parts])
    assert sorted(rows.tolist()) == list(range(num_voxels))
    if per_voxel:
        output = torch.empty_like(expected[0])
        output[rows] = torch.cat([part[1] for part in parts])
        close(output, expected[0], tolerance)
    else:
        for part in parts:
            close(part[1], expected[0], tolerance)
    inputs = torch.empty_like(expected[1]["input"])
    inputs[rows] = torch.cat([part[2]["input"] for part in parts])
    close(inputs, expected[1]["input"], tolerance)
    for name, gradient in expected[1].items():
        if name != "input":
            scale = max(float(gradient.abs().max()), 1e-3 * float(wanted.abs().sum()))
            error = float((sum(part[2][name] for part in parts) - gradient).abs().max())
            assert error <= tolerance * scale, name
    for name, buffer in expected[2].items():
        for part in parts:
            close(part[3][name].double(), buffer.double(), tolerance)
    return parts


CONVOLUTION = {"in_channels": 2, "out_channels": 16, "kernel_size": 3}


@pytest.mark.parametrize(
    "name", ["minkunet14a-segmentation-narrow", "minkresnet14-narrow", "minkvgg11bn-narrow", "minkfcnn-narrow"]
)
def test_networks_give_what_one_device_gives(name):
    table = network(name, num_classes=3, in_channels=2)
    # Instance norms of a few deep voxels make float32 networks of many layers jump: not these parts, any other order.
    compare_with_one_device(table, surface(1), (1, 1), dtype=torch.float64, tolerance=1e-9)


def random_table(seed, *, unpools=("unpool", "average_unpool", "max_unpool"), gaps=True):
    """Return layers down and up again with skips, of random kernels, strides, dilations and norms."""
    choose = random.Random(seed)
    rows, channels, last = [], 2, "input"

    def add(kind, *inputs, **args):
        nonlocal last
        rows.append((f"l{len(rows)}", kind, inputs or (last,), args))
        last = rows[-1][0]

    skips = []
    for _ in range(choose.randint(1, 3)):
        out = choose.choice((4, 16))
        kernel, dilation = choose.choice(((3, 1), (5, 1), (3, 2), ((3, 1, 5), 1), (2, 1)))
        add("convolution", in_channels=channels, out_channels=out, kernel_size=kernel, dilation=dilation)
        channels = out
        add(choose.choice(("batch_norm", "instance_norm")), channels=channels)
        add(choose.choice(("relu", "gelu")))
        if choose.random() < 0.3:
            add("dropout", probability=0.3)
        skips.append((last, channels))
        kernel, stride = choose.choice(((2, 2), (3, 2), (3, 3), ((2, 2, 1), (2, 2, 1)), *[(1, 2)] * gaps))
        kind = choose.choice(("convolution", "max_pool", "average_pool", "sum_pool"))
        shape = {"kernel_size": kernel, "stride": stride}
        add(kind, **({"in_channels": channels, "out_channels": channels} if kind == "convolution" else {}), **shape)
        skips[-1] += (shape,)
    if choose.random() < 0.3:
        add(choose.choice(("global_max_pool", "global_average_pool", "global_sum_pool")))
        add("linear", in_channels=channels, out_channels=3)
        return of_table(*rows)
    for skip, width, shape in reversed(skips):
        if choose.random() < 0.3:
            add(choose.choice(unpools), last, skip, **shape)
        else:
            add("transposed_convolution", last, skip, in_channels=channels, out_channels=8, **shape)
            channels = 8
        add("concatenate", last, skip)
        channels += width
        add("convolution", in_channels=channels, out_channels=3, kernel_size=3)
        channels = 3
    return of_table(*rows)


@pytest.mark.parametrize("seed", range(12))
def test_random_networks_clouds_and_splits_give_what_one_device_gives(seed):
    choose = random.Random(100 + seed)
    shares = tuple(choose.choice((1, 1, 2)) for _ in range(choose.choice((2, 2, 3, 4))))
    batch = surface(seed) if seed % 2 else random_batch(2, num_points=300, reach=9, seed=seed)
    compare_with_one_device(random_table(seed), batch, shares, tolerance=1e-5)


@pytest.mark.parametrize("parts", [2, 4])
def test_one_voxel_over_several_devices(parts):
    batch = PointBatch(torch.tensor([[0, 3, -1, 2]], dtype=torch.int32), torch.ones(1, 2), torch.tensor([0]))
    halves = {"in_channels": 16, "out_channels": 16, "kernel_size": 2, "stride": 2}
    table = of_table(
        ("a", "convolution", ("input",), CONVOLUTION),
        ("b", "convolution", ("a",), halves),
        ("c", "transposed_convolution", ("b", "a"), halves),
    )
    found = compare_with_one_device(table, batch, (1,) * parts)
    assert sorted(len(part[0]) for part in found) == [0] * (parts - 1) + [1]


def test_a_halo_has_each_remote_voxel_that_is_needed_once():
    batch = surface(4, clouds=1)
    table = of_table(("a", "convolution", ("input",), CONVOLUTION))
    parts = compare_with_one_device(table, batch, (1, 1))
    coordinates = NATIVE.tensor(batch).coordinates
    mine, other = (set(map(tuple, coordinates[part[0]].tolist())) for part in parts)

    def needed(near, far):
        steps = list(itertools.product((-1, 0, 1), repeat=3))
        around = {(b, x + i, y + j, z + k) for b, x, y, z in near for i, j, k in steps}
        return around & far

    expected = [len(needed(other, mine)), len(needed(mine, other))]  # sent by each
    assert min(expected) > 0
    for part, count in zip(parts, expected, strict=True):
        assert part[-1].sent_rows[0] == (count, count * 2 * 4)


def test_regions_share_the_work_of_a_lopsided_scene():
    """Half of the voxels are a plane, the other half a block whose voxels have many more pairs."""
    grid = torch.cartesian_prod(*[torch.arange(20)] * 3).int()
    plane = torch.cartesian_prod(torch.arange(30, 130), torch.arange(80), torch.arange(1)).int()
    cloud = torch.cat([grid, plane])
    coordinates = torch.nn.functional.pad(cloud, (1, 0))
    tensor = NATIVE.tensor(PointBatch(coordinates, torch.ones(len(cloud), 1), torch.tensor([0])))
    pairs = tensor.manager.kernel_map((1, 1, 1), (1, 1, 1), kernel_size=3).pairs.out_rows.bincount().double() + 2
    for shares in ((1, 1), (2, 1), (1, 1, 1, 1)):
        regions = Regions.of(tensor.coordinates, shares, step=(4, 4, 4))
        rows = [regions.rows(tensor.coordinates, part) for part in range(len(shares))]
        assert sorted(torch.cat(rows).tolist()) == list(range(len(cloud)))
        for share, own in zip(shares, rows, strict=True):
            assert abs(float(pairs[own].sum() / pairs.sum()) * sum(shares) / share - 1) < 0.15


def dense_table(choose, dimension, *, norms):
    """Return layers of a sparse grid, then of a dense one, of random kernels, strides, paddings and dilations."""
    rows, channels, size, last = [], 2, 16, "input"

    def add(kind, *inputs, **args):
        nonlocal last
        rows.append((f"l{len(rows)}", kind, inputs or (last,), args))
        last = rows[-1][0]

    space = {"dimension": dimension}
    if choose.random() < 0.5:
        add("convolution", in_channels=2, out_channels=4, kernel_size=3, stride=choose.choice((1, 2)), **space)
        channels = 4
    add("dense_grid", size=size, **space)
    for _ in range(choose.randint(2, 4)):
        before, old_size, width = last, size, choose.choice((3, 4))
        kernel, padding, dilation = choose.choice(((3, 1, 1), (1, 0, 1), (5, 2, 1), (2, 1, 1), (3, 2, 2), (3, 3, 1)))
        shape = {"kernel_size": kernel, "padding": padding, "dilation": dilation, "stride": choose.choice((1, 1, 2, 3))}
        add("dense_convolution", in_channels=channels, out_channels=width, bias=choose.random() < 0.5, **shape, **space)
        size = (size + 2 * padding - dilation * (kernel - 1) - 1) // shape["stride"] + 1
        if norms and choose.random() < 0.5:
            add("dense_batch_norm", channels=width, **space)
        elif norms:
            add("batch_norm", channels=width)
        add(choose.choice(("relu", "gelu", "leaky_relu")))
        if choose.random() < 0.3:
            add(choose.choice(("dropout", "drop_path")), probability=0.3)
        if size == old_size and width == channels:
            add("add", last, before)
        elif size == old_size:
            add("concatenate", last, before)
            width += channels
        channels = width
        if size >= 4 and choose.random() < 0.5:
            kernel, stride = choose.choice(((2, 2), (3, 2), (2, 3)))
            add("dense_max_pool", kernel_size=kernel, stride=stride, **space)
            size = (size - kernel) // stride + 1
    add("flatten")
    add("linear", in_channels=channels * size**dimension, out_channels=3)
    return of_table(*rows)


@pytest.mark.parametrize("seed", range(12))
def test_slabs_of_dense_grids_give_what_one_device_gives(seed):
    choose = random.Random(200 + seed)
    shares = tuple(choose.choice((1, 1, 2, 5)) for _ in range(choose.choice((2, 3, 4))))
    dimension = choose.choice((2, 3))
    # Norms of a few deep cells make rounding errors large: of float32 networks also in one process, in another order.
    table = dense_table(choose, dimension, norms=seed % 3 > 0)
    batch = random_batch(2, num_points=200, reach=8, seed=seed, dimension=dimension)
    coordinates = batch.coordinates + torch.tensor([0, *[9] * dimension])  # up to 16: the far face of the last cell
    batch = PointBatch(coordinates.int(), batch.features, batch.labels)
    dtype, tolerance = (torch.float64, 1e-9) if seed % 3 else (torch.float32, 1e-5)
    compare_with_one_device(table, batch, shares, dtype=dtype, tolerance=tolerance)


def test_slabs_send_the_cells_at_their_borders_alone():
    batch = random_batch(2, num_points=200, reach=8)
    batch = PointBatch(batch.coordinates + torch.tensor([0, 8, 8, 8]).int(), batch.features, batch.labels)
    table = of_table(
        ("grid", "dense_grid", ("input",), {"size": 16}),
        ("a", "dense_convolution", ("grid",), {**CONVOLUTION, "out_channels": 4, "padding": 1}),
        ("b", "dense_max_pool", ("a",), {"kernel_size": 2, "stride": 2}),
        ("c", "flatten", ("b",), {}),
        ("d", "linear", ("c",), {"in_channels": 4 * 8**3, "out_channels": 3}),
    )
    parts = compare_with_one_device(table, batch, (1, 2, 1))
    layer = 2 * 2 * 16 * 16 * 4  # bytes of a layer of cells: of two samples, of two channels
    for part, neighbours in zip(parts, (1, 2, 1), strict=True):
        sent = part[-1].sent_rows  # voxels, the halo; the gradient of the halo, that of voxels
        assert sent[1] == sent[2] == (neighbours, neighbours * layer)
        assert len(sent) == 4
    found = profile(table, [batch], NATIVE, repeats=1)
    costs, conv, pool = LayerTable.of(found, [batch.size]), [1], [2]
    assert [float(costs.halo_bytes(conv, parts)[0]) for parts in (2, 3)] == [layer, 2 * layer]
    assert not costs.halo_bytes(pool, 3) and not costs.sends_halo(2)


def test_vgg_on_a_dense_grid_gives_what_one_device_gives():
    batch = random_batch(2, num_points=400, reach=16)
    batch = PointBatch(batch.coordinates + torch.tensor([0, 16, 16, 16]).int(), batch.features, batch.labels)
    table = network("vgg11bn-3d-narrow", num_classes=3, in_channels=2)
    compare_with_one_device(table, batch, (1, 1), dtype=torch.float64, tolerance=1e-9)
    module = build(table, NATIVE, seed=3).eval()

    @torch.no_grad()
    def evaluated(group=None):
        tensor = NATIVE.tensor(batch)
        tensor = NATIVE.part(tensor, group, shares=(1, 3), step=(1, 1, 1)) if group else tensor
        return module.result(module({"input": tensor}, minibatch=5, keep=table.outputs))

    for output in in_threads(2, evaluated):
        close(output, evaluated(), 1e-5)


# Threads that build layers at once undo each other's filters of warnings.
@pytest.mark.filterwarnings("ignore:<class 'Minkowski:DeprecationWarning")
@pytest.mark.parametrize("seed", range(8))
def test_layers_of_minkowski_give_on_parts_what_they_give_on_one_device(minkowski, seed):
    choose = random.Random(300 + seed)
    shares = tuple(choose.choice((1, 1, 2)) for _ in range(choose.choice((2, 3))))
    batch = surface(seed) if seed % 2 else random_batch(2, num_points=300, reach=9, seed=seed)
    # Pools with gaps between their kernels write out of bounds in the library.
    table = random_table(seed, unpools=("unpool",), gaps=False)
    compare_with_one_device(table, batch, shares, dtype=torch.float64, tolerance=1e-9, chosen=minkowski)
