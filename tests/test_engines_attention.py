"""Attention along curves: codes by brute force, windows by dense attention with a mask, and what depends on nothing."""

import itertools
import math

import pytest
import torch
from coded import raises
from engine_clouds import close, random_batch
from test_engines_subnetwork import relay

from sparsepipe.data import PointBatch
from sparsepipe.engines import Subnetwork, engine
from sparsepipe.engines.native.attention import rotated, windowed_attention
from sparsepipe.engines.native.coordinates import CoordinateManager, pack
from sparsepipe.engines.native.serialisation import curve_order, hilbert_codes, places_in_samples, windows, z_codes
from sparsepipe.networks import INPUT, Network, Row, network
from sparsepipe.networks.rows import CURVES

NATIVE = engine("native")


def grid(depth, num_axes):
    return torch.tensor(list(itertools.product(range(2**depth), repeat=num_axes)))


@pytest.mark.parametrize(("depth", "num_axes"), [(1, 1), (4, 2), (3, 3), (2, 4)])
def test_z_codes_interleave_the_bits_of_the_axes(depth, num_axes):
    places = grid(depth, num_axes)
    bits = [[f"{number:0{depth}b}" for number in place] for place in places.tolist()]
    expected = [int("".join(bit for level in zip(*axes, strict=True) for bit in level), 2) for axes in bits]
    assert z_codes(places, depth).tolist() == expected


@pytest.mark.parametrize(("depth", "num_axes"), [(1, 2), (4, 2), (1, 3), (4, 3), (2, 4)])
def test_a_hilbert_curve_visits_every_cell_by_steps_to_a_neighbour(depth, num_axes):
    places = grid(depth, num_axes)
    codes = hilbert_codes(places, depth)
    assert sorted(codes.tolist()) == list(range(len(places)))
    steps = places[codes.argsort()].diff(dim=0).abs()
    assert (steps.sum(dim=1) == 1).all()
    coarse = hilbert_codes(places // 2, depth - 1, torch.full((len(places),), depth - 1))
    assert torch.equal(codes >> num_axes, coarse)  # so a pooled sample keeps its curve


def test_a_smaller_cubes_curve_is_that_of_its_depth():
    places = grid(3, 3)
    for depth in (3, 4, 5, 6):
        assert torch.equal(hilbert_codes(places, depth, torch.full((len(places),), 3)), hilbert_codes(places, 3))


def ordered(batch, curve):
    coordinates = NATIVE.split({"x": NATIVE.tensor(batch)}).coordinate_sets[0].coordinates
    placed = places_in_samples(coordinates, (1, 1, 1), len(batch))
    return coordinates, curve_order(coordinates, *placed, curve)


def neighbourhoods(order, sizes, size):
    """Which rows each row attends to, by the definition: bool [N, N]."""
    mask, first = torch.zeros(len(order), len(order), dtype=torch.bool), 0
    for count in sizes:
        rows = order[first : first + count].tolist()
        for number, row in enumerate(rows):
            start = min(number // size * size, max(0, count - size))
            mask[row, rows[start : start + size]] = True
        first += count
    return mask


@pytest.mark.parametrize("size", [1, 7, 64, 120, 1000])
@pytest.mark.parametrize("curve", CURVES)
def test_windows_attend_as_dense_attention_with_a_mask(curve, size):
    batch, heads, channels = random_batch(), 2, 4
    coordinates, order = ordered(batch, curve)
    sizes = coordinates[:, 0].bincount().tolist()
    assert len(set(sizes)) > 1
    qkv = torch.randn(len(order), 3 * channels, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    leaves = [qkv.clone().requires_grad_() for _ in range(2)]
    result = windowed_attention(leaves[0], windows(order, sizes, size), heads)
    queries, keys, values = leaves[1].view(-1, 3, heads, channels // heads).permute(1, 2, 0, 3)
    scores = queries @ keys.mT / math.sqrt(channels / heads)
    scores = scores.masked_fill(~neighbourhoods(order, sizes, size), -math.inf)
    expected = (scores.softmax(dim=-1) @ values).transpose(0, 1).flatten(1)
    close(result, expected, 1e-12)
    for rows in (result, expected):
        (rows * torch.linspace(-1, 1, rows.numel(), dtype=rows.dtype).view_as(rows)).sum().backward()
    close(leaves[0].grad, leaves[1].grad, 1e-12)


def test_gradients_are_those_of_finite_differences():
    _, order = ordered(random_batch(num_samples=2, num_points=30, reach=2), "hilbert")
    sizes = [len(order) - 5, 5]
    cut = windows(order, sizes, 8)
    qkv = torch.randn(len(order), 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda rows: windowed_attention(rows, cut, 2), qkv)
    places = torch.randint(0, 50, (4, 3))
    qk = torch.randn(4, 2, 1, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda rows: rotated(rows, places, 100.0), qk)


def test_products_of_rotated_rows_depend_on_their_distance_alone():
    query, key = torch.randn(2, 1, 1, 1, 18, dtype=torch.float64)
    for query_place, key_place in (((0, 0, 0), (3, 1, 4)), ((5, 2, 7), (8, 3, 11))):
        product = (
            rotated(query, torch.tensor([query_place]), 100.0) * rotated(key, torch.tensor([key_place]), 100.0)
        ).sum()
        expected = (query * rotated(key, torch.tensor([(3, 1, 4)]), 100.0)).sum()
        close(product, expected, 1e-12)


ATTENTION = {"channels": 12, "heads": 2, "patch_size": 16, "curves": CURVES, "rotation": 100.0}


def layer(**changes):
    row = Row("a", "serialised_attention", (INPUT,), ATTENTION | changes)
    return Subnetwork(Network("one", (row,), 12, 2), NATIVE, seed=3)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"heads": 5}, "layer.heads_uneven"),
        ({"heads": 3}, "layer.heads_uneven"),  # 4 channels of a head are no pairs for three axes
        ({"curves": ("z", "peano")}, "layer.curve_unknown"),
    ],
)
def test_layers_that_cannot_be_are_refused(changes, code):
    with raises(code):
        layer(**changes)


def attended(module, batch, *, minibatch=0):
    return module(module.enter(NATIVE.tensor(batch)), minibatch=minibatch)["a"].features


def test_a_samples_result_depends_on_nothing_but_its_voxels():
    """Neither on the samples beside it, of other sizes and extents, nor on where it lies."""
    batch = random_batch(channels=12, reach=9)
    module = layer(position=2).eval()
    together = attended(module, batch)
    of_sample = batch.coordinates[:, 0]
    for sample in range(3):
        rows = of_sample == sample
        alone = batch.coordinates[rows] * torch.tensor([0, 1, 1, 1]) + torch.tensor([0, 48, -64, 16])
        moved = PointBatch(alone.int(), batch.features[rows], torch.zeros(1, dtype=torch.int64))
        close(attended(module, moved), together[rows], 1e-5)


def test_curves_are_shuffled_by_seed_and_minibatch_together_in_a_level():
    batch, modules = random_batch(channels=12), [layer(position=k, level="level1") for k in range(4)]
    for module in modules:
        module.load_state_dict(modules[0].state_dict())
    seen = set()
    for minibatch in range(8):
        results = [attended(module.train(), batch, minibatch=minibatch) for module in modules]
        assert torch.equal(results[0], attended(modules[0], batch, minibatch=minibatch))
        assert len({rows.sum().item() for rows in results}) == 4  # every layer along another curve
        seen.add(results[0].sum().item())
    assert 1 < len(seen) <= 4
    evaluated = {attended(module.eval(), batch, minibatch=5).sum().item() for module in modules}
    assert seen <= evaluated and len(evaluated) == 4


def test_drop_path_drops_whole_rows_by_seed():
    row = Row("a", "drop_path", (INPUT,), {"probability": 0.5})
    module, batch = Subnetwork(Network("one", (row,), 12, 2), NATIVE, seed=3), random_batch(channels=12)
    rows = attended(module, batch)
    kept = rows.abs().sum(dim=1) > 0
    assert 0.3 < kept.float().mean() < 0.7
    close(rows[kept], 2 * attended(module.eval(), batch)[kept], 0)
    assert torch.equal(attended(module.train(), batch), rows)


def test_windows_count_among_the_bytes_of_a_minibatch():
    coordinates = random_batch().coordinates
    manager = CoordinateManager(3)
    manager.insert((1, 1, 1), pack(coordinates).sort().values)
    before = manager.map_bytes
    manager.windows((1, 1, 1), "z", 16)
    assert manager.map_bytes > before


@pytest.mark.parametrize(
    "name", ["ptv3-segmentation-narrow", "litept-segmentation-narrow", "spunet34-segmentation-narrow", "ptv3-narrow"]
)
def test_stages_cut_anywhere_change_no_bit(name):
    net, batch = network(name, num_classes=3), random_batch(channels=1, reach=9, num_points=160)
    ids = [row.id for row in net.rows]
    whole, (uncut,) = relay(net, NATIVE, [ids], batch, minibatch=4)
    bounds = [0, *(len(ids) * part // 7 for part in range(1, 7)), len(ids)]
    rows, stages = relay(net, NATIVE, [ids[a:b] for a, b in itertools.pairwise(bounds)], batch, minibatch=4)
    assert torch.equal(rows, whole)
    for stage in stages:
        for parameter, value in stage.named_parameters():
            assert torch.equal(value.grad, uncut.get_parameter(parameter).grad), parameter
