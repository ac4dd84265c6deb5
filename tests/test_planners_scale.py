"""Other batch sizes and voxel sizes: every layer costs what the voxels of its own stride do."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from sparsepipe import CostSample, Layer, LayerCost, LayerGraph, Profile
from sparsepipe.planning.scale import Scale

STRIDES = (1, 2, 4)
CHANNELS = 16


def cloud(seed, points=2000):
    """Points of a bent surface: between two and three dimensions at the sizes of voxels here."""
    random = np.random.default_rng(seed)
    x, y = random.random((2, points))
    return np.stack([x, y, 0.5 + 0.4 * np.sin(5 * x + seed) * np.cos(3 * y)], axis=1)


@cache
def voxels(seed, voxel_size):
    """Voxels of one of 16 clouds."""
    index = np.floor(cloud(seed % 16) / voxel_size).astype(int) @ np.array([1, 1000, 1_000_000])
    return len(np.unique(index))


def voxels_of(seeds, voxel_size):
    return sum(voxels(seed % 16, voxel_size) for seed in seeds)


def profiled(voxel_size, batch_size, *, strides=STRIDES):
    """A layer at each stride, down and up again, and a classifier: each costs by the voxels of its stride."""
    down = [f"down{stride}" for stride in strides]
    ids = [*down, *(f"up{stride}" for stride in strides[-2::-1]), "classes"]
    samples = {id: [] for id in ids}
    for count in (batch_size // 4, batch_size // 2, batch_size, 2 * batch_size):
        counts = {stride: voxels_of(range(count), stride * voxel_size) for stride in strides}
        for id in ids[:-1]:
            stride = int(id.removeprefix("down").removeprefix("up"))
            rows, new = counts[stride], id in down[1:]
            seconds = 1e-5 + 1e-6 * rows
            cost = CostSample(
                counts[1], seconds, 2 * seconds, rows * CHANNELS * 4, 16 * rows * new, rows * CHANNELS * 4
            )
            samples[id].append(cost)
        samples["classes"].append(CostSample(counts[1], 1e-5 + 1e-6 * count, 1e-5, count * 40))
    graph = LayerGraph.chain([Layer(id, "", 8) for id in ids])
    whole = [voxels_of(range(k, k + batch_size), voxel_size) for k in range(16)]
    origin = {"batch_size": batch_size, "data": {"voxel_size": voxel_size}}
    return Profile(graph, {"cpu": tuple(LayerCost(tuple(samples[id])) for id in ids)}, tuple(whole), origin)


@pytest.mark.parametrize("voxel_size", [0.03, 0.04, 0.06, 0.08])
@pytest.mark.parametrize("batch_size", [4, 8, 16])
def test_other_voxels_and_batches_cost_what_a_profile_measured_there_says(voxel_size, batch_size):
    known, there = profiled(0.04, 8), profiled(voxel_size, 2 * batch_size)
    counted = {size: voxels_of(range(16), size) / 16 for size in (0.03, 0.04, 0.08, 0.12)}
    scale = Scale.of(known, counted)
    found = scale.scaled(known, batch_size, voxel_size)
    size = batch_size * voxels_of(range(16), voxel_size) / 16
    assert found.size() == pytest.approx(size, rel=0.1)
    for layer in range(len(known.graph.layers)):
        own, expected = found.cost(layer, "cpu"), there.cost(layer, "cpu", size)
        for name in ("forward", "backward", "output_bytes", "saved_bytes", "coordinate_bytes"):
            assert getattr(own, name) == pytest.approx(getattr(expected, name), rel=0.15), (layer, name)


def test_the_profiled_batch_and_voxels_are_the_profile_itself():
    known = profiled(0.05, 4)
    scale = Scale.of(known)
    assert scale.scaled(known, 4, 0.05) == known
    twice = scale.scaled(known, 8, 0.05)
    assert twice.costs == known.costs and twice.size() == pytest.approx(2 * known.size())


def test_a_classifier_costs_by_samples_whatever_the_voxels():
    known = profiled(0.05, 8)
    last = len(known.graph.layers) - 1
    finer = Scale.of(known).scaled(known, 8, 0.025)
    assert finer.size() == pytest.approx(4 * known.size())  # a surface, as nothing was counted
    assert finer.cost(last, "cpu").forward == pytest.approx(known.cost(last, "cpu").forward)
    assert finer.cost(0, "cpu").forward == pytest.approx(known.cost(0, "cpu", finer.size()).forward)


def test_costs_without_coordinates_grow_with_the_size_of_the_minibatch():
    known = profiled(0.05, 8)
    plain = tuple(
        LayerCost(tuple(replace(s, coordinate_bytes=0.0) for s in cost.samples)) for cost in known.costs["cpu"]
    )
    dense = replace(known, costs={"cpu": plain})
    coarser = Scale.of(dense).scaled(dense, 8, 0.1)
    assert coarser.cost(2, "cpu").forward == pytest.approx(dense.cost(2, "cpu", coarser.size()).forward)


def test_stretched_costs_are_those_of_samples_at_other_sizes():
    """The laws are evaluated elsewhere; fitted to samples at the sizes there they say the same."""
    known = profiled(0.04, 8)
    there = Scale.of(known).scaled(known, 4, 0.06)
    fitted = replace(there, costs={"cpu": tuple(LayerCost(cost.stretched) for cost in there.costs["cpu"])})
    sizes = there.size() * np.geomspace(1 / 16, 16, 17)
    expected = fitted.costs_at("cpu", sizes)
    assert all(
        values == pytest.approx(expected[name], rel=1e-12) for name, values in there.costs_at("cpu", sizes).items()
    )
    assert there.certainty(sizes).factor == pytest.approx(fitted.certainty(sizes).factor)
    assert there.certainty(sizes).share == pytest.approx(fitted.certainty(sizes).share)
    assert there.measured_sizes("cpu") == fitted.measured_sizes("cpu")
    assert there.digest == fitted.digest != known.digest


def test_voxels_that_many_layers_make_are_of_one_stride():
    known = profiled(0.04, 8)
    ids = [layer.id for layer in known.graph.layers]
    many = [id for id in ids for _ in range(1100 if id == "down2" else 1)]
    costs = tuple(known.costs["cpu"][ids.index(id)] for id in many)
    graph = LayerGraph.chain([Layer(f"{k}", "", 8) for k in range(len(many))])
    deep = Scale.of(known).scaled(replace(known, graph=graph, costs={"cpu": costs}), 8, 0.06)
    plain = Scale.of(known).scaled(known, 8, 0.06)
    assert deep.cost(len(many) - 1, "cpu") == plain.cost(len(ids) - 1, "cpu")
    assert deep.cost(many.index("down4"), "cpu").forward == pytest.approx(plain.cost(ids.index("down4"), "cpu").forward)
