"""ScanNet's own folders: scans/SCENE/SCENE_vh_clean_2.ply with labels of NYU40, split by the lists of its benchmark.

`scannetv2_train.txt` and `scannetv2_val.txt` (in the folder, or in `splits/` or `Tasks/Benchmark/`) name the scenes of
each split; those of `scans_test/` are the test, whose labels are not published. Points are the vertices of the mesh.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ...errors import InputError
from ..formats import Cloud, Mesh, Reading
from ..formats.base import POSITION, cloud_of
from ..formats.ply import read_ply
from ..labels import IGNORED, SEGMENTATION
from .base import (
    MARKER,
    DataFolder,
    Listing,
    Marker,
    SampleFile,
    declared_parts,
    entries,
    folders,
    listed_lines,
    sample_of,
)

_SCENES, _TEST = "scans", "scans_test"
_LISTS = {"train": "scannetv2_train.txt", "validation": "scannetv2_val.txt"}
_HOMES = ("", "splits", "Tasks/Benchmark")  # of the lists
_MESH, _LABELS = "_vh_clean_2.ply", "_vh_clean_2.labels.ply"
_CLASSES = {  # of the benchmark: the number of each in NYU40
    "wall": 1,
    "floor": 2,
    "cabinet": 3,
    "bed": 4,
    "chair": 5,
    "sofa": 6,
    "table": 7,
    "door": 8,
    "window": 9,
    "bookshelf": 10,
    "picture": 11,
    "counter": 12,
    "desk": 14,
    "curtain": 16,
    "refrigerator": 24,
    "shower curtain": 28,
    "toilet": 33,
    "sink": 34,
    "bathtub": 36,
    "other furniture": 39,
}


def found(root: Path) -> bool:
    """Return whether a folder is of this layout."""
    scenes = (scene for name in (_SCENES, _TEST) if (root / name).is_dir() for scene in folders(root / name))
    return any((scene / f"{scene.name}{_MESH}").is_file() for scene in scenes)


def opened(root: Path, marker: Marker) -> DataFolder:
    """List the scenes. Raises InputError without the lists of the splits, and for a listed scene without labels."""
    listing = Listing(root)
    listed = dict(_listed(root))
    for scene in folders(root / _SCENES) if (root / _SCENES).is_dir() else ():
        if scene.name in listed:
            listing.attempt(partial(_scene, listing, scene, listed.pop(scene.name)))
        else:
            listing.leave(scene, f"in none of {', '.join(_LISTS.values())}")
    listing.faults += [f"{root / _SCENES / name}: listed but missing; fetch the data set again" for name in listed]
    for scene in folders(root / _TEST) if (root / _TEST).is_dir() else ():
        listing.attempt(partial(_scene, listing, scene, "test"))
    known = {MARKER, _SCENES, _TEST, *_LISTS.values(), *(home.partition("/")[0] for home in _HOMES if home)}
    for path in (path for path in entries(root) if path.name not in known):
        listing.leave(path, "not read")
    if not listing.files:
        raise listing.empty(f"{root}: no scene, expected {_SCENES}/SCENE/SCENE{_MESH}; check the path")
    return DataFolder(
        marker.get("name", root.name),
        root,
        (),
        tuple(listing.files),
        marker,
        "scannet",
        _read,
        parts=declared_parts(root, marker) or tuple(_CLASSES),
        metric=True,
        default_task=SEGMENTATION,
        left_out=tuple(listing.left_out),
        faults=tuple(listing.faults),
    )


def _listed(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each scene that the lists name, with its split. Raises InputError for a list that is not there."""
    if not (root / _SCENES).is_dir():
        return
    for split, name in _LISTS.items():
        path = next((root / home / name for home in _HOMES if (root / home / name).is_file()), None)
        if path is None:
            raise InputError(
                "scannet.no_list",
                f"{root / name}: file not found, expected the scene names of split {split}; copy it from "
                "Tasks/Benchmark of ScanNet's repository",
            )
        yield from ((scene, split) for scene in listed_lines(path))


def _scene(listing: Listing, scene: Path, split: str) -> SampleFile:
    """Describe a scene: its mesh, and its labels, which a test may lack."""
    labels = scene / f"{scene.name}{_LABELS}"
    companions = () if split == "test" and not labels.is_file() else (labels,)
    sample = sample_of(scene / f"{scene.name}{_MESH}", listing.root, label=None, split=split, companions=companions)
    return replace(sample, name=scene.relative_to(listing.root).as_posix())


def _read(file: SampleFile, reading: Reading) -> Cloud:
    mesh = read_ply(file.path, replace(reading, labels=(), other_labels=False))
    if isinstance(mesh, Mesh):
        columns = list(zip(POSITION, mesh.vertices.T, strict=True))
        if mesh.attributes is not None:
            columns += zip(mesh.names, mesh.attributes.T, strict=True)
        mesh = cloud_of(file.path, columns, replace(reading, colour_max=255.0, columns=None, renamed=()))
    num_points = len(mesh) + mesh.num_unmeasured
    if not file.companions:
        return mesh.with_labels(np.full(num_points, IGNORED, dtype=np.int64))
    try:
        return mesh.with_labels(_labels(file.companions[0], reading))
    except InputError as error:
        raise error if str(file.companions[0]) in str(error) else error.within(f"{file.companions[0]}: ") from None


def _labels(path: Path, reading: Reading) -> np.ndarray:
    """Read the class of each vertex, by default of the benchmark's classes by their numbers in NYU40."""
    if not reading.labels:
        pairs = tuple((number, label) for label, number in enumerate(_CLASSES.values()))
        reading = replace(reading, labels=pairs, other_labels=True)
    content = read_ply(path, reading)
    if isinstance(content, Mesh) or content.labels is None:
        raise InputError(
            "scannet.no_labels",
            f"{path}: its vertices have no label, expected one NYU40 number per vertex; fetch the file again",
        )
    labels = np.full(len(content) + content.num_unmeasured, IGNORED, dtype=np.int64)
    labels[content.file_rows] = content.labels
    return labels
