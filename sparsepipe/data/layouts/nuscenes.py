"""nuScenes with lidarseg: v1.0-*/ tables, samples/LIDAR_TOP/*.pcd.bin scans, lidarseg/v1.0-*/*.bin labels.

Each keyframe of the lidar is a sample: x y z intensity ring as float32, a class a point as a byte. Classes are the 16
of the lidarseg challenge (Caesar et al., nuScenes, CVPR 2020); scenes are split as published.
"""

import json
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...util.io.files import read_json
from ..formats import Cloud, Reading
from ..formats.arrays import read_scan
from ..formats.base import INTENSITY, POSITION, read_bytes
from ..labels import IGNORED, SEGMENTATION
from .base import MARKER, DataFolder, Listing, Marker, SampleFile, entries, folders, sample_of

_TABLES = ("v1.0-trainval", "v1.0-test", "v1.0-mini")  # folders of them; mini has scenes of trainval
_SCANS = "samples/LIDAR_TOP/"
_COLUMNS = (*POSITION, INTENSITY, "ring")
_CLASSES = {  # of the challenge: the categories that count as each
    "barrier": ("movable_object.barrier",),
    "bicycle": ("vehicle.bicycle",),
    "bus": ("vehicle.bus.bendy", "vehicle.bus.rigid"),
    "car": ("vehicle.car",),
    "construction_vehicle": ("vehicle.construction",),
    "motorcycle": ("vehicle.motorcycle",),
    "pedestrian": tuple(f"human.pedestrian.{kind}" for kind in ("adult", "child", "construction_worker"))
    + ("human.pedestrian.police_officer",),
    "traffic_cone": ("movable_object.trafficcone",),
    "trailer": ("vehicle.trailer",),
    "truck": ("vehicle.truck",),
    "driveable_surface": ("flat.driveable_surface",),
    "other_flat": ("flat.other",),
    "sidewalk": ("flat.sidewalk",),
    "terrain": ("flat.terrain",),
    "manmade": ("static.manmade",),
    "vegetation": ("static.vegetation",),
}
_VALIDATION = (  # scenes of trainval, first to last
    *((3, 3), (12, 18), (35, 36), (38, 39), (92, 110), (221, 221), (268, 278), (329, 332), (344, 346), (519, 524)),
    *((552, 565), (625, 627), (629, 630), (632, 638), (770, 771), (775, 775), (777, 778), (780, 784), (794, 800)),
    *((802, 802), (904, 917), (919, 931), (962, 963), (966, 969), (971, 972), (1059, 1073)),
)
_MINI_VALIDATION = (103, 916)


@dataclass(frozen=True)
class _Scan:
    """A keyframe of the lidar: its file, the file of its labels ("" without), and the scene that it is of."""

    path: str
    labels: str
    scene: str


def found(root: Path) -> bool:
    """Return whether a folder is of this layout."""
    return any((root / name / "sample_data.json").is_file() for name in _TABLES)


def opened(root: Path, marker: Marker) -> DataFolder:
    """List the keyframes. Raises InputError for tables that do not fit each other."""
    listing = Listing(root)
    there = [name for name in _TABLES if (root / name / "sample_data.json").is_file()]
    used = there if there == ["v1.0-mini"] else [name for name in there if name != "v1.0-mini"]
    for name in used:
        for scan in _scans(root / name):
            split = _split(name, scan.scene, root / name / "scene.json")
            if not scan.labels and split != "test":
                listing.faults.append(
                    f"{root / scan.path}: {name}/lidarseg.json has no labels for it; fetch nuScenes-lidarseg too"
                )
                continue
            labels = (root / scan.labels, root / name / "category.json") if scan.labels else ()
            listing.attempt(partial(sample_of, root / scan.path, root, label=None, split=split, companions=labels))
    for folder in folders(root):
        if folder.name not in (*used, "samples", "lidarseg"):
            listing.leave(folder, "scenes of v1.0-trainval" if folder.name in there else "not read")
    listing.leave_files((path for path in entries(root) if not path.is_dir() and path.name != MARKER), "not read")
    if not listing.files:
        raise listing.empty(f"{root}: no scan of a keyframe in {', '.join(used)}, expected {_SCANS}*.pcd.bin")
    return DataFolder(
        marker.get("name", root.name),
        root,
        (),
        tuple(listing.files),
        marker,
        "nuscenes",
        _read,
        parts=tuple(_CLASSES),
        metric=True,
        default_task=SEGMENTATION,
        left_out=tuple(listing.left_out),
        faults=tuple(listing.faults),
    )


def _scans(tables: Path) -> Iterator[_Scan]:
    """Yield the lidar's keyframes in the order of the tables."""
    scene_of = _column(tables / "sample.json", "token", "scene_token")
    name_of = _column(tables / "scene.json", "token", "name")
    labels = tables / "lidarseg.json"
    labels_of = _column(labels, "sample_data_token", "filename") if labels.is_file() else {}
    for row in _rows_of_lidar(tables / "sample_data.json"):
        sample, token, path = (str(row.get(key, "")) for key in ("sample_token", "token", "filename"))
        scene, of_labels = name_of.get(scene_of.get(sample, "")), str(labels_of.get(token, ""))
        if scene is None or ".." in path or ".." in of_labels or Path(of_labels).is_absolute():
            raise InputError(
                "nuscenes.tables_differ",
                f"{tables / 'sample_data.json'}: {token} belongs to no scene of sample.json and scene.json; fetch "
                "all tables of one version again",
            )
        yield _Scan(path, of_labels, scene)


def _rows_of_lidar(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of the lidar's keyframes: of a table of gigabytes, the others are not parsed."""
    wanted = f'"{_SCANS}'.encode()
    with path.open("rb") as file:
        if not path.stat().st_size:
            raise InputError("nuscenes.table_malformed", f"{path}: is empty, expected a table of nuScenes")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            at = data.find(wanted)
            while at >= 0:
                start, end = data.rfind(b"{", 0, at), data.find(b"}", at)
                try:
                    row = json.loads(data[start : end + 1])
                except (ValueError, RecursionError) as error:
                    raise InputError(
                        "nuscenes.table_malformed",
                        f"{path}: byte {start}: not a table row ({error}); fetch the file again",
                    ) from None
                yield row
                at = data.find(wanted, end)


def _column(path: Path, key: str, value: str) -> dict[str, str]:
    """Return a column of a table by another. Raises InputError for a table that lacks them."""
    rows = read_json(path, what="table of nuScenes")
    try:
        return {str(row[key]): str(row[value]) for row in rows}
    except (TypeError, KeyError):
        raise InputError(
            "nuscenes.table_malformed",
            f"{path}: expected a list of rows that each have {key!r} and {value!r}; fetch the tables again",
        ) from None


def _split(tables: str, scene: str, path: Path) -> str:
    """Return the split of a scene such as scene-0103."""
    if tables == "v1.0-test":
        return "test"
    number = scene.removeprefix("scene-")
    if not number.isdecimal() or len(number) > 6:
        raise InputError("nuscenes.scene_unknown", f"{path}: scene {scene[:40]!r}, expected a name such as scene-0103")
    if tables == "v1.0-mini":
        return "validation" if int(number) in _MINI_VALIDATION else "train"
    return "validation" if any(first <= int(number) <= last for first, last in _VALIDATION) else "train"


def _read(file: SampleFile, reading: Reading) -> Cloud:
    cloud = read_scan(file.path, reading, columns=_COLUMNS)
    num_points = len(cloud) + cloud.num_unmeasured
    if not file.companions:  # the test's labels are not published
        return cloud.with_labels(np.full(num_points, IGNORED, dtype=np.int64))
    path, categories = file.companions
    data = np.frombuffer(read_bytes(path, what="labels of nuScenes-lidarseg"), dtype=np.uint8)
    if len(data) != num_points:
        raise InputError(
            "nuscenes.label_count",
            f"{path}: has {len(data)} bytes, expected {num_points}, one per point of its scan; the files belong to "
            "different scans, or one is truncated",
        )
    return cloud.with_labels(_class_of(categories, categories.stat().st_mtime_ns)[data])


@lru_cache(maxsize=4)
def _class_of(path: Path, changed: int) -> np.ndarray:
    """Return the class of each of the 256 numbers that a label may be. `changed`: when the table was written."""
    numbers = _column(path, "name", "index")
    table = np.full(256, IGNORED, dtype=np.int64)
    for label, names in enumerate(_CLASSES.values()):
        for name in names:
            number = numbers.get(name, "")
            if not number.isdecimal() or int(number) > 255:
                raise InputError(
                    "nuscenes.category_missing",
                    f"{path}: category {name} has no index below 256; use category.json of nuScenes-lidarseg",
                )
            table[int(number)] = label
    return table
