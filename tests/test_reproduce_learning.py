"""What learning is held against: nearest neighbours, a labelled sweep, runs side by side."""

import numpy as np
import pytest
from coded import mentions, raises

from sparsepipe import data
from sparsepipe.data import make_shapes
from sparsepipe.runtime.config import RunConfig
from sparsepipe.study import equal_stages, train
from sparsepipe.study.learning import (
    commonest_share,
    gap_and_noise,
    labelled_room,
    labelled_scans,
    labelled_sweep,
    nearest_neighbour_accuracy,
    real_shapes,
    voxel_histograms,
)

SEGMENTS = {  # a small MinkUNet and how it is trained
    "model": "minkunet14a-segmentation-narrow",
    "task": "segmentation",
    "engine": "native",
    "optimizer": "adamw",
    "learning_rate": 0.01,
    "learning_rate_schedule": "cosine",
    "threads": 1,
    "checkpoint_every": 0,
}


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


def test_a_room_is_labelled_by_height(tmp_path):
    points = np.array([[0, 0, 1.0, 9, 9, 9], [1, 0, 1.05, 9, 9, 9], [2, 0, 1.9, 9, 9, 9], [3, 0, 2.1, 9, 9, 9]], "<f4")
    (tmp_path / "room.bin").write_bytes(points.tobytes())
    folder = labelled_room(tmp_path / "room.bin", tmp_path / "room")
    for split in ("train", "test"):
        dataset = data.load(str(folder), split=split, voxel_size=0.5, num_points=None)
        names = [dataset.classes[label] for label in dataset.batch([0]).labels]
        config = RunConfig(
            SEGMENTS["model"], str(folder), voxel_size=0.5, num_points=None, task="segmentation", validation_split=split
        )
        assert commonest_share(config) == 0.5
        assert names == ["floor", "floor", "table", "wall"]  # in the order of x


@pytest.mark.parametrize("name", ["sweep", "room"])
def test_what_is_held_out_of_a_scan_is_not_trained_on(tmp_path, name):
    """A network was asked about the points that it was trained on, and the answer called it validation."""
    width, label, split = {"sweep": (4, labelled_sweep, "validation"), "room": (6, labelled_room, "test")}[name]
    points = np.random.default_rng(0).uniform(-20, 20, (200, width)).astype("<f4")
    points[:, 3:] = np.abs(points[:, 3:])  # intensity, or colours
    (tmp_path / "scan.bin").write_bytes(points.tobytes())
    folder = label(tmp_path / "scan.bin", tmp_path / name, held_out=0.25)
    kept, held = (data.load(str(folder), split=one, voxel_size=0.01, num_points=None) for one in ("train", split))
    places = [{tuple(row) for row in part.sample(0).coordinates.tolist()} for part in (kept, held)]
    assert len(kept.sample(0).coordinates) == 150 and len(held.sample(0).coordinates) == 50
    assert all(map(len, places))
    with raises("learning.held_out", held_out=1):
        labelled_scans(tmp_path, held_out=1)


def test_what_is_no_scan_is_refused(tmp_path):
    (tmp_path / "scan.bin").write_bytes(b"12345")
    with raises("scan.size_odd", "5", "a ScanNet room", width=6):
        labelled_room(tmp_path / "scan.bin", tmp_path / "room")
    with raises("scan.size_odd", "5", "a KITTI sweep", width=4):
        labelled_sweep(tmp_path / "scan.bin", tmp_path / "sweep")


def test_what_no_data_folder_holds_is_left_out_aloud(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SPARSEPIPE_DATA", str(tmp_path / "data"))
    assert real_shapes() == "" and labelled_scans(tmp_path) == {}
    said = capsys.readouterr().out
    assert mentions(said, "modelnet10-sample")
    assert "the sweep" in said and "the room" in said
    assert said.count("folder scans/") == 2
    (tmp_path / "data" / "modelnet10-sample").mkdir(parents=True)
    assert real_shapes() == str(tmp_path / "data" / "modelnet10-sample")


def test_the_noise_of_a_gap_between_curves_is_that_of_equally_good_networks():
    """Curves of networks that are right with probability 0.5, then 0.8: the noise is twice what their gap is."""
    drawn = np.random.default_rng(0).binomial(200, [[0.5, 0.8]] * 2, size=(4000, 2, 2)) / 200
    gaps, noises = zip(*(gap_and_noise(one, other, 200) for one, other in drawn), strict=True)
    assert np.mean(np.square(noises)) == pytest.approx(4 * np.mean(np.square(gaps)), rel=0.05)
    assert gap_and_noise([0.5, 0.7], [0.5, 0.6], 200)[0] == pytest.approx(0.1 / np.sqrt(2))
    gap, noise = gap_and_noise([0.4] * 12, [0.6] * 12, 200)
    assert gap == pytest.approx(0.2) and noise == pytest.approx(0.1)


def test_equal_stages_have_every_layer_once_and_as_many_each():
    (whole,) = equal_stages("minkvgg11bn-narrow").stages
    for count in (2, 5):
        stages = equal_stages("minkvgg11bn-narrow", count).stages
        assert sum((stage.layers for stage in stages), ()) == whole.layers
        sizes = [len(stage.layers) for stage in stages]
        assert max(sizes) - min(sizes) <= 1 and [stage.ranks for stage in stages] == [(k,) for k in range(count)]
    for count in (0, len(whole.layers) + 1):
        with raises("number.not_whole", "num_stages"):
            equal_stages("minkvgg11bn-narrow", count)


@pytest.mark.slow
def test_finished_runs_are_taken_and_others_trained(tmp_path, shapes, capsys):
    config = RunConfig("minkvgg11bn-narrow", str(shapes), voxel_size=0.1, num_points=256, batch_size=16, threads=1)
    plan = equal_stages(config.model)
    first = train(tmp_path, {"a": (plan, config)})
    both = train(tmp_path, {"a": (plan, config), "b": (plan, config.replace(seed=1))})
    assert both["a"].folder == first["a"].folder == tmp_path / "a-001"
    assert both["b"].metrics("epoch")[0]["train"]["loss"] != both["a"].metrics("epoch")[0]["train"]["loss"]
    assert "a: from runs/a-001\nb: training now" in capsys.readouterr().out


def reached(record):
    """Accuracy and mean intersection over union after the last epoch."""
    last = record.metrics("epoch")[-1]["validation"]
    return last["accuracy"], last["mean_iou"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_unet_learns_real_scans_by_heart(tmp_path, shared_data, monkeypatch):
    monkeypatch.setenv("SPARSEPIPE_DATA", str(shared_data))
    scans, sizes = labelled_scans(tmp_path), {"sweep": 0.4, "room": 0.2}  # metres
    assert set(scans) == set(sizes)
    configs = {
        name: RunConfig(
            data=str(folder),
            voxel_size=sizes[name],
            num_points=None,
            batch_size=1,
            epochs=30,
            validation_split=split,
            **SEGMENTS,
        )
        for name, (folder, split) in scans.items()
    }
    plan = equal_stages(SEGMENTS["model"])
    asked = {name: (plan, config) for name, config in configs.items()}
    for name, record in train(tmp_path / "runs", asked).items():
        accuracy, iou = reached(record)
        assert commonest_share(configs[name]) < 0.5 and accuracy > 0.9 and iou > 0.8, (name, accuracy, iou)
