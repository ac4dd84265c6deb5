"""Pointcept's scenes: {train,val,test}/SCENE or Area_N/ROOM, a folder of arrays each (coord.npy, color.npy, …).

`segment*.npy` holds the points' classes: where scenes have several, such as segment20 and segment200 of ScanNet,
dataset.json says which ({"segment": "segment20"}). Labels below 0, and 255, mean "not labelled".
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...errors import InputError
from ...util.io.fields import shown
from ..formats import Cloud, Reading
from ..formats.arrays import array_in, columns_of
from ..formats.base import COLOUR, INTENSITY, LABEL, NORMAL, POSITION, cloud_of
from ..labels import IGNORED, SEGMENTATION
from . import s3dis
from .base import (
    MARKER,
    WORDS,
    DataFolder,
    LeftOut,
    Listing,
    Marker,
    SampleFile,
    declared_parts,
    entries,
    folders,
    is_metric,
    sample_of,
    split_of,
)

_COORDINATES = "coord.npy"
_SEGMENT = "segment"  # what the files of labels begin with, and the key of dataset.json
_COLUMNS = {  # of the further arrays
    "color": COLOUR,
    "normal": NORMAL,
    "strength": (INTENSITY,),
    "instance": ("instance",),
}
_UNLABELLED = 255
_SCANNET = (  # the classes of its benchmark, in the order of segment20
    *("wall", "floor", "cabinet", "bed", "chair", "sofa", "table", "door", "window", "bookshelf", "picture", "counter"),
    *("desk", "curtain", "refrigerator", "shower curtain", "toilet", "sink", "bathtub", "other furniture"),
)
_SCANNET_200 = 200
_MOST_CLASSES = 10_000


def is_scene(folder: Path) -> bool:
    """Return whether a folder is a scene: its points are in an array of that name."""
    return (folder / _COORDINATES).is_file()


def found(root: Path) -> bool:
    """Return whether a folder is of this layout."""
    return any(is_scene(scene) for folder in folders(root) if _split(folder) for scene in folders(folder))


def opened(root: Path, marker: Marker) -> DataFolder:
    """List the scenes. Raises InputError if they have several arrays of labels and none is chosen, or no class."""
    listing = Listing(root)
    scenes: list[tuple[Path, str]] = []
    for folder in folders(root):
        split = _split(folder)
        if split is None:
            listing.leave(folder, f"no split's folder, which are {', '.join(WORDS)} and Area_N")
            continue
        loose = [path for path in entries(folder) if not path.is_dir()]
        for scene in folders(folder):
            if is_scene(scene):
                scenes.append((scene, split))
            else:
                inside = [path for path in entries(scene) if not path.is_dir()]
                listing.refuse_unread(scene, inside, expected=_COORDINATES)
                listing.leave(scene, f"no scene: without {_COORDINATES}")
        if not any(map(is_scene, folders(folder))):
            listing.refuse_unread(folder, loose, "in no scene's folder", expected=f"SCENE/{_COORDINATES}")
        listing.leave_files(loose, "in no scene's folder")
    listing.leave_files((path for path in entries(root) if not path.is_dir() and path.name != MARKER), "not read")
    segment = _segment(root, marker, [scene for scene, _ in scenes])
    others = Counter(name for scene, split in scenes for name in _list_scene(listing, scene, split, segment))
    listing.left_out += [LeftOut(f"SPLIT/SCENE/{name}", "not read", files) for name, files in sorted(others.items())]
    if not listing.files:
        raise listing.empty(f"{root}: no scene, expected SPLIT/SCENE/{_COORDINATES}; check the path")
    return DataFolder(
        marker.get("name", root.name),
        root,
        (),
        tuple(listing.files),
        marker,
        "pointcept",
        _read,
        parts=declared_parts(root, marker) or _known_parts(root, marker, listing, segment),
        metric=is_metric(root, marker, otherwise=True),
        default_task=SEGMENTATION,
        left_out=tuple(listing.left_out),
        faults=tuple(listing.faults),
    )


def _split(folder: Path) -> str | None:
    """Return the split of a folder of scenes: by its name, or as S3DIS's areas usually are divided."""
    return s3dis.split_of_area(folder) or split_of(folder.name)


def _segment(root: Path, marker: Marker, scenes: list[Path]) -> str:
    """Return the name of the arrays of labels that are chosen, or of the only ones; "" if no scene has any."""
    there = sorted({path.stem for scene in scenes for path in scene.glob(f"{_SEGMENT}*.npy")})
    chosen = marker.get(_SEGMENT)
    if chosen is not None and chosen not in there:
        raise InputError(
            "marker.segment_unknown",
            f"{root / MARKER}: '{_SEGMENT}' is {shown(chosen)}, expected one of {', '.join(there) or 'none'}",
        )
    if chosen is None and len(there) > 1:
        raise InputError(
            "layout.segment_undecided",
            f"{root}: its scenes have {', '.join(f'{name}.npy' for name in there)}, expected only one; choose it in "
            f'{MARKER}: {{"{_SEGMENT}": "{there[0]}"}}',
        )
    return chosen or next(iter(there), "")


def _list_scene(listing: Listing, scene: Path, split: str, segment: str) -> list[str]:
    """Add a scene, or note that it lacks labels; those of a test are often not published. Return what is not read."""
    wanted = {f"{name}.npy" for name in (*_COLUMNS, segment) if name}
    inside = entries(scene)
    used = tuple(path for path in inside if path.name in wanted and path.is_file())
    labels = scene / f"{segment}.npy"
    if segment and labels not in used and split != "test":
        listing.faults.append(
            f"{labels}: file not found, expected the labels of {scene.name}; add it, or move the scene away"
        )
        return []

    def made() -> SampleFile:
        sample = sample_of(scene / _COORDINATES, listing.root, label=None, split=split, companions=used)
        return replace(sample, name=scene.relative_to(listing.root).as_posix())

    listing.attempt(made)
    return [path.name for path in inside if path not in used and path.name != _COORDINATES]


def _known_parts(root: Path, marker: Marker, listing: Listing, segment: str) -> tuple[str, ...]:
    """Return the names of the classes: published ones, else numbers up to the largest label, for which all are read."""
    if segment == "segment20":
        return _SCANNET
    if segment == "segment200":
        return tuple(map(str, range(_SCANNET_200)))
    if any(s3dis.split_of_area(file.path.parent.parent) for file in listing.files):
        return s3dis.CLASSES
    reading = Reading.declared(marker, root / MARKER)
    largest = max((target for _, target in reading.labels if target is not None), default=-1)
    for file in listing.files if not reading.labels else ():
        for path in file.companions:
            if path.stem == segment:
                labels = array_in(path)
                if labels.dtype.kind not in "biuf":
                    continue  # reading it will say so
                labels = labels[np.isfinite(labels) & (labels != _UNLABELLED) & ~np.isin(labels, reading.ignore)]
                largest = max(largest, int(labels.max(initial=-1)))
    if not 0 <= largest < _MOST_CLASSES:
        raise InputError(
            "layout.classes_unnamed",
            f"{root}: its scenes have {'no' if largest < 0 else largest + 1} classes in {segment or _SEGMENT}.npy; "
            f'name them in {MARKER}, such as "parts": ["ground", "tree"]',
        )
    return tuple(map(str, range(largest + 1)))


def _read(file: SampleFile, reading: Reading) -> Cloud:
    points = array_in(file.path)
    columns = list(zip(POSITION, columns_of(file.path, "coord", points, width=3), strict=True))
    labels = None
    for path in file.companions:
        array, names = array_in(path), _COLUMNS.get(path.stem, (LABEL,))
        found = columns_of(path, path.stem, array, width=len(names), rows=len(points))
        if names == (LABEL,):
            labels = found[0]
        columns += zip(names, found, strict=True)
    if labels is None:  # of the test
        return cloud_of(file.path, columns, reading).with_labels(np.full(len(points), IGNORED, dtype=np.int64))
    unlabelled = [int(label) for label in np.unique(labels[labels < 0])]
    return cloud_of(file.path, columns, replace(reading, ignore=(*reading.ignore, *unlabelled, _UNLABELLED)))
