"""Samples as voxels, and the order in which an epoch visits them."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from coded import raises
from pypcd4 import PointCloud

from sparsepipe import data
from sparsepipe.errors import InputError


@pytest.fixture(scope="module")
def sample_folder(shared_data: Path) -> Path:
    return shared_data / "modelnet10-sample"


def test_the_real_sample_against_a_brute_force(sample_folder: Path) -> None:
    dataset = data.load(sample_folder, split="train", voxel_size=0.05, num_points=1024)
    assert len(dataset) == 400
    assert dataset.labels == tuple(label for label in range(10) for _ in range(40))
    index = 123
    file = dataset.files[index]
    points = PointCloud.from_path(file.path).numpy(("x", "y", "z")).astype(np.float64)
    low = points.min(axis=0)
    extent = (points.max(axis=0) - low).max()
    expected = sorted({tuple(math.floor(x / 0.05) for x in (point - low) / extent) for point in points})
    batch = dataset.batch([7, index])
    rows = batch.coordinates[batch.coordinates[:, 0] == 1, 1:]
    assert [tuple(row) for row in rows.tolist()] == expected
    assert batch.labels.tolist() == [0, dataset.classes.index(file.path.parts[-3])]
    assert torch.equal(batch.features, torch.ones(batch.num_voxels, 1))
    assert dataset.voxel_counts()[index] == len(expected)


def test_every_real_cloud_loads_and_coarser_voxels_are_fewer(sample_folder: Path) -> None:
    fine = data.load(sample_folder, split="test", voxel_size=0.02).voxel_counts()
    coarse = data.load(sample_folder, split="test", voxel_size=0.1).voxel_counts()
    assert fine.shape == coarse.shape == (200,)
    assert (coarse < fine).all()
    assert fine.max() <= 1024


def test_a_samples_points_depend_on_its_name_and_the_seed_alone(sample_folder: Path, tmp_path: Path) -> None:
    options = {"voxel_size": 0.05, "num_points": 100}
    whole = data.load(sample_folder, split="train", seed=1, **options)
    for name in ("bed", "sofa"):
        shutil.copytree(sample_folder / "ModelNet10" / name, tmp_path / name)
    part = data.load(tmp_path, split="train", seed=1, **options)
    assert part.classes == ("bed", "sofa")
    assert torch.equal(part.sample(3).coordinates, whole.sample(43).coordinates)
    other = data.load(tmp_path, split="train", seed=2, **options)
    assert not torch.equal(other.sample(3).coordinates, part.sample(3).coordinates)
    assert len(part.points(3)) == 100


def test_the_origin_says_what_was_read_and_moves_with_the_contents(sample_folder: Path, tmp_path: Path) -> None:
    for name in ("bed", "sofa"):
        shutil.copytree(sample_folder / "ModelNet10" / name, tmp_path / "one" / name)
    shutil.copytree(tmp_path / "one", tmp_path / "two" / "one")
    first = data.load(tmp_path / "one", split="test", voxel_size=0.1).origin
    assert first == data.load(tmp_path / "two", split="test", voxel_size=0.1).origin
    assert (first["name"], first["samples"], first["classes"]) == ("one", 40, ["bed", "sofa"])
    assert str(tmp_path) not in json.dumps(first)
    victim = next((tmp_path / "one" / "bed" / "test").iterdir())
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.chmod(0o644)
    victim.write_bytes(content)
    assert data.load(tmp_path / "one", split="test", voxel_size=0.1).origin["sha256"] != first["sha256"]


def test_a_bad_file_is_named_when_it_is_read(tmp_path: Path) -> None:
    for name, text in (
        ("good", "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n"),
        ("flat", "OFF\n3 1 0\n0 0 0\n1 0 0\n2 0 0\n3 0 1 2\n"),
    ):
        (tmp_path / name / "train").mkdir(parents=True)
        (tmp_path / name / "train" / "a.off").write_text(text)
    dataset = data.load(tmp_path, split="train", voxel_size=0.1)
    assert dataset.classes == ("flat", "good")
    dataset.batch([1])
    with raises("mesh.no_area", "flat/train/a.off", area="0.0"):
        dataset.batch([1, 0])
    with raises("dataset.sample_unknown", "2", index=2):
        dataset.batch([2])
    with raises("dataset.sample_unknown", index=-1):
        dataset.batch([-1])


@pytest.mark.parametrize(
    "options", [{"voxel_size": 0.0}, {"voxel_size": math.nan}, {"voxel_size": 2}, {"num_points": 0}]
)
def test_bad_parameters_are_refused(tmp_path: Path, options: dict) -> None:
    with pytest.raises(InputError, match="expected"):
        data.load(tmp_path, split="train", **{"voxel_size": 0.1} | options)


def test_an_unknown_source_is_refused_with_the_names_there_are(tmp_path: Path) -> None:
    with raises("dataset.unknown", "modelnet10", name="modelnet11"):
        data.load("modelnet11", split="train", voxel_size=0.1)
    for name in ("modelnet11", "straggler-analysis"):  # what nobody learns from is not named among them
        with raises("dataset.unknown", name):
            data.find(name)
    with raises("dataset.not_found", "no such folder"):
        data.load(f"{tmp_path}/nowhere", split="train", voxel_size=0.1)


@pytest.fixture
def clouds(tmp_path: Path) -> Path:
    """One cloud of 3,000 points and one mesh of a square, for each split."""
    random = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in ("cloud", "mesh"):
            (tmp_path / name / split).mkdir(parents=True)
        np.savetxt(tmp_path / "cloud" / split / "0.txt", random.random((3000, 3)))
        square = "OFF\n4 1 0\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n4 0 1 2 3\n"
        (tmp_path / "mesh" / split / "0.off").write_text(square)
    return tmp_path


@pytest.mark.parametrize("asked", [{}, {"num_points": "all"}, {"num_points": None}])
def test_a_cloud_gives_all_its_points_and_a_mesh_1024_of_its_surface(clouds: Path, asked: dict) -> None:
    """Clouds of more than 1,024 points lost the others without a word."""
    dataset = data.load(clouds, split="train", voxel_size=0.001, **asked)
    rows = np.loadtxt(clouds / "cloud" / "train" / "0.txt")
    unit = (rows - rows.min(axis=0)) / np.ptp(rows, axis=0).max()
    assert np.array_equal(dataset.points(0), unit)
    assert len(dataset.sample(0)) == len(np.unique(np.floor(unit / 0.001), axis=0))
    assert len(dataset.points(1)) == 1024
    assert (dataset.origin["num_points"], dataset.origin["mesh_points"]) == ("all", 1024)
    few = data.load(clouds, split="train", voxel_size=0.001, num_points=100)
    assert [len(few.points(0)), len(few.points(1))] == [100, 100]
    assert few.origin["num_points"] == 100 and "mesh_points" not in few.origin


@pytest.mark.parametrize("cached", [False, True])
def test_epochs_of_an_augmentation_have_all_points_of_a_cloud_and_1024_of_a_mesh(clouds: Path, cached: bool) -> None:
    settings = {
        "voxel_size": 0.0001,
        "augmentation": data.Augmentation(),
        "cache": clouds / "kept" if cached else "off",
    }
    for _ in range(2):  # made, then taken from the cache
        dataset = data.load(clouds, split="train", **settings)
        cloud, mesh = ([dataset.sample(index, epoch=epoch) for epoch in (0, 1)] for index in (0, 1))
        assert torch.equal(cloud[0].coordinates, cloud[1].coordinates) and len(cloud[0]) == 3000
        assert not torch.equal(mesh[0].coordinates, mesh[1].coordinates) and len(mesh[0]) <= 1024
