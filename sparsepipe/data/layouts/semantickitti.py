"""SemanticKITTI: sequences/NN/velodyne/*.bin and labels/*.label; sequence 8 validates, 11 to 21 are the test."""

from pathlib import Path

import numpy as np

from ...errors import InputError
from ..formats import Cloud, Reading
from ..formats.arrays import KITTI, read_scan
from ..formats.base import read_bytes
from ..labels import IGNORED, SEGMENTATION
from .base import MARKER, DataFolder, Listing, Marker, SampleFile, entries, folders, sample_of

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
_MAX_DIGITS = 9  # of a sequence's number


def _table() -> np.ndarray:
    """Return class by raw label, for all 16 bits of one."""
    table = np.full(2**16, _UNKNOWN, dtype=np.int64)
    table[list(_UNUSED)] = IGNORED
    for label, raw in enumerate(_RAW.values()):
        table[list(raw)] = label
    return table


_CLASS_OF = _table()


def found(root: Path) -> bool:
    """Return whether a folder is of this layout."""
    return any(root.glob("sequences/*/velodyne"))


def opened(root: Path, marker: Marker) -> DataFolder:
    """List the scans. Raises InputError if a scan of the training or validation split has no labels."""
    listing = Listing(root)
    for sequence in folders(root / "sequences"):
        if not _number(sequence) or not (sequence / "velodyne").is_dir():
            listing.leave(sequence, "not a sequence: expected a number with a folder velodyne/")
            continue
        _list_scans(listing, sequence)
    listing.leave_files((path for path in entries(root) if path.name not in ("sequences", MARKER)), "not read")
    if not listing.files:
        raise listing.empty(f"{root / 'sequences'}: no NN/velodyne/*.bin, expected scans; check the path")
    return DataFolder(
        marker.get("name", "semantickitti" if root.name == "dataset" else root.name),
        root,
        (),
        tuple(listing.files),
        marker,
        "semantickitti",
        _read,
        parts=CLASSES,
        metric=True,
        default_task=SEGMENTATION,
        left_out=tuple(listing.left_out),
        faults=tuple(listing.faults),
    )


def _number(sequence: Path) -> bool:
    return sequence.name.isdecimal() and len(sequence.name) <= _MAX_DIGITS


def _list_scans(listing: Listing, sequence: Path) -> None:
    number = int(sequence.name)
    split = "validation" if number == 8 else "train" if number <= 10 else "test"
    folder = sequence / "labels"
    labels = {path.stem: path for path in entries(folder) if path.suffix == ".label"} if folder.is_dir() else {}
    others: list[Path] = []
    before = len(listing.files) + len(listing.faults)
    for path in entries(sequence / "velodyne"):
        if path.suffix.lower() != ".bin" or not path.is_file():
            others.append(path)
            continue
        own = labels.pop(path.stem, None)
        if (own is None or not own.is_file()) and split != "test":
            missing = folder / f"{path.stem}.label"
            listing.faults.append(
                f"{missing}: file not found, expected the labels of {path.name}; fetch the labels too"
            )
            continue
        companions = (own,) if own is not None else ()
        listing.files.append(sample_of(path, listing.root, label=None, split=split, companions=companions))
    if before == len(listing.files) + len(listing.faults):
        listing.refuse_unread(sequence / "velodyne", others, "that are no *.bin")
    listing.leave_files(others, "no scan")
    listing.leave_files(labels.values(), "labels of no scan")


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
            "semantickitti.label_count",
            f"{path}: has {len(data)} bytes, expected {4 * num_points}: one uint32 for each of the {num_points} "
            "points of its scan; the files belong to different scans, or a file is truncated",
            num_points=num_points,
        )
    labels: np.ndarray = _CLASS_OF[np.frombuffer(data, dtype="<u4") & 0xFFFF]
    unknown = np.flatnonzero(labels == _UNKNOWN)
    if len(unknown):
        raw = int(np.frombuffer(data, dtype="<u4")[unknown[0]] & 0xFFFF)
        raise InputError(
            "semantickitti.label_unknown",
            f"{path}: label {unknown[0]} is {raw}, expected a label of SemanticKITTI, such as 10 for a car; use "
            "another layout for other data",
            raw=raw,
        )
    return labels
