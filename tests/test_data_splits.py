"""Which sample is of which split, and what is left out: nothing is dropped, merged or doubled without a word."""

import gzip
import json
import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from coded import mentions, raises

from sparsepipe.data import info, open_folder
from sparsepipe.data.describing import unread_files
from sparsepipe.data.layouts.base import are_parts, splits_named
from sparsepipe.errors import InputError

TRIANGLE = "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n"


def _make(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TRIANGLE)
    return root


def _hdf5(root: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(root / name, "w") as file:
            file["data"] = np.random.default_rng(number).normal(size=(2, 8, 3)).astype(np.float32)
            file["label"] = np.array([0, 1])
    return root


def _left_out(root: Path) -> dict[str, str]:
    return {entry["path"]: entry["why"] for entry in info(root)["left_out"]}


# --- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stem", "splits"),
    [
        ("ply_data_train0", ["train"]),
        ("training_objectdataset_augmentedrot_scale75", ["train"]),
        ("ModelNetTrain", ["train"]),
        ("HDF5Test", ["test"]),
        ("TRAIN", ["train"]),
        ("my-valid.set", ["validation"]),
        ("constraint", []),
        ("retrain", []),
        ("trainval", []),
        ("latest", []),
        ("interval", []),
        ("train_test", ["train", "test"]),
    ],
)
def test_files_are_told_by_whole_words(stem: str, splits: list[str]) -> None:
    """`*train*` took constraint.h5 for training data, and a file named after two splits for samples of both."""
    assert splits_named(stem) == splits


@pytest.mark.parametrize(
    ("stems", "parts"),
    [
        (["train"], True),
        (["train0", "train1", "train2"], True),
        (["ply_data_train1", "ply_data_train2"], True),
        (["train_9", "train_10", *(f"train_{k}" for k in range(9))], True),
        (["train-00000-of-00002", "train-00001-of-00002"], True),
        (["train-00000-of-00003", "train-00001-of-00003"], False),
        (["train0", "train2"], False),
        (["train2", "train3"], False),
        (["train_v1", "train_v2"], False),
        (["train_1024", "train_2048"], False),
        (["train", "train_augmented"], False),
        (["train_a", "train_b"], False),
        (["a0_train0", "a1_train1"], False),
    ],
)
def test_parts_count_through_alternatives_do_not(stems: list[str], parts: bool) -> None:
    assert are_parts(stems) is parts


# --- class folders ---------------------------------------------------------------------------------------------------


def test_splits_have_many_names_in_any_case(tmp_path: Path) -> None:
    """`val/` and `testing/` were dropped without a word, `Train/` refused (huggingface/datasets#4839)."""
    _make(
        tmp_path, "a/Train/x.off", "a/VAL/y.off", "a/testing/z.off", "b/training/x.off", "b/valid/y.off", "b/TEST/z.off"
    )
    folder = open_folder(tmp_path)
    assert [(file.name, file.split) for file in folder.files if file.label == 0] == [
        ("a/Train/x.off", "train"),
        ("a/VAL/y.off", "validation"),
        ("a/testing/z.off", "test"),
    ]
    assert info(tmp_path)["splits"] == {"train": 2, "validation": 2, "test": 2}


def test_folders_in_the_order_of_imagenet(tmp_path: Path) -> None:
    names = [f"{split}/{name}/x.off" for split in ("train", "val") for name in ("chair", "sofa")]
    found = info(_make(tmp_path / "set", *names, "set/logs/events.off", "README.txt"))
    assert found["splits"] == {"train": 2, "validation": 2}
    assert found["classes"] == ["chair", "sofa"]
    assert found["samples_by_class"] == {name: {"train": 1, "validation": 1} for name in ("chair", "sofa")}
    around = _make(tmp_path, "README.txt")  # and with a folder around
    assert info(around)["samples"] == 4
    with raises("layout.class_empty", "validation/table", ".off"):
        open_folder(_make(tmp_path / "set", "train/table/x.off")).split("validation")


def test_a_class_may_be_called_after_a_split(tmp_path: Path) -> None:
    vehicles = _make(tmp_path / "a", "car/train/x.off", "car/test/y.off", "train/train/x.off", "train/test/y.off")
    assert open_folder(vehicles).classes == ("car", "train")
    other = _make(tmp_path / "b", "train/car/x.off", "test/car/y.off", "train/train/x.off", "test/train/y.off")
    assert open_folder(other).classes == ("car", "train")
    assert info(other)["splits"] == {"train": 2, "test": 2}
    with raises("layout.order_mixed"):
        open_folder(_make(tmp_path / "c", "chair/train/x.off", "test/sofa/y.off"))


def test_two_folders_of_one_split_are_refused(tmp_path: Path) -> None:
    with raises("dataset.folder_fault", "a/val: duplicates the split", "a/validation; keep one, or merge them"):
        open_folder(_make(tmp_path, "a/train/x.off", "a/val/x.off", "a/validation/y.off"))


def test_what_is_no_class_is_left_out_and_listed(tmp_path: Path) -> None:
    """A folder of logs beside the classes refused the whole set, and said that it lacked .off files."""
    _make(tmp_path, "chair/train/x.off", "chair/train/x.fbx", "chair/train/y.fbx", "chair/holdout/z.off", "chair/w.off")
    _make(tmp_path, "logs/rank0.log", "run/checkpoints/a/b.json", "bed/train/x.png", "classes.csv")
    (tmp_path / "processed").mkdir()
    (tmp_path / "chair" / "train" / "gone.off").symlink_to("nowhere.off")
    (tmp_path / "chair" / "train" / "inner").mkdir()
    (tmp_path / "sofa" / "test").mkdir(parents=True)
    assert open_folder(tmp_path).classes == ("chair",)
    left_out = _left_out(tmp_path)
    assert set(left_out) == {
        "chair/train/*.fbx",
        "chair/train/gone.off",
        "chair/train/inner/",
        "chair/holdout/",
        "chair/w.off",
        "logs/",
        "run/",
        "processed/",
        "bed/train/",
        "bed/train/x.png",
        "sofa/test/",
        "classes.csv",
    }
    assert mentions(left_out["logs/"], "rank0.log")
    assert "link" in left_out["chair/train/gone.off"]
    with raises("dataset.split_unknown", "train; left out", "chair/holdout/", name="test"):
        open_folder(tmp_path).split("test")


def test_a_class_that_lacks_a_split_is_told(tmp_path: Path) -> None:
    found = info(_make(tmp_path, "chair/train/c.off", "chair/test/d.off", "sofa/train/e.off"))
    assert found["missing"] == [{"class": "sofa", "split": "test"}]


# --- HDF5 ------------------------------------------------------------------------------------------------------------


def test_hdf5_files_of_other_words_are_left_out(tmp_path: Path) -> None:
    _hdf5(tmp_path, "train0.h5", "train1.HDF5", "test.hdf5", "constraint.h5", "retrain.h5", "train_test.h5")
    _hdf5(tmp_path, "nobg/train.h5")
    assert info(tmp_path)["splits"] == {"train": 4, "test": 2}
    assert set(_left_out(tmp_path)) == {"constraint.h5", "retrain.h5", "train_test.h5", "nobg/"}


def test_variants_are_refused_unless_one_is_chosen(tmp_path: Path) -> None:
    """ScanObjectNN holds the same objects once more, augmented: they were all read as one split."""
    names = ("training_objectdataset.h5", "training_objectdataset_augmentedrot.h5", "test_objectdataset.h5")
    _hdf5(tmp_path / "main_split", *names)
    with pytest.raises(InputError) as caught:
        open_folder(tmp_path / "main_split")
    assert mentions(str(caught.value), "training_objectdataset.h5", "training_objectdataset_augmentedrot.h5")
    assert "dataset.json" in str(caught.value)
    files = {"train": [names[1]], "test": [names[2]]}
    (tmp_path / "main_split" / "dataset.json").write_text(json.dumps({"files": files}))
    assert {file.path.name for file in open_folder(tmp_path / "main_split").files} == {names[1], names[2]}
    assert _left_out(tmp_path / "main_split") == {names[0]: "in no list"}
    _hdf5(tmp_path / "main_split_nobg", names[0], names[2])
    with raises("dataset.several", "2", names="main_split, main_split_nobg"):
        open_folder(tmp_path)
    assert info(tmp_path / "main_split_nobg")["samples"] == 4


def test_one_version_trains_and_is_tested(tmp_path: Path) -> None:
    with raises("layout.versions_mixed", "test_v2.h5, train_v1.h5", "choose the files"):
        open_folder(_hdf5(tmp_path / "a", "train_v1.h5", "test_v2.h5"))
    assert info(_hdf5(tmp_path / "b", "train_v2.h5", "test_v2.h5"))["samples"] == 4


def test_two_layouts_in_one_folder_are_refused(tmp_path: Path) -> None:
    _hdf5(_make(tmp_path, "chair/train/x.off"), "train.h5")
    with raises("dataset.layouts_mixed", "hdf5 and one of layout classes"):
        open_folder(tmp_path)
    (tmp_path / "dataset.json").write_text('{"files": {"train": ["train.h5"]}}')
    assert list(_left_out(tmp_path)) == ["chair/"]


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ([], ("marker.files_malformed",)),
        ({"holdout": ["train.h5"]}, ("marker.split_malformed", "holdout")),
        ({"val": ["train.h5"], "valid": ["train.h5"]}, ("marker.split_malformed", "valid")),
        ({"train": "train.h5"}, ("marker.names_malformed", "train")),
        ({"train": ["../train.h5"]}, ("marker.file_outside", "../train.h5")),
        ({"train": ["none.h5"]}, ("marker.file_outside", "none.h5")),
        (
            {"train": ["train.h5"], "test": ["train.h5"]},
            ("dataset.folder_fault", "in split test, but identical to"),
        ),
        ({"train": ["train.h5", "train.h5"]}, ("dataset.folder_fault", "listed twice in split train")),
    ],
)
def test_a_choice_of_files_is_checked(tmp_path: Path, files: object, error: tuple[str, ...]) -> None:
    _hdf5(tmp_path, "train.h5")
    (tmp_path / "dataset.json").write_text(json.dumps({"files": files}))
    with raises(*error) as caught:
        open_folder(tmp_path)
    assert "\n" not in str(caught.value)


# --- no sample in two splits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["symlink", "hard link", "folder"])
def test_one_file_in_two_splits_is_refused(tmp_path: Path, how: str) -> None:
    _make(tmp_path, "a/train/x.off", "a/train/y.off")
    if how == "folder":
        (tmp_path / "a" / "test").symlink_to("train")
    else:
        (tmp_path / "a" / "test").mkdir()
        link = os.symlink if how == "symlink" else os.link
        link(tmp_path / "a" / "train" / "x.off", tmp_path / "a" / "test" / "z.off")
    with raises("dataset.folder_fault", "in split test, but identical to", "a/train/x.off in split train"):
        open_folder(tmp_path)


def test_one_name_in_two_lists_is_refused(tmp_path: Path) -> None:
    _hdf5(tmp_path / "h", "a.h5")
    for word in ("train", "test"):
        (tmp_path / "h" / f"{word}_files.txt").write_text("a.h5\n")
    with raises("dataset.folder_fault", "a.h5: in split test, but identical to", "a.h5 in split train"):
        open_folder(tmp_path / "h")
    root = _make(tmp_path / "r", "chair/chair_0001.txt", "chair/chair_0002.txt")
    (root / "modelnet40_shape_names.txt").write_text("chair\n")
    (root / "modelnet40_train.txt").write_text("chair_0001\n")
    (root / "modelnet40_test.txt").write_text("chair_0001\n")
    with raises("dataset.folder_fault", "chair_0001.txt: in split test, but identical to"):
        open_folder(root)
    (root / "modelnet40_test.txt").write_text("chair_0002\nchair_0002\n")
    with raises("dataset.folder_fault", "chair_0002.txt: listed twice in split test"):
        open_folder(root)
    (root / "modelnet40_train.txt").write_text("chair_0002\n")
    (root / "modelnet40_test.txt").write_text("chair_0003\nchair_0004\n")
    with raises("dataset.folder_fault", "chair_0003.txt: listed but missing", "1 more like this"):
        open_folder(root)


# --- litter ----------------------------------------------------------------------------------------------------------

LITTER = ("._x", ".DS_Store", "Thumbs.db", "desktop.ini")


def _littered(folder: Path, *suffixes: str) -> None:
    """Leave in every folder what operating systems do, under names that a layout would take for its own files."""
    for place in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        for name in (*LITTER, *(f"._{path.name}" for path in list(place.iterdir()))):
            (place / name).write_bytes(b"\x00\x05\x16\x07")
        (place / "__MACOSX").mkdir()
        (place / "__MACOSX" / "._chair.off").write_bytes(b"\x00")


def test_files_of_operating_systems_are_passed_over_in_every_layout(tmp_path: Path) -> None:
    """AppleDouble files refused HDF5, SemanticKITTI and, when it was read, S3DIS (pytorch/vision#109)."""
    _make(tmp_path / "classes", "a/train/x.off", "a/test/x.off")
    _make(tmp_path / "imagenet", "train/a/x.off", "test/a/x.off")
    _hdf5(tmp_path / "hdf5", "train.h5", "test.h5")
    scans = tmp_path / "kitti" / "sequences" / "00"
    rows = {"velodyne/000000.bin": np.zeros((5, 4), "<f4"), "labels/000000.label": np.full(5, 40, "<u4")}
    for name, content in rows.items():
        (scans / name).parent.mkdir(parents=True)
        (scans / name).write_bytes(content.tobytes())
    room = tmp_path / "s3dis" / "Area_1" / "office_1" / "Annotations"
    room.mkdir(parents=True)
    (room / "ceiling_1.txt").write_text("0 0 0 1 2 3\n1 1 1 1 2 3\n")
    parts = tmp_path / "parts"
    (parts / "02691156").mkdir(parents=True)
    (parts / "02691156" / "a.txt").write_text("0 0 0 0 0 1 0\n1 1 1 0 0 1 0\n")
    (parts / "synsetoffset2category.txt").write_text("Airplane 02691156\n")
    (parts / "train_test_split").mkdir()
    (parts / "train_test_split" / "shuffled_train_file_list.json").write_text('["shape_data/02691156/a"]')
    before = {path.name: info(path) for path in tmp_path.iterdir()}
    _littered(tmp_path)
    for path in sorted(path for path in tmp_path.iterdir() if path.name in before):
        assert info(path) == before[path.name]
        folder = open_folder(path)
        for file in folder.files:
            folder.read(file)


# --- what is of no known format, names that are one, lists of Windows -----------------------------------------------


@pytest.mark.parametrize("test", ["chair/test/a.fbx", "test/chair/a.fbx"])
def test_a_half_of_unknown_formats_is_refused(tmp_path: Path, test: str) -> None:
    """The other half was trained on without a word."""
    _make(tmp_path, test.replace("test", "train").replace("fbx", "off"), test, test.replace("a.", "b."))
    with raises("dataset.folder_fault", Path(test).parent):
        open_folder(tmp_path)


def test_loose_files_of_a_split_are_refused_where_it_has_no_other(tmp_path: Path) -> None:
    _make(tmp_path, "train/chair/a.off", "test/b.fbx")
    with raises("dataset.folder_fault", "test: contains no sample, but 1 file (.fbx) in no folder of a class"):
        open_folder(tmp_path)


def test_a_split_of_hdf5_files_that_is_stored_otherwise_is_refused(tmp_path: Path) -> None:
    _hdf5(tmp_path, "data_train.h5")
    (tmp_path / "data_test.mat").write_bytes(b"x")
    with raises("dataset.folder_fault", "data_test.mat: named after split test, which has no HDF5 file"):
        open_folder(tmp_path)


def test_pictures_and_notes_beside_samples_are_no_half(tmp_path: Path) -> None:
    _make(tmp_path, "chair/train/a.off", "chair/train/a.png", "views/train/a.png", "chair/train/notes.md")
    assert open_folder(tmp_path).classes == ("chair",)


def test_commands_warn_of_samples_that_are_left_out(tmp_path: Path) -> None:
    _make(tmp_path, "chair/train/a.off", "chair/train/b.fbx", "chair/train/a.mtl", "chair/test/c.off")
    (line,) = unread_files(tmp_path)
    assert mentions(line, f"{tmp_path}/chair/train/b.fbx", 1)
    assert not list(unread_files("digits"))


CAFE = "caf\u00e9", "cafe\u0301"  # composed, and decomposed as macOS writes it


@pytest.mark.parametrize("twins", [("Chair", "chair"), CAFE, ("STRASSE", "stra\u00dfe")])
@pytest.mark.parametrize("order", ["{0}/train/a.off {1}/test/b.off", "train/{0}/a.off test/{1}/b.off"])
def test_names_that_are_one_are_never_two_classes(tmp_path: Path, twins: tuple[str, str], order: str) -> None:
    _make(tmp_path, *order.format(*twins).split())
    with raises("layout.names_alike", "differ only by case") as caught:
        open_folder(tmp_path)
    assert all(ascii(name) in str(caught.value) for name in twins)


def test_names_in_lists_that_are_one_are_refused(tmp_path: Path) -> None:
    _hdf5(tmp_path / "h", "train.h5", "test.h5")
    (tmp_path / "h" / "shape_names.txt").write_text("Chair\nchair\n")
    with raises("layout.names_alike", "classes", "'Chair' and 'chair' differ only by case"):
        open_folder(tmp_path / "h")
    _make(tmp_path / "p", "a/train/x.off")
    (tmp_path / "p" / "dataset.json").write_text(json.dumps({"parts": ["leg", "leg"]}))
    with raises("layout.names_alike", "parts", "'leg' and 'leg' are the same"):
        open_folder(tmp_path / "p")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_lists_written_on_windows_are_read(tmp_path: Path, encoding: str) -> None:
    _hdf5(tmp_path, "data_a.h5", "data_b.h5")
    for split, name in (("train", "data_a.h5"), ("test", "data_b.h5")):
        (tmp_path / f"{split}_files.txt").write_bytes(f"data\\set\\{name}\r\n".encode(encoding))
    (tmp_path / "shape_names.txt").write_bytes("chair\r\ntable\r\n".encode(encoding))
    assert info(tmp_path)["splits"] == {"train": 2, "test": 2}
    assert open_folder(tmp_path).classes == ("chair", "table")
    for split in ("train", "test"):
        (tmp_path / f"{split}_files.txt").unlink()
    _hdf5(tmp_path / "inside", "a.h5")
    marker = {"files": {"train": ["data_a.h5"], "test": ["inside\\a.h5"]}}
    (tmp_path / "dataset.json").write_text(json.dumps(marker))
    assert [file.name for file in open_folder(tmp_path).of_split("test")] == ["inside/a.h5/0", "inside/a.h5/1"]
    (tmp_path / "dataset.json").write_text(json.dumps({"files": {"train": ["..\\a.h5"]}}))
    with raises("marker.file_outside"):
        open_folder(tmp_path)


def test_hdf5_files_may_be_packed(tmp_path: Path) -> None:
    _hdf5(tmp_path, "train0.h5", "train1.h5", "test.h5")
    for path in tmp_path.glob("train*"):
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    folder = open_folder(tmp_path)
    assert info(tmp_path)["splits"] == {"train": 4, "test": 2}
    assert len(folder.read(folder.of_split("train")[3])) == 8
