"""Augmentation: what each setting does, what it never does, and that seed, sample and epoch decide it alone."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from coded import raises
from hypothesis import given
from hypothesis import settings as drawn
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from runtime_jobs import Job, plan_of, run_jobs, settings, shapes

from sparsepipe import data
from sparsepipe.data import AUGMENTATIONS, Augmentation
from sparsepipe.data.formats import Cloud
from sparsepipe.engines.dense import dense_grid
from sparsepipe.networks import network

clouds = arrays(np.float64, st.tuples(st.integers(4, 30), st.just(3)), elements=st.floats(-5, 5, width=32))
seeds = st.integers(0, 2**32)


def _distances(points: np.ndarray) -> np.ndarray:
    return np.linalg.norm(points[:, None] - points[None], axis=-1)


def _cloud(points: np.ndarray) -> Cloud:
    normals = np.tile(np.float32([0.6, 0.0, 0.8]), (len(points), 1))
    return Cloud(points, normals, ("nx", "ny", "nz"), np.arange(len(points)))


@drawn(max_examples=25)
@given(clouds, seeds)
def test_without_settings_nothing_changes(points: np.ndarray, seed: int) -> None:
    changed = Augmentation().apply(_cloud(points), seed=seed)
    np.testing.assert_allclose(changed.points, points, atol=1e-12)
    np.testing.assert_allclose(changed.attributes, _cloud(points).attributes, atol=1e-6)
    assert changed.labels.tolist() == list(range(len(points)))


@drawn(max_examples=25)
@given(clouds, seeds, st.floats(0, 180), st.floats(0, 180))
def test_turns_keep_distances_and_handedness_and_turn_normals(
    points: np.ndarray, seed: int, rotation: float, tilt: float
) -> None:
    axes = Cloud(
        np.vstack([points, points[:1] + np.eye(3)]), np.float32([[0, 0, 1]] * (len(points) + 3)), ("nx", "ny", "nz")
    )
    changed = Augmentation(rotation=rotation, tilt=tilt).apply(axes, seed=seed)
    np.testing.assert_allclose(_distances(changed.points), _distances(axes.points), atol=1e-9)
    x, y, z = changed.points[-3:] - changed.points[0]
    np.testing.assert_allclose(np.cross(x, y), z, atol=1e-9)
    np.testing.assert_allclose(changed.attributes[0], z, atol=1e-5)
    assert z[2] >= math.cos(math.radians(tilt)) - 1e-9
    if tilt == 0:
        np.testing.assert_allclose(changed.points[:, 2], axes.points[:, 2], atol=1e-9)
        assert x[0] >= math.cos(math.radians(rotation)) - 1e-9


@drawn(max_examples=25)
@given(clouds, seeds, st.floats(0.1, 1), st.floats(1, 10))
def test_scale_is_one_factor_within_its_bounds(points: np.ndarray, seed: int, low: float, high: float) -> None:
    changed = Augmentation(scale=(low, high)).apply(_cloud(points), seed=seed)
    before, after = _distances(points).max(), _distances(changed.points).max()
    if before > 1e-3:
        assert low - 1e-6 <= after / before <= high + 1e-6
        np.testing.assert_allclose(_distances(changed.points), _distances(points) * after / before, atol=1e-6)


def test_jitter_has_its_deviation_and_is_cut() -> None:
    points = np.random.default_rng(0).uniform(size=(20000, 3))
    moved = Augmentation(jitter=0.01).apply(Cloud(points), seed=1).points - points
    assert np.abs(moved).max() <= 0.03 + 1e-12
    assert moved.std() == pytest.approx(0.01, rel=0.03)
    assert abs(moved.mean()) < 5 * 0.01 / 60000**0.5


@drawn(max_examples=25)
@given(clouds, seeds, st.sampled_from([(0.1, 0.3), (0.5, 2.0), (3.0, 9.0)]))
def test_a_cloud_in_the_cube_is_moved_as_little_as_it_takes_and_shrunk_where_it_is_too_long(
    points: np.ndarray, seed: int, scale: tuple[float, float]
) -> None:
    free = Augmentation(rotation=180, tilt=30, scale=scale).apply(Cloud(points), seed=seed).points
    kept = Augmentation(rotation=180, tilt=30, scale=scale, in_cube=True).apply(Cloud(points), seed=seed).points
    factor = min(1, 1 / max(np.ptp(free, axis=0).max(), 1e-9))
    np.testing.assert_allclose(_distances(kept), _distances(free) * factor, atol=1e-6)
    assert kept.min() >= 0
    assert kept.max() <= 1
    for axis in range(3):
        inside = free[:, axis].min() >= 0 and free[:, axis].min() + np.ptp(free[:, axis]) * factor <= 1
        touches = min(kept[:, axis].min(), 1 - kept[:, axis].max()) <= 1e-9
        assert touches or (inside and kept[:, axis].min() == pytest.approx(free[:, axis].min(), abs=1e-9))


@drawn(max_examples=25)
@given(clouds, seeds, st.floats(0, 0.999))
def test_dropout_leaves_some_points_with_all_that_belongs_to_them(points: np.ndarray, seed: int, share: float) -> None:
    changed = Augmentation(dropout=share).apply(_cloud(points), seed=seed)
    assert 1 <= len(changed) <= len(points)
    np.testing.assert_allclose(changed.points, points[changed.labels], atol=1e-9)
    assert (np.diff(changed.labels) > 0).all()


def test_dropout_leaves_out_half_of_its_largest_share_on_average() -> None:
    cloud = Cloud(np.random.default_rng(0).uniform(size=(200, 3)))
    kept = [len(Augmentation(dropout=0.6).apply(cloud, seed=seed)) / 200 for seed in range(2000)]
    assert np.mean(kept) == pytest.approx(0.7, abs=0.02)
    assert min(kept) < 0.5
    assert max(kept) > 0.95


def test_elastic_displacements_are_smooth_and_of_their_magnitude() -> None:
    """Neighbours move together, far points do not: the field has the spacing that was asked for."""
    points = np.random.default_rng(0).uniform(0, 20, size=(4000, 3))
    points[1::2] = points[::2] + 0.01
    moved = [Augmentation(elastic=((1.0, 0.3),)).apply(Cloud(points), seed=seed).points - points for seed in range(5)]
    near = np.concatenate([move[1::2] - move[::2] for move in moved])
    far = np.concatenate([move[2::2] - move[:-2:2] for move in moved])
    assert np.abs(near).max() < 0.05
    assert 0.3 < far.std() / 2**0.5 / 0.3 < 1.1
    assert all(not np.array_equal(moved[0], other) for other in moved[1:])
    with raises("augmentation.spacing_too_small", spacing="1e-06"):
        Augmentation(elastic=((1e-6, 0.1),)).apply(Cloud(points), seed=0)


@pytest.mark.parametrize("name", sorted(AUGMENTATIONS))
def test_the_named_ones_survive_json(name: str) -> None:
    given_one = AUGMENTATIONS[name]
    assert Augmentation.from_json(json.loads(json.dumps(given_one.to_json()))) == given_one


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"rotation": -1}, ("augmentation.out_of_range", "rotation", "-1", "from 0 to 180")),
        ({"tilt": 181}, ("augmentation.out_of_range", "tilt", "181")),
        ({"jitter": float("nan")}, ("augmentation.out_of_range", "jitter", "nan", "at least 0")),
        ({"dropout": 1}, ("augmentation.out_of_range", "dropout", "1", "from 0 to 1, below 1")),
        ({"scale": (2, 1)}, ("augmentation.scale_malformed", "2, 1")),
        ({"scale": (0, 1)}, ("augmentation.scale_malformed", "0, 1")),
        ({"scale": 2}, ("augmentation.scale_malformed", "2")),
        ({"elastic": ((0, 1),)}, ("augmentation.elastic_malformed", "0, 1")),
        ({"elastic": (0.2, 0.4)}, ("augmentation.elastic_malformed", "0.2, 0.4")),
        ({"rotation": "far"}, ("augmentation.out_of_range", "rotation", "far")),
        ({"in_cube": 1}, ("augmentation.in_cube_malformed", "1")),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict, error: tuple[str, ...]) -> None:
    with raises(*error):
        Augmentation(**settings)


def test_unknown_settings_and_names_are_refused() -> None:
    with raises("augmentation.option_unknown", "shear", "dropout"):
        Augmentation.from_json({"shear": 1})
    with raises("augmentation.unknown", "shapes, scans", given="wild"):
        data.load("nowhere", split="train", voxel_size=0.1, augmentation="wild")


# --- in a data set --------------------------------------------------------------------------------------------------


def _load(folder: Path, split: str = "train", **options: object) -> data.VoxelDataset:
    settings = {"voxel_size": 0.05, "num_points": 256, "augmentation": "shapes"} | options
    return data.load(folder / "modelnet10-sample", split=split, **settings)


def _same(a: data.PointBatch, b: data.PointBatch) -> bool:
    return torch.equal(a.coordinates, b.coordinates) and torch.equal(a.labels, b.labels)


def test_seed_sample_and_epoch_decide_a_sample_alone(shared_data: Path) -> None:
    first, second = _load(shared_data), _load(shared_data)
    second.batch([7], epoch=5)
    second.batch([3, 2], epoch=1)  # another order of asking changes nothing
    assert _same(first.batch([2, 7], epoch=5), second.batch([2, 7], epoch=5))
    assert not _same(first.batch([2]), first.batch([2], epoch=1))
    assert not _same(first.batch([2]), _load(shared_data, seed=1).batch([2]))
    assert first.batch([2], epoch=3).labels.tolist() == [first.labels[2]]
    with raises("dataset.epoch_negative", epoch=-1):
        first.batch([2], epoch=-1)
    assert json.loads(json.dumps(first.origin))["augmentation"]["rotation"] == 180


def test_without_augmentation_epochs_are_alike(shared_data: Path) -> None:
    dataset = _load(shared_data, "test", augmentation=None)
    assert _same(dataset.batch([0, 9], epoch=0), dataset.batch([0, 9], epoch=7))
    again = _load(shared_data, "test", augmentation=None)
    assert _same(again.batch([0, 9]), dataset.batch([0, 9]))


def test_each_epoch_draws_its_own_points(shared_data: Path) -> None:
    """With settings that change nothing, what differs is which of the cloud's points were drawn."""
    dataset = _load(shared_data, augmentation=Augmentation(), num_points=100)
    seen = {frozenset(map(tuple, dataset.sample(0, epoch=epoch).coordinates.tolist())) for epoch in range(4)}
    assert len(seen) == 4
    assert all(len(voxels) <= 100 for voxels in seen)


@pytest.mark.slow
def test_a_dense_network_trains_on_shapes_that_keep_to_the_cube(tmp_path: Path) -> None:
    """Turned and enlarged shapes leave the grid, which is refused with the augmentation to take; that one trains."""
    model, folder = "vgg11-3d-narrow", shapes(tmp_path)
    size = next(row.args["size"] for row in network(model, num_classes=3).rows if row.kind == "dense_grid")
    options = {"split": "train", "voxel_size": 1 / size, "num_points": 256}
    wide = data.load(folder, augmentation="shapes", **options).batch(range(18))
    with raises("dense.out_of_range", "0.03125"):
        dense_grid(wide.coordinates, wide.features, size)
    changes = {"voxel_size": 1 / size, "num_points": 256, "augmentation": "shapes-in-cube", "minibatches": 3}
    job = Job("dense", plan_of(model, [[0]]), settings(folder, model=model, **changes))
    result = run_jobs(tmp_path, [job])["dense"]
    assert len(result.losses) == 3
    assert np.isfinite(result.losses).all()


def test_scans_in_metres_are_not_brought_into_the_cube(tmp_path: Path) -> None:
    (tmp_path / "a" / "train").mkdir(parents=True)
    (tmp_path / "a" / "train" / "a.xyz").write_text("0 0 0\n9 9 9\n")
    (tmp_path / "dataset.json").write_text('{"metric": true}')
    with raises("augmentation.of_unit_cube"):
        data.load(tmp_path, split="train", voxel_size=0.1, augmentation="shapes-in-cube")
