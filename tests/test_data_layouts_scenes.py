"""Scenes as ScanNet and nuScenes publish them, on files written in their form: splits, classes, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from coded import raises

from sparsepipe import data
from sparsepipe.data import IGNORED, info, open_folder

RNG = np.random.default_rng(0)
CORNERS = np.array([[0, 0, 0], [2, 0, 0], [2, 1, 0], [0, 1, 0.5]], dtype=np.float32)
COLOURS = np.array([[0, 10, 255], [3, 2, 1], [7, 7, 7], [90, 80, 70]], dtype=np.uint8)


def _ply(path: Path, labels: list[int] | None = None) -> None:
    """Write a mesh of four vertices as ScanNet's binary files have it, with NYU40's labels if any."""
    fields = [(axis, "<f4") for axis in "xyz"] + [(name, "u1") for name in ("red", "green", "blue", "alpha")]
    fields += [("label", "<u2")] if labels is not None else []
    names = {"<f4": "float", "u1": "uchar", "<u2": "ushort"}
    rows = np.zeros(len(CORNERS), dtype=fields)
    for name, column in zip(("x", "y", "z"), CORNERS.T, strict=True):
        rows[name] = column
    for name, column in zip(("red", "green", "blue"), COLOURS.T, strict=True):
        rows[name] = column if labels is None else 5
    if labels is not None:
        rows["label"] = labels
    faces = np.array([(3, (0, 1, 2)), (3, (0, 2, 3))], dtype=[("n", "u1"), ("corners", "<i4", 3)])
    head = ["ply", "format binary_little_endian 1.0", f"element vertex {len(rows)}"]
    head += [f"property {names[kind]} {name}" for name, kind in fields]
    head += [f"element face {len(faces)}", "property list uchar int vertex_indices", "end_header\n"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("\n".join(head).encode() + rows.tobytes() + faces.tobytes())


def scannet(root: Path) -> Path:
    for scene, home, labels in (
        ("scene0000_00", "scans", [1, 39, 0, 13]),
        ("scene0011_00", "scans", [3, 3, 2, 40]),
        ("scene0707_00", "scans_test", None),
    ):
        _ply(root / home / scene / f"{scene}_vh_clean_2.ply")
        if labels:
            _ply(root / home / scene / f"{scene}_vh_clean_2.labels.ply", labels)
    (root / "scannetv2_train.txt").write_text("scene0000_00\n")
    (root / "scannetv2_val.txt").write_text("scene0011_00\n")
    return root


def test_scannets_vertices_have_the_classes_of_its_benchmark(tmp_path: Path) -> None:
    folder = open_folder(scannet(tmp_path))
    assert folder.layout == "scannet" and len(folder.parts) == 20 and folder.metric
    assert info(tmp_path)["splits"] == {"train": 1, "validation": 1, "test": 1}
    train, validation, test = (folder.read(folder.of_split(name)[0]) for name in ("train", "validation", "test"))
    np.testing.assert_allclose(train.points, CORNERS)
    np.testing.assert_array_equal(
        train.attributes[:, [train.names.index(n) for n in ("red", "green", "blue")]], COLOURS
    )
    assert train.labels.tolist() == [0, 19, IGNORED, IGNORED], "0 and NYU40's 13 are of no class"
    assert validation.labels.tolist() == [2, 2, 1, IGNORED] and set(test.labels) == {IGNORED}
    report = data.check(tmp_path, voxel_size=0.5, num_points=None)
    assert not report.faults and report.splits["train"].unlabelled == 2
    opened = data.load(tmp_path, split="train", voxel_size=0.05, features="colours", cache="off")
    assert opened.batch([0]).features.shape == (4, 3)


def test_scannet_without_lists_or_labels_is_refused(tmp_path: Path) -> None:
    scannet(tmp_path)
    (tmp_path / "scans/scene0000_00/scene0000_00_vh_clean_2.labels.ply").unlink()
    with raises("dataset.folder_fault", "scene0000_00_vh_clean_2.labels.ply"):
        open_folder(tmp_path)
    _ply(tmp_path / "scans/scene0000_00/scene0000_00_vh_clean_2.labels.ply")
    with raises("scannet.no_labels"):
        folder = open_folder(tmp_path)
        folder.read(folder.of_split("train")[0])
    (tmp_path / "scannetv2_val.txt").unlink()
    with raises("scannet.no_list", "scannetv2_val.txt"):
        open_folder(tmp_path)


CATEGORIES = [
    *("noise", "animal", "human.pedestrian.adult", "human.pedestrian.child", "human.pedestrian.construction_worker"),
    *("human.pedestrian.police_officer", "movable_object.barrier", "movable_object.trafficcone", "vehicle.bicycle"),
    *("vehicle.bus.bendy", "vehicle.bus.rigid", "vehicle.car", "vehicle.construction", "vehicle.motorcycle"),
    *("vehicle.trailer", "vehicle.truck", "flat.driveable_surface", "flat.other", "flat.sidewalk", "flat.terrain"),
    *("static.manmade", "static.vegetation"),
]


def nuscenes(root: Path, tables: str = "v1.0-mini", scenes: tuple[str, ...] = ("scene-0061", "scene-0103")) -> Path:
    """Write a keyframe, a sweep and a picture of each scene, with the tables that name them."""
    home, rows = root / tables, {name: [] for name in ("scene", "sample", "sample_data", "lidarseg")}
    for folder in (home, root / "samples/LIDAR_TOP", root / "lidarseg" / tables):
        folder.mkdir(parents=True, exist_ok=True)
    for k, scene in enumerate(scenes):
        rows["scene"].append({"token": f"s{k}", "name": scene})
        rows["sample"].append({"token": f"k{k}", "scene_token": f"s{k}", "timestamp": k})
        scan = np.column_stack([RNG.uniform(-40, 40, (50, 3)), RNG.integers(0, 255, 50), np.arange(50) % 32])
        scan.astype("<f4").tofile(root / f"samples/LIDAR_TOP/{tables}_{k}__LIDAR_TOP__1.pcd.bin")
        for name in (
            f"samples/LIDAR_TOP/{tables}_{k}__LIDAR_TOP__1.pcd.bin",
            f"sweeps/LIDAR_TOP/n{k}.pcd.bin",
            "samples/C.jpg",
        ):
            rows["sample_data"].append({"token": f"d{k}{name[:8]}", "sample_token": f"k{k}", "filename": name})
        if tables != "v1.0-test":
            path = f"lidarseg/{tables}/d{k}_lidarseg.bin"
            (np.arange(50) % len(CATEGORIES)).astype(np.uint8).tofile(root / path)
            rows["lidarseg"].append({"token": "l", "sample_data_token": f"d{k}samples/", "filename": path})
    for name, table in rows.items():
        (home / f"{name}.json").write_text(json.dumps(table, indent=0))
    table = [{"token": str(k), "name": name, "index": k} for k, name in enumerate(CATEGORIES)]
    (home / "category.json").write_text(json.dumps(table))
    return root


def test_nuscenes_keyframes_have_the_classes_of_its_challenge(tmp_path: Path) -> None:
    folder = open_folder(nuscenes(tmp_path))
    assert (folder.layout, len(folder.parts), folder.metric) == ("nuscenes", 16, True)
    assert info(tmp_path)["splits"] == {"train": 1, "validation": 1}
    cloud = folder.read(folder.of_split("train")[0])
    scan = np.fromfile(folder.of_split("train")[0].path, "<f4").reshape(-1, 5)
    np.testing.assert_array_equal(cloud.points, scan[:, :3])
    np.testing.assert_array_equal(cloud.attributes[:, cloud.names.index("intensity")], scan[:, 3])
    by_category = dict(zip(CATEGORIES, cloud.labels.tolist(), strict=False))
    assert by_category["animal"] == by_category["noise"] == IGNORED
    assert folder.parts[by_category["vehicle.bus.rigid"]] == folder.parts[by_category["vehicle.bus.bendy"]] == "bus"
    assert folder.parts[by_category["static.vegetation"]] == "vegetation"
    opened = data.load(tmp_path, split="validation", voxel_size=0.5, features="intensity", cache="off")
    assert opened.task == "segmentation" and opened.batch([0]).features.shape[1] == 1


def test_nuscenes_splits_are_the_published_ones(tmp_path: Path) -> None:
    nuscenes(tmp_path, "v1.0-trainval", ("scene-0001", "scene-0003", "scene-0061", "scene-1073", "scene-0918"))
    nuscenes(tmp_path, "v1.0-test", ("scene-0077",))
    folder = open_folder(tmp_path)
    assert info(tmp_path)["splits"] == {"train": 3, "validation": 2, "test": 1}
    assert set(folder.read(folder.of_split("test")[0]).labels) == {IGNORED}


def _labels_at(root: Path, filename: str) -> None:
    table = root / "v1.0-mini/lidarseg.json"
    table.write_text(json.dumps([row | {"filename": filename} for row in json.loads(table.read_text())]))


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda root: (root / "v1.0-mini/sample.json").write_text("[]"), "nuscenes.tables_differ"),
        (lambda root: _labels_at(root, "/etc/passwd"), "nuscenes.tables_differ"),
        (lambda root: _labels_at(root, "../labels.bin"), "nuscenes.tables_differ"),
        (lambda root: (root / "v1.0-mini/scene.json").write_text('[{"token": "s0"}]'), "nuscenes.table_malformed"),
        (lambda root: (root / "v1.0-mini/sample_data.json").write_bytes(b""), "nuscenes.table_malformed"),
        (
            lambda root: (root / "v1.0-mini/sample_data.json").write_text('"samples/LIDAR_TOP/'),
            "nuscenes.table_malformed",
        ),
        (lambda root: (root / "v1.0-mini/lidarseg.json").write_text("[]"), "layout.empty"),
        (lambda root: (root / "v1.0-mini/category.json").write_text("[]"), "nuscenes.category_missing"),
        (lambda root: (root / "lidarseg/v1.0-mini/d0_lidarseg.bin").write_bytes(b"1"), "nuscenes.label_count"),
    ],
)
def test_damaged_tables_of_nuscenes_are_named(tmp_path: Path, damage, code: str) -> None:
    damage(nuscenes(tmp_path, scenes=("scene-0061",)))
    with raises(code, str(tmp_path)):
        folder = open_folder(tmp_path)
        folder.read(folder.files[0])
