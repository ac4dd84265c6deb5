"""What learning is held against: nearest neighbours, a labelled sweep, runs side by side."""

import numpy as np
import pytest

from sparsepipe import InputError, data
from sparsepipe.data import make_shapes
from sparsepipe.reproduce.learning import (
    labelled_sweep,
    nearest_neighbour_accuracy,
    train_side_by_side,
    voxel_histograms,
)
from sparsepipe.runtime.config import RunConfig


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return make_shapes(tmp_path_factory.mktemp("shapes"), num_train=2, num_test=1, seed=0)


def loaded(shapes, split):
    return data.load(str(shapes), split=split, voxel_size=0.1, num_points=256)


def test_a_histogram_holds_the_share_of_voxels_in_each_cell(shapes):
    dataset = loaded(shapes, "train")
    found = voxel_histograms(dataset, 4)
    assert found.shape == (len(dataset), 64)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    counts = np.zeros((4, 4, 4))
    coordinates = dataset.sample(3).coordinates
    for x, y, z in (coordinates * 4 // 11).tolist():  # voxels 0 to 10 along each side
        counts[x, y, z] += 1
    np.testing.assert_allclose(found[3], counts.ravel() / len(coordinates))


def test_the_nearest_neighbour_of_a_sample_is_itself(shapes):
    dataset = loaded(shapes, "train")
    assert nearest_neighbour_accuracy(dataset, dataset, 10) == 1.0


def test_a_sweep_is_labelled_by_height_and_distance(tmp_path):
    points = np.array([[5, 0, -2, 0.5], [5, 1, -1, 0.5], [5, 2, 1, 0.5], [40, 0, -2, 0.5]], dtype="<f4")
    (tmp_path / "scan.bin").write_bytes(points.tobytes())
    folder = labelled_sweep(tmp_path / "scan.bin", tmp_path / "sweep")
    for split in ("train", "validation"):
        dataset = data.load(str(folder), split=split, voxel_size=0.5, num_points=None)
        labels = dataset.batch([0]).labels
        names = [dataset.classes[label] for label in labels]
        assert sorted(names) == ["building", "car", "road", "vegetation"]


def test_what_is_no_sweep_is_refused(tmp_path):
    (tmp_path / "scan.bin").write_bytes(b"12345")
    with pytest.raises(InputError, match="5 bytes, expected rows of four float32"):
        labelled_sweep(tmp_path / "scan.bin", tmp_path / "sweep")


def test_finished_runs_are_taken_and_others_trained(tmp_path, shapes, capsys):
    config = RunConfig("minkvgg11bn-narrow", str(shapes), voxel_size=0.1, num_points=256, batch_size=16, threads=1)
    first = train_side_by_side(tmp_path, {"a": config})
    both = train_side_by_side(tmp_path, {"a": config, "b": RunConfig(**{**config.to_json(), "seed": 1})})
    assert both["a"].folder == first["a"].folder == tmp_path / "a-001"
    assert both["b"].metrics("epoch")[0]["train"]["loss"] != both["a"].metrics("epoch")[0]["train"]["loss"]
    assert "a: from runs/a-001\nb: training now" in capsys.readouterr().out
