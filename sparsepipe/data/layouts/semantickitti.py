"""SemanticKITTI: sequences/NN/velodyne/*.bin and labels/*.label; sequence 8 validates, 11 to 21 are the test."""

from pathlib import Path

import numpy as np

from ...errors import InputError
from ..formats import Cloud, Reading
from ..formats.base import read_bytes
from ..formats.scan import KITTI, read_scan
from ..labels import IGNORED
from .base import SEGMENTATION, DataFolder, SampleFile, folders, sample_of

_RAW = {  # class: the raw labels that count as it, what moves with what is at rest (Behley et al., ICCV 2019)
    "car": (10, 252),
    "bicycle": (11,),
    "motorcycle": (15,),
    "truck": (18, 258),
    "other-vehicle": (13, 16, 20, 256, 257, 259),
    "person": (30, 254),
    "bicyclist": (31, 253),
    "motorcyclist": (32, 255),
    "road": (40, 60),
    "parking": (44,),
    "sidewalk": (48,),
    "other-ground": (49,),
    "building": (50,),
    "fence": (51,),
    "vegetation": (70,),
    "trunk": (71,),
    "terrain": (72,),
    "pole": (80,),
    "traffic-sign": (81,),
}
_UNUSED = (0, 1, 52, 99)  # unlabelled, outlier, other structure, other object
CLASSES = tuple(_RAW)
_UNKNOWN = -1


def _table() -> np.ndarray:
    """Return class by raw label, for all 16 bits of one."""
    table = np.full(2**16, _UNKNOWN, dtype=np.int64)
    table[list(_UNUSED)] = IGNORED
    for label, raw in enumerate(_RAW.values()):
        table[list(raw)] = label
    return table


_CLASS_OF = _table()


def found(root: Path) -> bool:
    """Say whether a folder is of this layout."""
    return any(root.glob("sequences/*/velodyne"))


def opened(root: Path, marker: dict) -> DataFolder:
    """List the scans. Raises InputError where a scan of the training or validation split has no labels."""
    files: list[SampleFile] = []
    for sequence in folders(root / "sequences"):
        if not sequence.name.isdecimal() or not (sequence / "velodyne").is_dir():
            continue
        number = int(sequence.name)
        split = "validation" if number == 8 else "train" if number <= 10 else "test"
        for path in sorted((sequence / "velodyne").glob("*.bin")):
            labels = sequence / "labels" / f"{path.stem}.label"
            if not labels.is_file() and split != "test":
                raise InputError(f"{labels}: not there, expected the labels of {path.name}; fetch the labels too")
            companions = (labels,) if labels.is_file() else ()
            files.append(sample_of(path, root, label=None, split=split, companions=companions))
    if not files:
        raise InputError(f"{root / 'sequences'}: no NN/velodyne/*.bin, expected scans; check the path")
    return DataFolder(
        marker.get("name", "semantickitti" if root.name == "dataset" else root.name),
        root,
        (),
        tuple(files),
        marker,
        "semantickitti",
        _read,
        parts=CLASSES,
        metric=True,
        default_task=SEGMENTATION,
    )


def _read(file: SampleFile, reading: Reading) -> Cloud:
    cloud = read_scan(file.path, reading, columns=KITTI)
    num_rows = len(cloud) + cloud.num_unmeasured
    if not file.companions:  # the test's labels are not published
        return cloud.with_labels(np.full(num_rows, IGNORED, dtype=np.int64))
    return cloud.with_labels(_labels(file.companions[0], num_rows))


def _labels(path: Path, num_points: int) -> np.ndarray:
    """Read uint32 labels: the class in the lower half, the instance in the upper."""
    data = read_bytes(path, what="SemanticKITTI labels")
    if len(data) != 4 * num_points:
        raise InputError(
            f"{path}: {len(data)} bytes, expected {4 * num_points}: one uint32 for each of {num_points} points; "
            "fetch it again"
        )
    labels = _CLASS_OF[np.frombuffer(data, dtype="<u4") & 0xFFFF]
    unknown = np.flatnonzero(labels == _UNKNOWN)
    if len(unknown):
        raise InputError(f"{path}: label {unknown[0]} is of no class of SemanticKITTI; fetch the file again")
    return labels
