"""Layouts of published data sets, rebuilt in miniature: what is listed, what is read, and what is refused."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from coded import raises

from sparsepipe import data
from sparsepipe.data import IGNORED, info, open_folder
from sparsepipe.data.formats import read
from sparsepipe.data.layouts import s3dis, semantickitti, shapenetpart
from sparsepipe.errors import InputError

RNG = np.random.default_rng(0)


def _write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def _text(rows: np.ndarray, separator: str = " ") -> str:
    return "".join(separator.join(f"{value:.6g}" for value in row) + "\n" for row in rows)


def _refused(path: Path, message: str) -> None:
    with pytest.raises(InputError) as caught:
        open_folder(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# --- classes: any format, parts beside ------------------------------------------------------------------------------

SQUARE = "OFF\n4 2 0\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n3 0 1 2\n3 0 2 3\n"


def test_the_same_class_folders_hold_any_format(tmp_path: Path) -> None:
    _write(tmp_path / "a" / "train" / "one.off", SQUARE)
    _write(tmp_path / "a" / "train" / "two.xyz", "0 0 0\n1 1 1\n")
    np.savez(tmp_path / "a" / "train" / "three.npz", points=np.eye(3))
    dataset = data.load(tmp_path, split="train", voxel_size=0.5)
    assert [len(dataset.sample(index)) for index in (1, 2)] == [3, 2]
    assert len(dataset.sample(0)) >= 4
    assert info(tmp_path)["formats"] == {"npz": 1, "off": 1, "xyz": 1}


def test_parts_beside_a_mesh_label_its_voxels(tmp_path: Path) -> None:
    """The square's lower right triangle is part 1: so are the voxels right of the diagonal."""
    _write(tmp_path / "square" / "train" / "s.off", SQUARE)
    _write(tmp_path / "square" / "train" / "s.seg", "1\n0\n")
    _write(tmp_path / "dataset.json", json.dumps({"name": "squares", "parts": ["upper", "lower"]}))
    assert open_folder(tmp_path).tasks == ("classification", "segmentation")
    whole = data.load(tmp_path, split="train", voxel_size=0.25)
    assert not whole.batch([0]).per_voxel
    parts = data.load(tmp_path, split="train", voxel_size=0.25, num_points=5000, task="segmentation")
    assert parts.classes == ("upper", "lower")
    batch = parts.batch([0, 0])
    assert batch.per_voxel
    x, y = batch.coordinates[:, 1], batch.coordinates[:, 2]
    inside = (x < 4) & (y < 4) & (x != y)
    assert torch.equal(batch.labels[inside], (x > y).long()[inside])
    for text, error in (
        ("1\n", ("cloud.label_count", "1", "2", "faces")),
        ("1\n2\n", ("dataset.label_out_of_range", "2", "2 classes")),
        ("1\nx\n", ("labels.malformed",)),
        ("1\n-1\n", ("cloud.label_malformed", "1", "-1.0")),
        ("1 0\n0 1\n", ("labels.column_count", "2")),
        ("", ("file.empty", "a list of labels")),
    ):
        _write(tmp_path / "square" / "train" / "s.seg", text)
        with raises(*error):
            data.load(tmp_path, split="train", voxel_size=0.25, task="segmentation").batch([0])
    (tmp_path / "square" / "train" / "s.seg").unlink()
    with raises("dataset.no_point_labels"):
        data.load(tmp_path, split="train", voxel_size=0.25, task="segmentation").batch([0])
    _write(tmp_path / "dataset.json", '{"parts": 3}')
    _refused(tmp_path, "'parts' is 3, expected a list of names")


def test_real_scans_with_labels_of_ones_own_keep_their_metres(shared_data: Path, tmp_path: Path) -> None:
    """A lidar sweep and a room, labelled by height: what a network can be shown to overfit."""
    for name in ("kitti_000008", "scannet_scene0000_00"):
        content = (shared_data / "scans" / f"{name}.bin").read_bytes()
        path = _write(tmp_path / "scan" / "train" / f"{name}.bin", content)
        height = read(path).points[:, 2]
        _write(path.with_suffix(".seg"), "".join(f"{label}\n" for label in (height > np.median(height)).astype(int)))
    _write(tmp_path / "dataset.json", json.dumps({"parts": ["low", "high"], "metric": True}))
    dataset = data.load(tmp_path, split="train", voxel_size=0.1, num_points=None, task="segmentation")
    lidar, room = dataset.batch([0, 1]).samples()
    assert min(len(lidar), len(room)) > 5000
    assert lidar.coordinates[:, 0].max() == 768  # 76.8 m ahead
    assert room.coordinates[:, 0].max() == 84
    for sample in (lidar, room):
        low, high = (sample.coordinates[sample.label == label, 2].float().mean() for label in (0, 1))
        assert low < high
    augmented = data.load(
        tmp_path, split="train", voxel_size=0.1, num_points=None, task="segmentation", augmentation="scans"
    )
    assert augmented.batch([0, 1], epoch=3).per_voxel
    _write(tmp_path / "dataset.json", '{"metric": "yes"}')
    _refused(tmp_path, "'metric' is 'yes', expected true or false")


def test_the_synthetic_shapes_have_parts_where_they_should_be(tmp_path: Path) -> None:
    data.make_shapes(tmp_path / "s", num_train=2, num_test=1, families=("table", "lamp", "bottle"))
    dataset = data.load(tmp_path / "s", split="train", voxel_size=0.05, task="segmentation")
    found = {}
    for index, file in enumerate(dataset.files):
        sample = dataset.sample(index)
        height = {
            dataset.classes[label]: sample.coordinates[sample.label == label, 2].float().mean().item()
            for label in sample.label.unique().tolist()
        }
        found.setdefault(file.name.split("/")[0], []).append(height)
    assert all(set(h) == {"top", "leg"} and h["top"] > h["leg"] for h in found["table"])
    assert all(set(h) == {"foot", "pole", "shade"} and h["foot"] < h["pole"] < h["shade"] for h in found["lamp"])
    assert all(set(h) == {"body", "neck"} and h["body"] < h["neck"] for h in found["bottle"])


# --- resampled text -------------------------------------------------------------------------------------------------


def _resampled(root: Path) -> Path:
    for name in ("chair_0001", "chair_0002", "night_stand_0001", "night_stand_0007"):
        normals = RNG.normal(size=(30, 3))
        normals /= np.linalg.norm(normals, axis=1, keepdims=True)
        rows = np.column_stack([RNG.uniform(-1, 1, (30, 3)), normals])
        _write(root / name.rpartition("_")[0] / f"{name}.txt", _text(rows, ","))
    _write(root / "modelnet40_shape_names.txt", "chair\nnight_stand\n")
    _write(root / "modelnet40_train.txt", "chair_0001\nnight_stand_0007\n")
    _write(root / "modelnet40_test.txt", "chair_0002\nnight_stand_0001\n")
    _write(root / "modelnet10_shape_names.txt", "chair\n")
    _write(root / "filelist.txt", "chair/chair_0001.txt\n")
    return root


def test_resampled_text(tmp_path: Path) -> None:
    root = _resampled(tmp_path / "around" / "modelnet40_normal_resampled")
    found = info(tmp_path / "around")
    assert found["layout"] == "resampled text"
    assert found["samples_by_class"] == {name: {"train": 1, "test": 1} for name in ("chair", "night_stand")}
    dataset = data.load(root, split="train", voxel_size=0.1, features=("occupancy", "normals"))
    assert [file.name for file in dataset.files] == ["chair/chair_0001.txt", "night_stand/night_stand_0007.txt"]
    batch = dataset.batch([1])
    assert batch.labels.tolist() == [1]
    assert batch.features.shape[1] == dataset.in_channels == 4
    assert batch.features[:, 1:].norm(dim=1).max() <= 1 + 1e-5
    _write(root / "modelnet40_test.txt", "\ufeffchair\\chair_0002.txt\r\nnight_stand\\night_stand_0001.txt\r\n")
    assert info(root)["splits"] == {"train": 2, "test": 2}  # a list with paths, written on Windows
    _write(root / "modelnet40_test.txt", "chair_0002\nsofa_0001\n")
    _refused(root, "'sofa_0001' matches no class in modelnet40_shape_names.txt")
    _write(root / "modelnet40_test.txt", "chair_0003\n")
    _refused(root, "chair_0003.txt: listed but missing")
    (root / "modelnet40_test.txt").unlink()
    _refused(root, "modelnet40_test.txt: no such file, expected a list")


# --- HDF5 -----------------------------------------------------------------------------------------------------------


def _hdf5(root: Path, sizes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """Write files of clouds with these labels; return what was written."""
    root.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, labels in sizes.items():
        written[name] = RNG.normal(size=(len(labels), 40, 3)).astype(np.float32)
        with h5py.File(root / name, "w") as file:
            file["data"] = written[name]
            file["label"] = np.array(labels, dtype=np.uint8)[:, None]
    return written


def test_hdf5_files_of_many_clouds(tmp_path: Path) -> None:
    root = tmp_path / "modelnet40_ply_hdf5_2048"
    sizes = {"ply_data_train0.h5": [2, 0], "ply_data_train1.h5": [1], "ply_data_test0.h5": [1, 1, 2]}
    written = _hdf5(root, sizes)
    for word, names in (("train", ("ply_data_train1.h5", "ply_data_train0.h5")), ("test", ("ply_data_test0.h5",))):
        listed = "".join(f"data/modelnet40_ply_hdf5_2048/{name}\n" for name in names)
        _write(root / f"{word}_files.txt", listed)
    _write(root / "shape_names.txt", "bed\nchair\nsofa\n")
    found = info(root)
    assert (found["layout"], found["splits"], found["formats"]) == ("hdf5", {"train": 3, "test": 3}, {"h5": 6})
    assert found["bytes"] == sum((root / name).stat().st_size for name in sizes)
    dataset = data.load(root, split="train", voxel_size=0.05)
    assert dataset.labels == (1, 2, 0)
    np.testing.assert_array_equal(dataset.points(1), data.unit_cube(written["ply_data_train0.h5"][0]))
    assert dataset.batch([2]).labels.tolist() == [0]
    _write(root / "shape_names.txt", "bed\nchair\n")
    _refused(root, "label 2, expected below 2, as many as shape_names.txt names")
    _write(root / "train_files.txt", "ply_data_train7.h5\n")
    _refused(root, "ply_data_train7.h5: listed in train_files.txt but missing")


def test_hdf5_files_without_lists_are_told_by_name(tmp_path: Path) -> None:
    _hdf5(tmp_path, {"a_val.h5": [0], "a_train.h5": [1]})
    folder = open_folder(tmp_path)
    assert folder.classes == ("0", "1")
    assert folder.splits == ("train", "validation")
    (tmp_path / "a_val.h5").rename(tmp_path / "odd.h5")
    (tmp_path / "a_train.h5").unlink()
    _refused(tmp_path, "no file *train*.h5 or *test*.h5")


def test_the_digits_are_made_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.datasets import load_digits

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARSEPIPE_DATA", raising=False)
    digits = load_digits()
    train = data.load("digits", split="train", voxel_size=1 / 28)
    test = data.load("digits", split="test", voxel_size=1 / 28)
    assert (len(train), len(test)) == (1437, 360)
    assert train.labels + test.labels == tuple(digits.target.tolist())
    assert not train.synthetic
    assert data.fetch("digits") == tmp_path / "sparsepipe" / "data" / "digits"
    # Every fourth grid point is a pixel: rows from the top, ink upwards.
    surface = test.points(5).reshape(29, 29, 3)
    np.testing.assert_allclose(surface[::4, ::4, 2] * 2 * 16, digits.images[1437 + 5], atol=1e-5)
    np.testing.assert_allclose(surface[0, :, 1], 1, atol=1e-6)
    np.testing.assert_allclose(surface[:, 28, 0], 1, atol=1e-6)
    assert data.make_digits(tmp_path / "sparsepipe" / "data" / "digits").is_dir()  # again: left as it is
    assert [path.name for path in (tmp_path / "sparsepipe" / "data").iterdir()] == ["digits"]
    _write(tmp_path / "file", "")
    with raises("out.unwritable"):
        data.make_digits(tmp_path / "file" / "digits")


# --- ShapeNetPart ---------------------------------------------------------------------------------------------------


def test_shapenetpart(tmp_path: Path) -> None:
    root = tmp_path / "shapenetcore_partanno_segmentation_benchmark_v0_normal"
    names = {"Airplane": "02691156", "Table": "04379243"}
    _write(root / "synsetoffset2category.txt", "".join(f"{name}\t{synset}\n" for name, synset in names.items()))
    lists: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    points = RNG.uniform(-0.5, 0.5, (60, 3))
    for name, first in (("Table", 47), ("Airplane", 0)):
        for word in lists:
            parts = first + (points[:, 2] > 0)  # upper and lower half
            rows = np.column_stack([points, np.tile([0, 0, 1], (60, 1)), parts])
            _write(root / names[name] / f"{word}1.txt", _text(rows))
            lists[word].append(f"shape_data/{names[name]}/{word}1")
    for word, entries in lists.items():
        _write(root / "train_test_split" / f"shuffled_{word}_file_list.json", json.dumps(entries))
    found = info(root)
    assert found["layout"] == "shapenetpart"
    assert found["tasks"] == ["segmentation", "classification"]
    assert found["classes"] == ["Airplane", "Table"]
    assert found["splits"] == {"train": 2, "validation": 2, "test": 2}
    assert len(found["parts"]) == 50
    assert (shapenetpart.PARTS[12], shapenetpart.PARTS[30], shapenetpart.PARTS[49]) == (
        "Chair 1",
        "Motorbike 1",
        "Table 3",
    )
    segments = data.load(root, split="test", voxel_size=0.01)  # fine: one point a voxel, so no vote
    batch = segments.batch([1])
    corner = data.unit_cube(points)
    middle = (0 - points[:, 2].min()) / np.ptp(points, axis=0).max()
    assert sorted(batch.labels.tolist()) == sorted((47 + (corner[:, 2] > middle)).tolist())
    whole = data.load(root, split="test", voxel_size=0.05, task="classification")
    assert whole.batch([0, 1]).labels.tolist() == [0, 1]
    assert whole.classes == ("Airplane", "Table")
    path = root / "train_test_split" / "shuffled_val_file_list.json"
    for entries, message in (
        (["shape_data/0000/x"], "'shape_data/0000/x', expected 'shape_data/SYNSET/NAME'"),
        (["shape_data/02691156/none"], "none.txt: listed but missing"),
        ([3], "3, expected 'shape_data"),
        ({}, "expected a list of 'shape_data"),
    ):
        _write(path, json.dumps(entries))
        _refused(root, message)


# --- S3DIS ----------------------------------------------------------------------------------------------------------


def test_s3dis(tmp_path: Path) -> None:
    root = tmp_path / "Stanford3dDataset_v1.2_Aligned_Version"
    rooms = {}
    for area, room in (("Area_1", "office_1"), ("Area_5", "hallway_2"), ("Area_6", "office_1")):
        objects = {}
        for name in ("ceiling_1", "chair_1", "chair_2", "stairs_1"):
            objects[name] = np.column_stack([RNG.uniform(-5, 5, (20, 3)), RNG.integers(0, 256, (20, 3))]).round(3)
            _write(root / area / room / "Annotations" / f"{name}.txt", _text(objects[name]))
        _write(root / area / room / f"{room}.txt", "not read")
        rooms[f"{area}/{room}"] = objects
    folder = open_folder(root)
    assert (folder.layout, folder.metric, folder.tasks) == ("s3dis", True, ("segmentation",))
    assert [file.name for file in folder.split("train")] == ["Area_1/office_1", "Area_6/office_1"]
    assert [file.name for file in folder.split("test")] == ["Area_5/hallway_2"]
    assert info(root)["classes"] == list(s3dis.CLASSES)
    dataset = data.load(root, split="test", voxel_size=0.01, num_points=None, features=("colours",))
    with raises("dataset.no_class_labels"):
        dataset.labels  # noqa: B018
    batch = dataset.batch([0])
    objects = rooms["Area_5/hallway_2"]
    expected = {}
    for name, rows in objects.items():
        kind = {"ceiling": 0, "chair": 8, "stairs": 12}[name.rpartition("_")[0]]
        for row in rows:
            places = (row[:3] / 0.01).round(6)  # in metres, not in a unit cube; a point on a side is in the voxel above
            cell = tuple(np.floor(places).astype(int).tolist())
            expected[cell] = (kind, row[3:] / 255)
    assert len(expected) == batch.num_voxels == 80
    for cell, label, colour in zip(batch.coordinates[:, 1:].tolist(), batch.labels, batch.features, strict=True):
        assert expected[tuple(cell)][0] == label
        np.testing.assert_allclose(colour, expected[tuple(cell)][1], atol=1e-6)
    with raises("dataset.task_unknown", "segmentation", task="classification"):
        data.load(root, split="test", voxel_size=0.05, task="classification")
    _write(root / "Area_1" / "office_1" / "Annotations" / "chair_1.txt", "0 0 0 1 2 3\n0 0 185\x1087 2 2 2\n")
    with raises("text.row_malformed", "chair_1.txt", "'0 0 185", number=2):
        data.load(root, split="train", voxel_size=0.05).batch([0])
    for path in (root / "Area_6" / "office_1" / "Annotations").iterdir():
        path.unlink()
    _refused(root, "has no CLASS_K.txt, expected the objects of a room")


# --- SemanticKITTI --------------------------------------------------------------------------------------------------


def _kitti(root: Path, sequence: str, name: str, *, raw: np.ndarray | None, points: bytes) -> None:
    _write(root / "sequences" / sequence / "velodyne" / f"{name}.bin", points)
    if raw is not None:
        _write(root / "sequences" / sequence / "labels" / f"{name}.label", raw.astype("<u4").tobytes())


def test_semantickitti_on_a_real_sweep(shared_data: Path, tmp_path: Path) -> None:
    content = (shared_data / "scans" / "kitti_000008.bin").read_bytes()
    points = np.frombuffer(content, dtype="<f4").reshape(-1, 4)
    instance = RNG.integers(0, 2**16, len(points)) << 16
    kinds = np.where(points[:, 2] < -1.5, 40, np.where(points[:, 0] > 30, 70, 252))  # road, vegetation, moving car
    kinds[:100] = [0, 1, 52, 99] * 25  # what counts as nothing
    root = tmp_path / "dataset"
    for sequence in ("00", "08"):
        _kitti(root, sequence, "000000", raw=kinds | instance, points=content)
    _kitti(root, "11", "000000", raw=None, points=content)
    folder = open_folder(tmp_path)
    assert (folder.layout, folder.name, folder.metric) == ("semantickitti", "semantickitti", True)
    assert folder.splits == ("train", "validation", "test")
    content_read = folder.read(folder.split("train")[0])
    table = {40: 8, 70: 14, 252: 0}
    expected = [table.get(kind, IGNORED) for kind in kinds.tolist()]
    assert content_read.labels.tolist() == expected
    assert (semantickitti.CLASSES[8], semantickitti.CLASSES[14], len(semantickitti.CLASSES)) == (
        "road",
        "vegetation",
        19,
    )
    dataset = data.load(tmp_path, split="validation", voxel_size=0.1, num_points=None, features=("intensity",))
    batch = dataset.batch([0])
    votes: dict[tuple, list] = {}
    for point, label in zip(points[:, :3].astype(np.float64).tolist(), expected, strict=True):
        votes.setdefault(tuple(int(np.floor(value / 0.1)) for value in point), []).append(label)
    rows = batch.coordinates[:, 1:].tolist()
    assert len(rows) == len(votes)
    for row, label in zip(rows, batch.labels.tolist(), strict=True):
        valid = sorted(vote for vote in votes[tuple(row)] if vote != IGNORED)
        assert label == (max(valid, key=valid.count) if valid else IGNORED)  # of equals the first, so the smallest
    test = data.load(tmp_path, split="test", voxel_size=0.5, num_points=None).batch([0])
    assert (test.labels == IGNORED).all()


def test_broken_semantickitti_is_refused(tmp_path: Path) -> None:
    points = np.zeros((5, 4), dtype="<f4").tobytes()
    _kitti(tmp_path, "00", "000000", raw=np.full(4, 40), points=points)
    with raises("semantickitti.label_count", "16", "20", num_points=5):
        data.load(tmp_path, split="train", voxel_size=0.1).batch([0])
    _kitti(tmp_path, "00", "000000", raw=np.full(5, 41), points=points)
    with raises("semantickitti.label_unknown", "0", raw=41):
        data.load(tmp_path, split="train", voxel_size=0.1).batch([0])
    _kitti(tmp_path, "01", "000000", raw=None, points=points)
    _refused(tmp_path, "000000.label: file not found, expected the labels of 000000.bin")
    empty = tmp_path / "empty"
    (empty / "sequences" / "00" / "velodyne").mkdir(parents=True)
    _refused(empty, "no NN/velodyne/*.bin")
