"""Clouds far from the origin, as maps have them: moved by whole strides they are the same to either engine."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from coded import raises
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe import data
from sparsepipe.data import PointBatch
from sparsepipe.data.voxels import metric_voxel_index
from sparsepipe.engines import Subnetwork, engine
from sparsepipe.networks import INPUT, Network, Row, network

ENGINES = ["native", *(["minkowski"] if find_spec("MinkowskiEngine") else [])]
MAP = (448000.0, 5428000.0, 120.0)  # UTM, metres
NET = network("minkunet14a-segmentation-narrow", num_classes=2)


def tile(seed=0):
    """Points of a 20 x 20 x 4 m tile, to the millimetre: many lie on the sides of voxels."""
    return np.random.default_rng(seed).uniform(0, (20, 20, 4), (600, 3)).round(3)


def folder_of(path, shift):
    for split in ("train", "test"):
        for k in range(2):
            points = tile(k) + shift
            rows = np.column_stack([points, (points[:, 2] > shift[2] + 2).astype(int)])
            (path / "tile" / split).mkdir(parents=True, exist_ok=True)
            name = path / "tile" / split / f"{k}.txt"
            np.savetxt(name, rows, fmt="%.3f %.3f %.3f %d", header="x y z label", comments="")
    (path / "dataset.json").write_text(json.dumps({"metric": True, "parts": ["low", "high"]}))
    return path


def trained(path, voxel_size, name):
    """One step on the folder's training split: loss, gradients and the labels in the engine's order."""
    split = data.load(path, split="train", voxel_size=voxel_size, num_points=None, task="segmentation", cache="off")
    batch = split.near_origin(NET.coarsest_stride).batch([0, 1])
    chosen = engine(name)
    module = Subnetwork(NET, chosen, seed=0)
    output = module({INPUT: chosen.tensor(batch)}, minibatch=0)[NET.rows[-1].id]
    rows = chosen.features(output)
    rows.square().sum().backward()
    return rows.detach(), [parameter.grad for parameter in module.parameters()]


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    ("voxel_size", "shift"),
    [
        (0.05, MAP),
        (0.2, (448000.0, 5428000.0, 128.0)),
        (0.05, (3000.0, 1600.0, 0.0)),
        (0.05, (-2000.0, -2000.0, -48.0)),
    ],
)
def test_a_map_trains_as_its_tiles_do_at_the_origin_bit_for_bit(tmp_path, name, voxel_size, shift):
    """Tiles of a map: the native engine refused their coordinates, though MinkowskiEngine trained on them."""
    near = trained(folder_of(tmp_path / "near", (0.0, 0.0, 0.0)), voxel_size, name)
    far = trained(folder_of(tmp_path / "far", shift), voxel_size, name)
    assert torch.equal(near[0], far[0])
    assert all(map(torch.equal, near[1], far[1]))


@given(st.integers(0, 2**31), st.sampled_from([0.05, 0.2, 0.1, 0.02]), st.integers(-(10**6), 10**7))
def test_voxels_do_not_depend_on_where_a_cloud_lies(seed, size, whole):
    """0.15 / 0.05 falls just short of 3 and 448000.15 / 0.05 does not: voxels were others after a shift."""
    points = np.random.default_rng(seed).uniform(-3, 3, (40, 3)).round(2)
    near, index = metric_voxel_index(points, size)
    far, index_far = metric_voxel_index(points + whole, size)
    np.testing.assert_array_equal(index, index_far)
    step = far.astype(np.int64) - near
    assert (step == step[0]).all()


def test_a_cloud_beyond_int32_is_moved_and_one_as_large_is_refused():
    near, _ = metric_voxel_index(tile(), 0.001)
    far, _ = metric_voxel_index(tile() + MAP, 0.001)  # 5.4e9 voxels from the origin
    step = far.astype(np.int64) - near
    assert (step == step[0]).all()
    assert ((step[0] - np.array([448_000_000, 5_428_000_000, 120_000])) % 16 == 0).all()
    for size, error in (
        (1e-9, ("voxels.out_of_reach", "beyond int32")),
        (1e-15, ("voxels.out_of_reach", "64-bit coordinates")),
        (1e-300, ("voxels.out_of_reach", "64-bit coordinates")),
    ):
        with raises(*error):
            metric_voxel_index(tile(), size)


def test_coordinates_that_were_rounded_to_float32_are_refused_where_voxels_are_finer():
    rounded = (tile() + MAP).astype(np.float32).astype(np.float64)  # half a metre apart along y
    with raises("cloud.rounded", "5428020", "0.5", axis="y"):
        metric_voxel_index(rounded, 0.05)
    metric_voxel_index(rounded, 1.0)
    metric_voxel_index(np.round(tile() + MAP), 0.05)  # a grid of whole metres lost nothing


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_takes_minibatches_from_anywhere(name):
    """The same voxels 1e8 from the origin, another way for each sample, give the same outputs."""
    generator = torch.Generator().manual_seed(0)
    coordinates = torch.cat([torch.randint(0, 12, (2, 200, 1), generator=generator) for _ in range(3)], dim=2).int()
    rows = torch.cat([torch.arange(2).repeat_interleave(200)[:, None].int(), coordinates.flatten(0, 1)], dim=1)
    near = rows.unique(dim=0)
    shift = torch.tensor([[96_000_000, -64_000_000, 5760 * 3], [-(2**20) * 45, 0, 64_000]])
    far = near.clone()
    far[:, 1:] += shift[near[:, 0].long()].int()
    chosen, features = engine(name), torch.randn(len(near), 1, generator=generator)
    module = Subnetwork(NET, chosen, seed=0).eval()
    outputs = []
    for place in (near, far):
        batch = PointBatch(place, features, torch.arange(2))
        outputs.append(chosen.features(module({INPUT: chosen.tensor(batch)}, minibatch=0)[NET.rows[-1].id]))
    if name == "native":
        assert torch.equal(*outputs)
    else:  # rows of coarse voxels come in the order of a hash of their coordinates
        torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)


def test_a_sample_too_large_for_the_keys_is_refused_in_one_line():
    rows = torch.tensor([[0, 0, 0, 0], [0, 60_000, 0, 0]], dtype=torch.int32)
    with raises("coordinates.out_of_range", "-24576", "24575", "3"):
        engine("native").tensor(PointBatch(rows, torch.ones(2, 1), torch.zeros(1, dtype=torch.int64)))


def test_the_coarsest_stride_of_a_network():
    assert NET.coarsest_stride == (16, 16, 16)
    assert network("minkvgg11bn", num_classes=2).coarsest_stride == (32, 32, 32)
    assert network("vgg11bn-3d-narrow", num_classes=2).coarsest_stride is None
    pool = Row("a", "max_pool", (INPUT,), {"kernel_size": 2, "stride": (2, 3, 1)})
    assert Network("n", (pool,), 1, 1).coarsest_stride == (2, 3, 1)
