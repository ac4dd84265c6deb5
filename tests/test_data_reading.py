"""What dataset.json declares of files: columns, labels that mean none, points not measured, the range of colours."""

import json
from pathlib import Path

import numpy as np
import pytest
from coded import raises

from sparsepipe.data import IGNORED, load, open_folder
from sparsepipe.data.formats import Reading, read
from sparsepipe.errors import InputError

POINTS = np.random.default_rng(0).uniform(-5, 5, size=(600, 3)).astype("<f4")


def _folder(root: Path, content: str | bytes, name: str, **marker: object) -> Path:
    for split in ("train", "test"):
        path = root / "scene" / split / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    (root / "dataset.json").write_text(json.dumps(marker))
    return root


def _content(root: Path):
    folder = open_folder(root)
    return folder.read(folder.files[0])


def _load(root: Path, **options):
    return load(root, split="train", voxel_size=0.5, num_points=None, cache="off", **options)


NUSCENES = np.column_stack([POINTS, np.linspace(0, 255, 600), np.arange(600) % 32]).astype("<f4")


@pytest.mark.parametrize(
    ("rows", "columns", "names"),
    [
        (NUSCENES, ["x", "y", "z", "intensity", "ring"], ("intensity", "ring")),  # five columns, as nuScenes has them
        (NUSCENES, ["x", "y", "z", "i", "_"], ("intensity",)),
        (NUSCENES[:, :4], ["x", "y", "z", "intensity"], ("intensity",)),  # to 255
        (POINTS, ["x", "y", "z"], ()),
        (np.column_stack([POINTS, POINTS]), ["x", "y", "z", "nx", "ny", "nz"], ("nx", "ny", "nz")),
    ],
)
@pytest.mark.parametrize("suffix", ["bin", "txt"])
def test_columns_are_declared_for_text_and_binary_scans_alike(
    tmp_path: Path, rows: np.ndarray, columns: list, names: tuple, suffix: str
) -> None:
    """nuScenes' scans were refused as neither KITTI's nor ScanNet's, and a data folder could not say what they are."""
    rows = np.ascontiguousarray(rows, dtype="<f4")
    text = "\n".join(" ".join(map(repr, row)) for row in rows.tolist())
    content = _folder(tmp_path, rows.tobytes() if suffix == "bin" else text, f"a.{suffix}", columns=columns)
    cloud = _content(content)
    np.testing.assert_array_equal(cloud.points, rows[:, :3])
    assert cloud.names == names
    if names:
        np.testing.assert_array_equal(cloud.attributes, rows[:, 3 : 3 + len(names)])


LABELS = np.where(np.arange(600) % 7 == 0, -1, np.arange(600) % 2)


@pytest.mark.parametrize("none", [-1, -100, 255])
@pytest.mark.parametrize("name", ["a.txt", "a.ply", "a.pcd", "a.npz", "a.seg"])
def test_labels_declared_as_none_are_ignored_and_counted(tmp_path: Path, name: str, none: int) -> None:
    """Points not labelled are -1, -100 or 255 in public data sets; each was refused, our own IGNORED among them."""
    labels = np.where(LABELS < 0, none, LABELS)
    root = _folder(tmp_path, _labelled(tmp_path, name, labels), name.replace(".seg", ".xyz"), parts=["low", "high"])
    if name == "a.seg":
        for path in root.glob("scene/*/a.xyz"):
            path.with_suffix(".seg").write_text("\n".join(map(str, labels)))
    with pytest.raises(InputError, match=r'"ignore": \[') as caught:
        _load(root, task="segmentation").sample(0)
    assert "\n" not in str(caught.value)
    (root / "dataset.json").write_text(json.dumps({"parts": ["low", "high"], "metric": True, "ignore": [none]}))
    assert _content(root).labels.tolist() == np.where(LABELS < 0, IGNORED, LABELS).tolist()
    assert _content(root).num_unlabelled == (LABELS < 0).sum()
    found = _load(root, task="segmentation").sample(0).label
    assert set(found.tolist()) <= {0, 1, IGNORED}


def _labelled(folder: Path, name: str, labels: np.ndarray) -> bytes:
    rows = [f"{' '.join(map(repr, point))} {label}" for point, label in zip(POINTS.tolist(), labels, strict=True)]
    if name == "a.npz":
        np.savez(folder / "made.npz", points=POINTS, labels=labels)
        return (folder / "made.npz").read_bytes()
    head = {
        "a.txt": "x y z label\n",
        "a.seg": "x y z _\n",
        "a.ply": "ply\nformat ascii 1.0\nelement vertex 600\n"
        + "".join(f"property float {axis}\n" for axis in "xyz")
        + "property int label\nend_header\n",
        "a.pcd": "FIELDS x y z label\nSIZE 4 4 4 4\nTYPE F F F I\nPOINTS 600\nDATA ascii\n",
    }[name]
    return (head + "\n".join(rows)).encode()


def _holes() -> np.ndarray:
    return np.where(np.arange(600)[:, None] % 5 == 0, np.nan, POINTS).astype("<f4")


def test_points_not_measured_are_left_out_and_counted_where_declared(tmp_path: Path) -> None:
    """Depth cameras write NaN where nothing was measured; such files could only be refused."""
    rows = "\n".join(" ".join(map(str, row)) for row in _holes().tolist())
    text = f"FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH 30\nHEIGHT 20\nPOINTS 600\nDATA ascii\n{rows}\n"
    root = _folder(tmp_path, text, "a.pcd")
    with raises("cloud.not_finite", "drop"):
        _content(root)
    _folder(tmp_path, text, "a.pcd", unmeasured="drop", parts=["low", "high"], metric=True)
    cloud = _content(root)
    np.testing.assert_allclose(cloud.points, POINTS[np.arange(600) % 5 != 0], rtol=1e-6)
    assert (len(cloud), cloud.num_unmeasured) == (480, 120)
    for path in root.glob("scene/*/a.pcd"):  # labels beside it are of all its rows
        path.with_suffix(".seg").write_text("\n".join(str(row % 2) for row in range(600)))
    assert _content(root).labels.tolist() == [row % 2 for row in range(600) if row % 5]


def test_a_feature_not_measured_matters_to_those_who_ask_for_it(tmp_path: Path) -> None:
    """NaN in a normal or a curvature refused points that are sound."""
    rows = np.column_stack([POINTS, np.tile([0, 0, 1], (600, 1)), np.full(600, np.nan)])
    rows[::4, 3:6] = np.nan
    text = "x y z nx ny nz curvature\n" + "\n".join(" ".join(map(str, row)) for row in rows.tolist())
    root = _folder(tmp_path, text, "a.txt", metric=True)
    assert len(_content(root)) == 600
    assert np.isfinite(_load(root).sample(0).features.numpy()).all()
    with raises("cloud.not_finite", "a.txt", "nx", "ny, nz of point 0", "[nan, nan, nan]", "150", "600"):
        _load(root, features=("normals",)).sample(0)
    _folder(tmp_path, text, "a.txt", metric=True, unmeasured="drop")
    features = _load(root, features=("normals",)).sample(0).features.numpy()
    np.testing.assert_allclose(features, np.tile([0, 0, 1], (len(features), 1)))
    assert len(features) < len(_load(root).sample(0))


def test_what_is_declared_decides_the_cache_and_is_in_the_origin(tmp_path: Path) -> None:
    text = "x y z label\n" + "\n".join(
        f"{' '.join(map(repr, point))} {label % 2}" for label, point in enumerate(POINTS.tolist())
    )
    found = []
    for ignore in ([], [0], [1]):
        root = _folder(tmp_path / "data", text, "a.txt", parts=["a", "b"], metric=True, ignore=ignore)
        data = load(root, split="train", voxel_size=0.5, task="segmentation", cache=tmp_path / "cache")
        found.append(set(data.sample(0).label.tolist()))
        assert data.origin.get("reading") == ({"ignore": ignore} if ignore else None)
    assert found == [{0, 1}, {1, IGNORED}, {0, IGNORED}]


@pytest.mark.parametrize(
    ("marker", "error"),
    [
        ({"columns": "x y z"}, ("marker.value_malformed", "columns", '"x y z"', "a list of names")),
        ({"columns": ["x", "y"]}, ("marker.value_malformed", "no z in it")),
        ({"columns": ["x", "y", "z", "x"]}, ("marker.value_malformed", "x twice in it")),
        ({"columns": ["x", "y", "z", 3]}, ("marker.value_malformed", "a list of names")),
        ({"columns": {"a": 3}}, ("marker.value_malformed", "a list of names")),
        ({"ignore": ["none"]}, ("marker.value_malformed", "ignore", '["none"]', "a list of the labels")),
        ({"ignore": [0.5]}, ("marker.value_malformed", "a list of the labels")),
        ({"ignore": [True]}, ("marker.value_malformed", "a list of the labels")),
        ({"ignore": 10**400}, ("marker.value_malformed", "a list of the labels")),
        ({"unmeasured": "zero"}, ("marker.value_malformed", "unmeasured", '"zero"', 'refuse" or "drop')),
        ({"unmeasured": []}, ("marker.value_malformed", 'refuse" or "drop')),
        ({"colour_max": 0}, ("marker.value_malformed", "colour_max", "0", "a number above 0")),
    ],
)
def test_a_wrong_declaration_is_refused_when_the_folder_is_opened(
    tmp_path: Path, marker: dict, error: tuple[str, ...]
) -> None:
    root = _folder(tmp_path, "0 0 0\n1 1 1\n", "a.xyz", **marker)
    with raises(*error) as caught:
        open_folder(root)
    assert str(caught.value).startswith(f"{root / 'dataset.json'}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(root)) + 300


def test_two_columns_of_one_meaning_are_refused_unless_they_are_the_same(tmp_path: Path) -> None:
    """Paris-Lille-3D has a `label` (of the object) and a `class`; the later one was taken without a word."""
    path = tmp_path / "a.txt"
    path.write_text("x y z label class\n0 0 0 7 1\n1 1 1 8 1\n")
    with raises("cloud.columns_conflict", "label", word="class", meaning="label"):
        read(path)
    assert read(path, Reading(renamed=(("label", "_"),))).labels.tolist() == [1, 1]
    path.write_text("X Y Z x\n0 0 0 0\n1 1 1 1\n")  # twice, but the same
    assert read(path).points.tolist() == [[0, 0, 0], [1, 1, 1]]
    path.write_text("x y z intensity reflectance\n0 0 0 7 1\n1 1 1 8 1\n")  # not the same: each keeps its own name
    assert read(path).names == ("intensity", "reflectance")


def test_colours_come_as_0_to_255_whatever_their_range(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x y z red green blue\n0 0 0 0 0.5 1\n1 1 1 1 1 0\n")
    np.testing.assert_allclose(read(path).attributes, [[0, 127.5, 255], [255, 255, 0]])
    path.write_text("x y z red green blue\n0 0 0 0 0 1\n1 1 1 1 1 0\n")  # whole: as they are, unless declared
    assert read(path).attributes.max() == 1
    assert read(path, Reading(colour_max=1)).attributes.max() == 255


def test_declared_columns_come_before_those_of_a_layout(tmp_path: Path) -> None:
    """Rooms laid out as S3DIS's, but without colours, or with intensities before them."""
    rows = np.column_stack([POINTS, np.arange(600) % 9, np.tile([10, 20, 30], (600, 1))])
    for area in (1, 5):
        path = tmp_path / f"Area_{area}" / "office_1" / "Annotations" / "chair_1.txt"
        path.parent.mkdir(parents=True)
    for width, names in ((7, ("intensity", "red", "green", "blue")), (3, ())):
        for path in tmp_path.glob("Area_*/office_1/Annotations"):
            np.savetxt(path / "chair_1.txt", rows[:, :width], fmt="%.6g")
        columns = ["x", "y", "z", "intensity", "red", "green", "blue"][:width]
        (tmp_path / "dataset.json").write_text(json.dumps({"columns": columns}))
        cloud = _content(tmp_path)
        assert (len(cloud), cloud.names, set(cloud.labels.tolist())) == (600, names, {8})


# --- labels that count as others --------------------------------------------------------------------------------------

ASPRS = {"2": "ground", "3": "plants", "4": "plants", "5": 1, "7": None}


def _mapped(root: Path, given: list[int], **marker: object) -> Path:
    rows = "".join(f"{k} 0 1 {label}\n" for k, label in enumerate(given))
    return _folder(root, rows, "a.xyz", columns=["x", "y", "z", "label"], **marker)


def test_labels_count_as_the_classes_that_they_are_mapped_to(tmp_path: Path) -> None:
    marker = {"parts": ["ground", "plants"], "labels": ASPRS, "ignore": [0, 1]}
    root = _mapped(tmp_path, [2, 3, 4, 5, 7, 0, 1], **marker)
    assert _content(root).labels.tolist() == [0, 1, 1, 1, IGNORED, IGNORED, IGNORED]
    dataset = load(root, split="train", voxel_size=0.05, task="segmentation", num_points=None, cache="off")
    assert sorted(dataset.sample(0).label.tolist()) == [IGNORED] * 3 + [0, 1, 1, 1]
    assert dataset.origin["reading"]["labels"] == {"2": 0, "3": 1, "4": 1, "5": 1, "7": None}


def test_a_label_that_is_not_mapped_is_refused_unless_all_others_are_none(tmp_path: Path) -> None:
    root = _mapped(tmp_path, [2, 9], parts=["ground"], labels={"2": 0})
    with raises("cloud.label_unnamed", "1", "9"):
        _content(root)
    root = _mapped(tmp_path, [2, 9, -1], parts=["ground"], labels={"2": "ground", "*": None})
    assert _content(root).labels.tolist() == [0, IGNORED, IGNORED]
    assert load(root, split="train", voxel_size=0.5, cache="off").origin["reading"]["labels"] == {"2": 0, "*": None}
    root = _mapped(tmp_path, [0, 40, 1], parts=["ground"], labels={"40": 0, "0": -1, "1": None})
    assert _content(root).labels.tolist() == [IGNORED, 0, IGNORED]


@pytest.mark.parametrize(
    "labels",
    [3, [1], {"x": 1}, {"1": "sky"}, {"1": 2}, {"1": 0.5}, {"1": True}, {"*": 1}, {"1": 0, "01": 1}, {"1": [0]}],
)
def test_a_mapping_that_is_none_is_refused_when_the_folder_is_opened(tmp_path: Path, labels: object) -> None:
    with raises("marker.value_malformed", "dataset.json", "such as"):
        open_folder(_mapped(tmp_path, [1], parts=["ground", "tree"], labels=labels))


def test_labels_of_faces_are_mapped_too(tmp_path: Path) -> None:
    square = "OFF\n4 2 0\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n3 0 1 2\n3 0 2 3\n"
    root = _folder(tmp_path, square, "a.off", parts=["a", "b"], labels={"7": "b", "9": None})
    for split in ("train", "test"):
        (root / "scene" / split / "a.seg").write_text("7\n9\n")
    assert _content(root).labels.tolist() == [1, IGNORED]
