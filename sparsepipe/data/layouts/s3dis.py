"""S3DIS: Area_N/ROOM/Annotations/CLASS_K.txt, x y z red green blue; a room is a sample, Area 5 the test."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ...errors import InputError
from ..formats import Cloud, Reading
from ..formats.base import COLOUR, POSITION
from ..formats.text import read_text_cloud
from ..labels import SEGMENTATION
from .base import MARKER, DataFolder, Listing, Marker, SampleFile, entries, folders, sample_of

CLASSES = (
    "ceiling",
    "floor",
    "wall",
    "beam",
    "column",
    "window",
    "door",
    "table",
    "chair",
    "sofa",
    "bookcase",
    "board",
    "clutter",
)
_ANNOTATIONS = "Annotations"
_TEST_AREA = 5  # as its papers report: the one area of another building


def found(root: Path) -> bool:
    """Return whether a folder is of this layout."""
    return any((room / _ANNOTATIONS).is_dir() for area in folders(root) if _area(area) for room in folders(area))


def opened(root: Path, marker: Marker) -> DataFolder:
    """List the rooms. Raises InputError for a room without objects."""
    listing = Listing(root)
    for area in folders(root):
        if not _area(area):
            listing.leave(area, "no Area_N")
            continue
        for room in folders(area):
            if (room / _ANNOTATIONS).is_dir():
                listing.attempt(partial(_room, listing, room, area))
            else:
                listing.leave(room, f"no room: without {_ANNOTATIONS}/")
    listing.leave_files((path for path in entries(root) if not path.is_dir() and path.name != MARKER), "not read")
    if not listing.files:
        raise listing.empty(f"{root}: no room, expected Area_N/ROOM/{_ANNOTATIONS}/CLASS_K.txt; check the path")
    return DataFolder(
        marker.get("name", root.name),
        root,
        (),
        tuple(listing.files),
        marker,
        "s3dis",
        _read,
        parts=CLASSES,
        metric=True,
        default_task=SEGMENTATION,
        left_out=tuple(listing.left_out),
        faults=tuple(listing.faults),
    )


def _room(listing: Listing, room: Path, area: Path) -> SampleFile:
    inside = entries(room / _ANNOTATIONS)
    objects = tuple(path for path in inside if path.suffix.lower() == ".txt" and path.is_file())
    listing.leave_files((path for path in inside if path not in objects), "no CLASS_K.txt")
    if not objects:
        raise InputError(
            "s3dis.no_objects",
            f"{room / _ANNOTATIONS}: has no CLASS_K.txt, expected the objects of a room; fetch the data set again",
        )
    split = split_of_area(area)
    assert split is not None
    sample = sample_of(objects[0], listing.root, label=None, split=split, companions=objects[1:])
    return replace(sample, name=room.relative_to(listing.root).as_posix())


def split_of_area(folder: Path) -> str | None:
    """Return the split that an area's folder usually is; None for any other folder."""
    area = _area(folder)
    return None if not area else "test" if area == _TEST_AREA else "train"


def _area(folder: Path) -> int:
    """Return the number of an area's folder, 0 for any other."""
    match = re.fullmatch(r"Area_(\d+)", folder.name)
    return int(match[1]) if match else 0


def _read(file: SampleFile, reading: Reading) -> Cloud:
    """Join a room's objects; what is of no class, such as the few stairs, is clutter."""
    clouds = [read_text_cloud(path, reading, columns=(*POSITION, *COLOUR)) for path in (file.path, *file.companions)]
    names = [re.sub(r"_\d+$", "", path.stem) for path in (file.path, *file.companions)]
    labels = [CLASSES.index(name) if name in CLASSES else CLASSES.index("clutter") for name in names]
    measured = [np.ones(len(cloud), bool) if cloud.measured is None else cloud.measured for cloud in clouds]
    return Cloud(
        np.concatenate([cloud.points for cloud in clouds]),
        np.concatenate([cloud.attributes for cloud in clouds]) if clouds[0].names else None,
        clouds[0].names,
        np.repeat(np.array(labels, dtype=np.int64), [len(cloud) for cloud in clouds]),
        np.concatenate(measured) if any(cloud.num_unmeasured for cloud in clouds) else None,
    )
