"""The reader of ModelNet's layout: what it finds, and what it refuses."""

import json
import os
from pathlib import Path

import pytest
from coded import raises

from sparsepipe.data import info, open_folder
from sparsepipe.errors import InputError

TRIANGLE = "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n"


def _make(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TRIANGLE)
    return root


def test_the_real_sample(shared_data: Path) -> None:
    found = info(shared_data / "modelnet10-sample")
    classes = ["bathtub", "bed", "chair", "desk", "dresser", "monitor", "night_stand", "sofa", "table", "toilet"]
    assert found["classes"] == classes
    assert found["splits"] == {"train": 400, "test": 200}
    assert found["samples_by_class"] == {name: {"train": 40, "test": 20} for name in classes}
    assert found["formats"] == {"pcd": 600}
    assert found["bytes"] == 600 * 12458
    assert found["synthetic"] is False
    json.dumps(found)


def test_classes_splits_and_formats_are_found_in_a_stable_order(tmp_path: Path) -> None:
    names = ("sofa/train/b.off", "sofa/train/a.PCD", "chair/train/c.off", "chair/test/d.off", "sofa/test/e.pcd")
    folder = open_folder(_make(tmp_path / "things", *names))
    assert folder.name == "things"
    assert folder.classes == ("chair", "sofa")
    assert folder.splits == ("train", "test")
    assert [(file.name, file.label) for file in folder.split("train")] == [
        ("chair/train/c.off", 0),
        ("sofa/train/a.PCD", 1),
        ("sofa/train/b.off", 1),
    ]
    assert info(tmp_path / "things")["formats"] == {"off": 3, "pcd": 2}


def test_a_folder_around_the_data_set_and_litter_in_it_are_passed_over(tmp_path: Path) -> None:
    """ModelNet10.zip unpacks to ModelNet10/, __MACOSX/ and .DS_Store files; readers leave caches beside the meshes."""
    names = (
        "ModelNet10/chair/train/c.off",
        "__MACOSX/ModelNet10/x.off",
        "ModelNet10/.DS_Store",
        "ModelNet10/README.txt",
    )
    _make(tmp_path, *names, "ModelNet10/chair/train/.c.off", "ModelNet10/chair/train/c.off.cache")
    assert [file.name for file in open_folder(tmp_path).files] == ["chair/train/c.off"]
    assert open_folder(tmp_path).name == "ModelNet10"


def test_a_link_that_leads_back_to_itself_is_no_folder(tmp_path: Path) -> None:
    """Whoever looked got the system's own error, or a traceback where nobody may look behind a link."""
    (tmp_path / "loop").symlink_to("loop")
    with raises("layout.empty", "no class folder"):
        open_folder(tmp_path)


def test_a_single_class_is_not_taken_for_a_folder_around(tmp_path: Path) -> None:
    assert open_folder(_make(tmp_path, "chair/train/c.off", "chair/test/d.off")).classes == ("chair",)


def test_the_marker_names_the_data_set_and_says_synthetic(tmp_path: Path) -> None:
    _make(tmp_path, "chair/train/c.off")
    (tmp_path / "dataset.json").write_text('{"name": "toys", "synthetic": true}')
    assert (open_folder(tmp_path).name, open_folder(tmp_path).synthetic) == ("toys", True)
    for bad in ("[]", '{"name": 3}', "{"):
        (tmp_path / "dataset.json").write_text(bad)
        with pytest.raises(InputError, match=r"dataset\.json"):
            open_folder(tmp_path)


def test_a_marker_that_would_be_left_out_in_silence_is_refused(tmp_path: Path) -> None:
    marker = _make(tmp_path, "chair/train/c.off") / "dataset.json"
    for wrong, right in {"color_max": "colour_max", "Ignore": "ignore", "label": "labels", "column": "columns"}.items():
        marker.write_text(json.dumps({wrong: 1}))
        with raises("marker.key_unknown", wrong, right):
            open_folder(tmp_path)
    marker.write_text('{"licence": "none", "authors": ["somebody"], "url": "x", "description": "y"}')
    assert open_folder(tmp_path).classes == ("chair",)
    marker.unlink()
    marker.symlink_to(tmp_path / "elsewhere")
    with raises("file.not_found", "dataset.json", "data set's description"):
        open_folder(tmp_path)
    marker.unlink()
    os.mkfifo(marker)
    with raises("file.unreadable", "dataset.json", "data set's description"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    ("names", "empty", "error"),
    [
        (
            ("chair/c.off", "sofa/d.off"),
            (),
            ("layout.empty", "no class folder, expected CLASS/", "chair/ is no class: it holds c.off"),
        ),
        (
            ("chair/train/c.fbx",),
            (),
            ("layout.empty", "chair/train: contains no sample, but 1 file (.fbx) of unsupported formats"),
        ),
        (
            ("chair/train/c.off", "chair/train/c.pcd"),
            (),
            ("dataset.folder_fault", "duplicates the sample c.pcd; keep one format"),
        ),
        (
            ("train/c.off", "test/d.off"),
            (),
            ("layout.empty", "no class folder", "test/ is no class: it holds d.off; train/ is no"),
        ),
        ((), ("sofa",), ("layout.empty", "no class folder", "sofa/ is no class: it is empty")),
        ((), (), ("layout.empty", "no class folder", "it is empty")),
    ],
)
def test_other_layouts_are_refused(tmp_path: Path, names: tuple, empty: tuple, error: tuple[str, ...]) -> None:
    _make(tmp_path, *names)
    for name in empty:
        (tmp_path / name).mkdir(parents=True)
    with raises(*error):
        open_folder(tmp_path)


def test_a_missing_split_or_a_class_missing_in_it_is_refused(tmp_path: Path) -> None:
    folder = open_folder(_make(tmp_path, "chair/train/c.off", "chair/test/d.off", "sofa/train/e.off"))
    with raises("dataset.split_unknown", "train, test", name="validation"):
        folder.split("validation")
    with raises("layout.class_empty", "sofa/test", ".off", "or .bin"):
        folder.split("test")


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with raises("dataset.not_found", "no such folder"):
        open_folder(tmp_path / "nowhere")
    with raises("dataset.not_found", "is a file"):
        open_folder(_make(tmp_path, "a.off") / "a.off")
