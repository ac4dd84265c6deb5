"""Pointcept's scene folders: what is listed and read, which labels are chosen, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from sparsepipe import data
from sparsepipe.data import IGNORED, info, open_folder
from sparsepipe.errors import InputError

RNG = np.random.default_rng(0)


def _scene(folder: Path, labels: list[int] | None, *, segment: str = "segment", colours: type = np.uint8) -> dict:
    """Write a scene of as many points as labels; return its arrays."""
    count = 6 if labels is None else len(labels)
    folder.mkdir(parents=True, exist_ok=True)
    normals = RNG.normal(size=(count, 3))
    arrays = {
        "coord": RNG.uniform(0, 4, (count, 3)).astype(np.float32),
        "color": RNG.integers(0, 256, (count, 3)).astype(colours),
        "normal": (normals / np.linalg.norm(normals, axis=1, keepdims=True)).astype(np.float32),
        "strength": RNG.uniform(size=(count, 1)).astype(np.float32),
        "instance": np.arange(count) - 1,
    }
    if labels is not None:
        arrays[segment] = np.array(labels, dtype=np.int16)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return arrays


def _refused(path: Path, message: str) -> None:
    with pytest.raises(InputError) as caught:
        folder = open_folder(path)
        for file in folder.files:
            folder.read(file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("colours", [np.uint8, np.float32])
def test_a_scene_has_all_its_arrays(tmp_path: Path, colours: type) -> None:
    """They became samples of classes called after scenes."""
    arrays = _scene(tmp_path / "train" / "scene0000_00", [0, 2, -1, 255, 1, 0], colours=colours)
    _scene(tmp_path / "val" / "scene0001_00", [0, 1, 0, 0, 0, 0])
    _scene(tmp_path / "test" / "scene0002_00", None)
    np.save(tmp_path / "train" / "scene0000_00" / "pose.npy", np.eye(4))
    found = info(tmp_path)
    assert (found["layout"], found["tasks"], found["classes"]) == ("pointcept", ["segmentation"], ["0", "1", "2"])
    assert found["splits"] == {"train": 1, "validation": 1, "test": 1}
    assert [entry["path"] for entry in found["left_out"]] == ["SPLIT/SCENE/pose.npy"]
    folder = open_folder(tmp_path)
    assert [file.name for file in folder.files] == [
        "test/scene0002_00",
        "train/scene0000_00",
        "val/scene0001_00",
    ]
    cloud = folder.read(folder.of_split("train")[0])
    np.testing.assert_array_equal(cloud.points, arrays["coord"])
    assert cloud.labels.tolist() == [0, 2, IGNORED, IGNORED, 1, 0]
    columns = dict(zip(cloud.names, cloud.attributes.T, strict=True))
    np.testing.assert_array_equal(np.column_stack([columns[n] for n in ("red", "green", "blue")]), arrays["color"])
    np.testing.assert_array_equal(np.column_stack([columns[n] for n in ("nx", "ny", "nz")]), arrays["normal"])
    np.testing.assert_array_equal(columns["intensity"], arrays["strength"][:, 0])
    np.testing.assert_array_equal(columns["instance"], arrays["instance"])
    assert (folder.read(folder.of_split("test")[0]).labels == IGNORED).all()
    report = data.check(tmp_path, voxel_size=0.5, num_points=None)
    assert not report.faults
    assert report.splits["train"].unlabelled == 2
    dataset = data.load(tmp_path, split="train", voxel_size=0.05, features=("colours", "normals"), num_points=None)
    assert dataset.batch([0]).features.shape == (6, 6)


def test_labels_are_those_named_or_the_only_ones(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for name, label in (("segment20", 19), ("segment200", 150)):
            _scene(tmp_path / split / f"{split}_scene", [label] * 4, segment=name)
    _refused(tmp_path, "its scenes have segment20.npy, segment200.npy, expected only one; choose it in dataset.json")
    for name, count, label in (("segment20", 20, 19), ("segment200", 200, 150)):
        (tmp_path / "dataset.json").write_text(json.dumps({"segment": name}))
        folder = open_folder(tmp_path)
        assert len(folder.parts) == count
        assert set(folder.read(folder.files[0]).labels.tolist()) == {label}
    assert open_folder(tmp_path).parts[0] == "0"
    (tmp_path / "dataset.json").write_text(json.dumps({"segment": "segment40"}))
    _refused(tmp_path, "'segment' is 'segment40', expected one of segment20, segment200")
    marker = {"segment": "segment200", "parts": ["other"], "labels": {"150": "other", "*": None}}
    (tmp_path / "dataset.json").write_text(json.dumps(marker))
    folder = open_folder(tmp_path)
    assert folder.parts == ("other",)
    assert set(folder.read(folder.files[0]).labels.tolist()) == {0}


def test_rooms_of_s3dis_are_divided_by_area(tmp_path: Path) -> None:
    for area in (1, 5):
        _scene(tmp_path / f"Area_{area}" / "office_1", [0, 12, 3])
    folder = open_folder(tmp_path)
    assert {file.name: file.split for file in folder.files} == {
        "Area_1/office_1": "train",
        "Area_5/office_1": "test",
    }
    assert folder.parts[0] == "ceiling"
    assert folder.metric


def test_broken_scenes_are_refused_in_one_line_that_names_the_file(tmp_path: Path) -> None:
    train = tmp_path / "train" / "a"
    _scene(train, [0, 1, 0])
    _scene(tmp_path / "val" / "b", [0, 1, 0])
    np.save(train / "color.npy", np.zeros((2, 3)))
    _refused(
        tmp_path, f"{train / 'color.npy'}: array 'color' has type and shape float64 [2, 3], expected numbers [3, 3]"
    )
    np.save(train / "color.npy", np.array([{}, {}, {}], dtype=object), allow_pickle=True)
    _refused(tmp_path, f"{train / 'color.npy'}: cannot be read as a NumPy array (it contains object, not numbers)")
    (train / "color.npy").unlink()
    (train / "segment.npy").unlink()
    _refused(tmp_path, f"{train / 'segment.npy'}: file not found, expected the labels of a")
    for path in train.iterdir():
        path.unlink()
    (train / "a.pth").write_bytes(b"x")
    _refused(tmp_path, f"{train}: contains no sample, but 1 file (.pth) of unsupported formats")
    (train / "a.pth").rename(tmp_path / "train" / "a.pth")
    train.rmdir()
    _refused(tmp_path, f"{tmp_path / 'train'}: contains no sample, but 1 file (.pth) in no scene's folder")
