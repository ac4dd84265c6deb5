"""S3DIS: Area_N/ROOM/Annotations/CLASS_K.txt, x y z red green blue; a room is a sample, Area 5 the test."""

import re
from pathlib import Path

import numpy as np

from ...errors import InputError
from ..formats import Cloud, Reading
from ..formats.base import COLOUR, POSITION
from ..formats.text import read_text_cloud
from .base import SEGMENTATION, DataFolder, SampleFile, folders, sample_of

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
    """Say whether a folder is of this layout."""
    return any(_area(folder) and any(folder.glob(f"*/{_ANNOTATIONS}")) for folder in folders(root))


def opened(root: Path, marker: dict) -> DataFolder:
    """List the rooms. Raises InputError for a room without objects."""
    files: list[SampleFile] = []
    for area in folders(root):
        if not _area(area):
            continue
        split = "test" if _area(area) == _TEST_AREA else "train"
        for room in folders(area):
            objects = tuple(sorted((room / _ANNOTATIONS).glob("*.txt")))
            if not objects:
                raise InputError(f"{room / _ANNOTATIONS}: no CLASS_K.txt, expected a room's objects; fetch it again")
            sample = sample_of(objects[0], root, label=None, split=split, companions=objects[1:])
            name = room.relative_to(root).as_posix()
            files.append(SampleFile(objects[0], name, None, split, sample.num_bytes, companions=objects[1:]))
    return DataFolder(
        marker.get("name", root.name),
        root,
        (),
        tuple(files),
        marker,
        "s3dis",
        _read,
        parts=CLASSES,
        metric=True,
        default_task=SEGMENTATION,
    )


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
        np.concatenate([cloud.attributes for cloud in clouds]),
        COLOUR,
        np.repeat(np.array(labels, dtype=np.int64), [len(cloud) for cloud in clouds]),
        np.concatenate(measured) if any(cloud.num_unmeasured for cloud in clouds) else None,
    )
